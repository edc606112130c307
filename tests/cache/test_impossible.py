"""An entry with the right checksum and impossible contents is a miss, and is removed."""

from __future__ import annotations

import json
import math
import random

import pytest
import torch

import delegate
from delegate.cache.store import Store
from delegate.partitioner.kept import KeptArtifacts
from delegate.placement.kept import KeptChoices, KeptCosts

NONSENSE = (None, True, -1, 0, 1e400, math.nan, 10**400, "", "text", [], [1], [[]], {}, {"a": 1}, {"a": []}, [None])


@pytest.mark.parametrize("seconds", [n for n in NONSENSE if n != [1]] + [[n] for n in NONSENSE if n not in (0, 1)])
def test_costs(tmp_path, seconds):
    store = Store(tmp_path)
    costs = KeptCosts(store, {"a": "a"})
    costs.keep(["a"], "what", [0.5])
    assert costs.find(["a"], "what") == [0.5]
    store.put(costs._key(["a"], "what"), {"seconds": seconds}, [])
    assert costs.find(["a"], "what") is None
    assert not store.sizes()


def test_choices_and_artifacts(tmp_path):
    for number, value in enumerate(NONSENSE):
        for name in ("candidate", "plan", "options", "placement", "cut_short", "refused", "compile_specs", "notes"):
            store = Store(tmp_path / f"{number}{name}")
            store.put("key", {name: value}, [b"blob"])
            assert KeptChoices(store).find("key", 1.0) is None
            store.put("key", {"compile_specs": {}, "notes": [], "space": "", **{name: value}}, [b"blob"])
            KeptArtifacts(store, {}).find("key")  # a value or a miss, and no error


def _changed(value, rng):
    """The value with something in it replaced by nonsense."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        name = rng.choice(sorted(value))
        return {**value, name: _changed(value[name], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        return [*value[:at], _changed(value[at], rng), *value[at + 1 :]]
    return rng.choice(NONSENSE)


@pytest.mark.parametrize("count", [30, pytest.param(500, marks=pytest.mark.slow)])
def test_programs(tmp_path, monkeypatch, count):
    """Whatever is put in place of a value of an entry, lowering gives the right program."""
    monkeypatch.setenv("DELEGATE_CACHE", str(tmp_path))
    model, x = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU()), torch.randn(2, 3)
    exported, rng = torch.export.export(model, (x,)), random.Random(0)
    delegate.to_backend(exported, "xnnpack")
    store = Store(tmp_path / "artifacts")
    paths = [file.path for file in store.files()]
    assert len(paths) > 1
    for _ in range(count):
        path = rng.choice([file.path for file in store.files()])
        data = path.read_bytes()
        header = json.loads(data[48 : 48 + int.from_bytes(data[40:48], "little")])
        entry = store.get(header["key"])
        about = _changed(dict(entry.about), rng)
        if not isinstance(about, dict):
            continue
        parts = [bytes(part) for part in entry.parts]
        if "plan" in entry.about and rng.random() < 0.3:  # of a program, not a blob that its library judges
            parts[rng.randrange(len(parts))] = rng.randbytes(rng.randrange(64))
        store.put(header["key"], about, parts)
        torch.testing.assert_close(delegate.to_backend(exported, "xnnpack")(x), model(x), atol=1e-6, rtol=1e-6)
