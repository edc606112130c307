"""Files with random changes: each reader returns something that can be used, or raises an error of this project.

Longer runs: `FILES=100000 python -m pytest tests/hostile/test_mutations.py`.
"""

from __future__ import annotations

import copy
import io
import json
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.numpy import save

import delegate
from delegate.array_files import load_arrays, map_array
from delegate.config import load_config
from delegate.devtools.debugger.diagnosis import Diagnosis
from delegate.devtools.export_graph import dot, model_explorer, node_data
from delegate.devtools.page.html import page
from delegate.errors import DelegateError
from delegate.llm.runtime.adapter import FIRST, RANKS, SECOND, read_adapter
from delegate.llm.runtime.chat import ChatFormat
from delegate.llm.runtime.tokenizer_format import check_tokenizer
from delegate.partitioner.saved import SavedPlan
from delegate.placement.lock import Lock
from delegate.report import Report
from tests.support.language_models import tokenizer
from tests.support.reports import DIAGNOSIS, report
from tests.support.sources import ROOT

FILES = int(os.environ.get("FILES", "150"))  # of each kind
INTEGERS = (0, 1, -1, 2, 255, 2**31, 2**63, 2**64, 10**30, 10**400)
TEXTS = ("", "a", "\ud800", "x" * 300, "nan", "-inf", "forward", "\0", "../x")
OTHERS = (None, True, [], {}, [[]], {"x": 1}, 1.5, float("nan"), float("inf"))
PLACES = {FIRST: (2, 4, 8), SECOND: (2, 4, 8), RANKS: (2,)}
STATES = {f"model.q.{name}": np.zeros(shape, np.float32) for name, shape in PLACES.items()}
ADAPTER = {"peft_type": "LORA", "lora_alpha": 8, "bias": "none", "base_model_name_or_path": "x/Base",
           "alpha_pattern": {"q": 3}, "use_rslora": False, "init_lora_weights": True}  # fmt: skip
MATRICES = save(
    {f"base_model.model.q.lora_{k}.weight": np.ones(s, np.float32) for k, s in (("A", (2, 8)), ("B", (8, 2)))}
)


def use_report(text: str) -> None:
    forged = Report.from_json(text)
    assert [str(forged), str(forged.nodes_table()), page([forged.page_data("x")]), forged.to_json()]
    assert [model_explorer(forged, "x"), dot(forged, "x"), node_data(forged)]


def use_diagnosis(text: str) -> None:
    diagnosis = Diagnosis.from_json(text)
    assert [str(diagnosis), diagnosis.to_json(), page([report().page_data("x", None, diagnosis)])]


def use_configuration(text: str) -> None:
    Path("x.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
    load_config("x.yaml")


def use_tokenizer(text: str) -> None:
    with errors(ValueError):
        check_tokenizer(text.encode("utf-8", "surrogatepass"), 300)


def use_adapter(text: str | bytes) -> None:
    """Read an adapter whose configuration is this text, or whose matrices are these bytes."""
    os.makedirs("adapter", exist_ok=True)
    config = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else json.dumps(ADAPTER).encode()
    Path("adapter/adapter_config.json").write_bytes(config)
    Path("adapter/adapter_model.safetensors").write_bytes(text if isinstance(text, bytes) else MATRICES)
    read_adapter(Path("adapter"), STATES, "Base")


def use_arrays(content: bytes) -> None:
    Path("x.npy").write_bytes(content)
    with errors(OSError, ValueError):
        if isinstance(load_arrays("x.npy", 8), np.ndarray):
            map_array("x.npy")


@contextmanager
def errors(*kinds: type[Exception]) -> Iterator[None]:
    """Return a context that raises an error of this project for the documented ones of a reader."""
    try:
        yield
    except kinds as error:
        raise DelegateError(str(error)) from error


@cache
def program() -> delegate.CompiledProgram:
    exported = torch.export.export(torch.nn.Linear(4, 4).eval(), (torch.rand(2, 4),))
    return delegate.to_backend(exported, "xnnpack", cache=False)


def lock() -> Any:
    written = Lock({"forward": "x"}, "here", {"xnnpack": "1"}, program().plan, placements=report().placements)
    return yaml.safe_load(written.to_yaml())


def archive(*, compressed: bool) -> bytes:
    buffer = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(buffer, x=np.ones((2, 4), np.float32), y=np.zeros(3))
    return buffer.getvalue()


def array() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.ones((2, 4), np.float32))
    return buffer.getvalue()


Reader = Callable[[Any], object]
STRUCTURES: dict[str, tuple[Callable[[], Any], Callable[[Any], str], Reader]] = {  # name -> value, its text, reader
    "report": (lambda: json.loads(report().to_json()), json.dumps, use_report),
    "plan": (lambda: json.loads(program().plan.to_json()), json.dumps, lambda text: str(SavedPlan.from_json(text))),
    "lock": (lock, yaml.safe_dump, lambda text: Lock.from_yaml(text).to_yaml()),
    "diagnosis": (lambda: json.loads(DIAGNOSIS.to_json()), json.dumps, use_diagnosis),
    "configuration": (
        lambda: yaml.safe_load((ROOT / "configs" / "mobile.yaml").read_text()), yaml.safe_dump, use_configuration,
    ),
    "tokenizer": (lambda: json.loads(tokenizer().to_str()), json.dumps, use_tokenizer),
    "adapter": (lambda: ADAPTER, json.dumps, use_adapter),
    "chat format": (
        lambda: ChatFormat("a", None, "", "b", "c", False).to_json(), json.dumps,
        lambda text: ChatFormat.from_json(json.loads(text)),
    ),
}  # fmt: skip
CONTENTS: dict[str, tuple[Callable[[], bytes], Reader]] = {  # name -> bytes, reader
    "matrices": (lambda: MATRICES, use_adapter),
    "array": (array, use_arrays),
    "archive": (lambda: archive(compressed=False), use_arrays),
    "compressed archive": (lambda: archive(compressed=True), use_arrays),
    **{
        f"text of {name}": (
            lambda make=make, write=write: write(make()).encode(),
            lambda content, use=use: use(content.decode("utf-8", "replace")),
        )
        for name, (make, write, use) in STRUCTURES.items()
        if name != "chat format"
    },
}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values within another."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from places(item, (*path, key))


def changed(value: Any, choose: random.Random) -> Any:
    """Return a copy of a value with some parts removed, replaced, renamed or repeated."""
    value = copy.deepcopy(value)
    for _ in range(choose.choice((1, 1, 2, 4))):
        paths = [*places(value)]
        if not paths:
            return value
        *parents, key = choose.choice(paths)
        parent = value
        for each in parents:
            parent = parent[each]
        match choose.randrange(5):
            case 0:
                parent.pop(key)
            case 1:
                parent[key] = choose.choice((*INTEGERS, *TEXTS, *OTHERS))
            case 2:
                other = value
                for each in choose.choice(paths):
                    other = other[each]
                parent[key] = copy.deepcopy(other)
            case 3 if isinstance(parent, dict):
                parent[choose.choice(TEXTS)] = parent.pop(key)
            case _ if isinstance(parent, list):
                parent.insert(0, copy.deepcopy(parent[key]))
    return value


def damaged(content: bytes, choose: random.Random) -> bytes:
    """Return bytes of which some are changed, removed or repeated."""
    result = bytearray(content)
    for _ in range(choose.choice((1, 2, 8))):
        at = choose.randrange(len(result) or 1)
        match choose.randrange(3):
            case 0:
                result[at : at + 1] = bytes([choose.choice((0, 1, 127, 128, 255, choose.randrange(256)))])
            case 1:
                del result[at : at + choose.randrange(1, 9)]
            case _:
                result[at:at] = result[choose.randrange(len(result) or 1) :][: choose.randrange(1, 9)]
    return bytes(result)


def outcomes(read: Reader, contents: Iterator[Any]) -> set[str]:
    found = set()
    for content in contents:
        try:
            read(content)
            found.add("read")
        except DelegateError:
            found.add("error")
    return found


@pytest.mark.parametrize("name", STRUCTURES)
def test_values(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make, write, read = STRUCTURES[name]
    value = make()
    read(write(value))
    texts = (write(changed(value, random.Random(number))) for number in range(FILES))
    assert outcomes(read, texts) >= {"error"}


@pytest.mark.parametrize("name", CONTENTS)
def test_bytes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make, read = CONTENTS[name]
    content = make()
    read(content)
    assert outcomes(read, (damaged(content, random.Random(number)) for number in range(FILES))) >= {"error"}
