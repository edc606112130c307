"""An entry with the right checksum and impossible contents is a miss, and is removed."""

from __future__ import annotations

import json
import logging
import math
import random
import warnings

import pytest
import torch

import delegate
from delegate.cache.aot.artifacts import ArtifactCache
from delegate.cache.aot.placements import PlacementCache
from delegate.cache.runtime.store import Store
from delegate.plugins import PluginState
from delegate.registry import default_registry
from delegate.testing import assert_same

# Values that no entry of a cache can have.
NONSENSE = (None, True, -1, 0, 1e400, math.nan, 10**400, "", "text", [], [1], [[]], {}, {"a": 1}, {"a": []}, [None])


def changed(value, rng):
    """Return the value with something in it gone, doubled, or replaced by nonsense."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        name, how = rng.choice(sorted(value)), rng.random()
        if how < 0.1:
            return {other: value[other] for other in value if other != name}
        return {**value, name: changed(value[name], rng)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at, how = rng.randrange(len(value)), rng.random()
        return [*value[:at], *([] if how < 0.1 else [changed(value[at], rng)]), *value[at + (how < 0.9) :]]
    return rng.choice(NONSENSE)


def test_choices_and_artifacts(tmp_path):
    for number, value in enumerate(NONSENSE):
        for name in ("candidate", "plan", "options", "placement", "cut_short", "refused", "compile_specs", "notes"):
            store = Store(tmp_path / f"{number}{name}")
            store.put("key", {name: value}, [b"blob"])
            assert PlacementCache(store, "key").get(1.0) is None
            store.put("key", {"compile_specs": {}, "notes": [], "space": "", **{name: value}}, [b"blob"])
            ArtifactCache(store, {}).get("key")  # a value or a miss, and no error


class Cached:
    """A program that was lowered, its entries in the cache, and how to lower it again."""

    def __init__(self, folder, backend):
        torch.manual_seed(0)
        module, self.x = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU()).eval(), torch.randn(2, 64)
        self.backend, self.exported = backend, torch.export.export(module, (self.x,))
        self.store, self.first = Store(folder / "artifacts"), self.lower()(self.x)
        assert_same(self.first, module(self.x), 2e-3)
        self.entries = {}
        for file in self.store.files():
            data = file.path.read_bytes()
            header = json.loads(data[48 : 48 + int.from_bytes(data[40:48], "little")])
            parts = [bytes(part) for part in self.store.get(header["key"]).parts]
            self.entries["program" if "plan" in header["about"] else "artifact"] = (
                header["key"],
                header["about"],
                parts,
            )

    def lower(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return delegate.to_backend(self.exported, self.backend)

    def require_right(self, kind, about, parts):
        """Lower with other contents of an entry; the results are those of the first time, bit by bit."""
        for key, *contents in self.entries.values():
            self.store.put(key, *contents)
        if kind == "artifact":  # else the program is found first
            self.store.remove(self.entries["program"][0])
        self.store.put(self.entries[kind][0], about, parts)
        program = self.lower()
        assert json.loads(program.report.to_json())
        assert_same(program(self.x), self.first, 0)


# backend -> contents that are tried; opening a program takes some of them long
FUZZED = {"xnnpack": 2000, "dsp": 100, "webgpu": 20, "cuda": 100, "openvino": 100, "onnxruntime": 100}


@pytest.fixture(params=FUZZED)
def cached(request, tmp_path, monkeypatch):
    monkeypatch.setenv("DELEGATE_CACHE", str(tmp_path))
    if default_registry().state(request.param).state is not PluginState.OK:
        pytest.skip(f"{request.param} is not available here")
    found = Cached(tmp_path, request.param)
    if "artifact" not in found.entries:
        pytest.skip(f"{request.param} keeps nothing here")
    return found


def test_an_artifact_is_taken_as_it_was_written(cached, caplog):
    caplog.set_level(logging.INFO, "delegate")
    cached.require_right("artifact", *cached.entries["artifact"][1:])
    assert "is taken from the compile cache" in caplog.text
    assert "is invalid" not in caplog.text


@pytest.mark.parametrize(
    ("cached", "count"),
    [("xnnpack", 20), *(pytest.param(*row, marks=pytest.mark.slow) for row in FUZZED.items())],
    indirect=["cached"],
)
@pytest.mark.parametrize("kind", ["artifact", "program"])
def test_whatever_an_entry_says_the_program_is_right(cached, kind, count):
    rng = random.Random(0)
    _, about, parts = cached.entries[kind]
    for _ in range(count):
        other, others = changed(about, rng), list(parts)
        if kind == "program" and rng.random() < 0.2:  # of an artifact they are a blob, which its library judges
            others[rng.randrange(len(others))] = rng.randbytes(rng.randrange(64))
        if isinstance(other, dict):
            cached.require_right(kind, other, others)


def test_a_refusal_of_nodes_that_are_not_there_is_a_miss(cached):
    for reasons in ({"gone": "why"}, {"": ""}):
        cached.require_right("artifact", {"refused": reasons}, [])
