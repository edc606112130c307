"""Files with random changes: each reader returns something that can be used, or raises an error of this project.

Longer runs: `FILES=100000 python -m pytest tests/hostile/test_mutations.py`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import delegate
from delegate.config import load_config
from delegate.partitioner.saved import SavedPlan
from delegate.placement.lock import Lock
from delegate.report import Report
from delegate.report.page import page
from delegate.runtime.arguments import load_arrays
from tests.support.mutations import Reader, check_bytes, check_values, errors
from tests.support.reports import report
from tests.support.sources import ROOT


def use_report(text: str) -> None:
    forged = Report.from_json(text)
    assert [str(forged), str(forged.nodes_table()), page([forged.page_data("x")]), forged.to_json()]


def use_configuration(text: str) -> None:
    Path("x.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
    load_config("x.yaml")


def use_arrays(content: bytes) -> None:
    Path("x.npy").write_bytes(content)
    with errors(OSError, ValueError):
        load_arrays("x.npy")


@cache
def program() -> delegate.CompiledProgram:
    exported = torch.export.export(torch.nn.Linear(4, 4).eval(), (torch.rand(2, 4),))
    return delegate.to_backend(exported, "xnnpack", cache=False)


def lock() -> Any:
    written = Lock(
        {"forward": "x"}, "here", {"xnnpack": "1"}, program().plan, measured={p.method: p for p in report().placements}
    )
    return yaml.safe_load(written.to_yaml())


def archive(*, compressed: bool) -> bytes:
    buffer = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(buffer, x=np.ones((2, 4), np.float32), y=np.zeros(3))
    return buffer.getvalue()


def array() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.ones((2, 4), np.float32))
    return buffer.getvalue()


STRUCTURES: dict[str, tuple[Callable[[], Any], Callable[[Any], str], Reader]] = {  # name -> value, its text, reader
    "report": (lambda: json.loads(report().to_json()), json.dumps, use_report),
    "plan": (lambda: json.loads(program().plan.to_json()), json.dumps, lambda text: str(SavedPlan.from_json(text))),
    "lock": (lock, yaml.safe_dump, lambda text: Lock.from_yaml(text).to_yaml()),
    "configuration": (
        lambda: yaml.safe_load((ROOT / "configs" / "mobile.yaml").read_text()), yaml.safe_dump, use_configuration,
    ),
}  # fmt: skip
CONTENTS: dict[str, tuple[Callable[[], bytes], Reader]] = {  # name -> bytes, reader
    "array": (array, use_arrays),
    "archive": (lambda: archive(compressed=False), use_arrays),
    "compressed archive": (lambda: archive(compressed=True), use_arrays),
    **{
        f"text of {name}": (
            lambda make=make, write=write: write(make()).encode(),
            lambda content, use=use: use(content.decode("utf-8", "replace")),
        )
        for name, (make, write, use) in STRUCTURES.items()
    },
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_values(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make, write, read = STRUCTURES[name]
    check_values(make(), write, read)


@pytest.mark.parametrize("name", CONTENTS)
def test_bytes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make, read = CONTENTS[name]
    check_bytes(make(), read)
