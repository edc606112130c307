"""Replayed lockfiles: the same lock gives the same bytes, here and in another process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import nn
from torch.export import ExportedProgram

import delegate
from delegate.errors import PartitionError
from delegate.partitioner.saved import SavedPlan
from delegate.placement.lock import Lock
from delegate.program.instructions import strip_debug_info
from tests.support import vector_backend
from tests.support.replays import (
    MODELS,
    Calling,
    X,
    check_measured,
    check_preferred,
    export,
    replay,
    sha256,
)

WIDE = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
PLACEMENTS: dict[str, list[str] | None] = {
    "portable": [],
    "xnnpack": ["xnnpack"],
    "dsp": ["dsp"],
    "both": ["dsp", "xnnpack"],
    "default": None,
}
QUICK = {("folded", "xnnpack"), ("branches", "xnnpack"), ("several", "xnnpack")}
TABLE = [
    pytest.param(name, place, marks=() if (name, place) in QUICK else pytest.mark.slow, id=f"{name} on {place}")
    for name in (*MODELS, "several")
    for place in PLACEMENTS
]


@pytest.mark.usefixtures("few_rounds")
@pytest.mark.parametrize(("name", "place"), TABLE)
def test_the_replay_of_a_measured_program_has_its_bytes(name: str, place: str, tmp_path: Path) -> None:
    if place != "portable":
        check_measured(name, PLACEMENTS[place], tmp_path)


@pytest.mark.parametrize(("name", "place"), TABLE)
def test_the_replay_of_a_preference_has_its_bytes(name: str, place: str, tmp_path: Path) -> None:
    check_preferred(name, PLACEMENTS[place], tmp_path)


REPLAY = """
import hashlib, sys, torch, delegate
from delegate.program.file import assemble
model = torch.export.load(sys.argv[1])
program = delegate.to_backend(model, "xnnpack", placement=delegate.Replay(sys.argv[2]), cache=False).program
print(hashlib.sha256(b"".join(map(bytes, assemble(program)))).hexdigest())
"""


@pytest.mark.extended
@pytest.mark.usefixtures("few_rounds")
def test_two_processes_replay_the_same_bytes(tmp_path) -> None:
    """Whatever the order of sets is there, and whatever was lowered before."""
    model, lock = export("folded"), tmp_path / "delegate.lock"
    torch.export.save(model, tmp_path / "model.pt2")
    model = torch.export.load(tmp_path / "model.pt2")
    placement = delegate.Measured(budget=20, lockfile=lock)
    first = delegate.to_backend(model, "xnnpack", placement=placement, cache=False).program
    shas = {sha256(first)}
    for seed in ("1", "2"):
        command = [sys.executable, "-c", REPLAY, str(tmp_path / "model.pt2"), str(lock)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONHASHSEED": seed}
        )
        assert done.returncode == 0, done.stderr
        shas.add(done.stdout.strip())
    assert len(shas) == 1


def export_layers() -> ExportedProgram:
    torch.manual_seed(1)
    layers = nn.Linear(64, 128), nn.Linear(128, 64)
    module = Calling(lambda layers, x: layers[1](layers[0](x).relu()) + torch.linspace(-1, 1, 64), *layers)
    with torch.no_grad():
        return torch.export.export(module.eval(), (WIDE,))


def candidate(scheme: str, **options: Any) -> Mapping[str, Any]:
    quantized = [{"name": "xnnpack", "quantization": {"scheme": scheme, **options}}]
    return {"placement": {"policy": "measured", "candidates": quantized, "accuracy": {"sqnr_db": 5}}}


AUTO = {
    "placement": {"policy": "measured", "objective": "file size"},
    "quantization": {"scheme": "auto", "sqnr_db": 30},
}
SCHEMES: dict[str, Mapping[str, Any]] = {
    "dynamic_int8": candidate("dynamic_int8"),
    "dynamic_int4": candidate("dynamic_int4"),
    "static_int8": candidate("static_int8", calibration="data.npz", outliers=0.000123456789),
    "on top of another one": {**candidate("dynamic_int8"), "quantization": {"scheme": "weight_only_int8"}},
    "configured": {"placement": {"policy": "measured"}, "quantization": {"scheme": "dynamic_int8"}},
    "auto": AUTO,
}


@pytest.mark.usefixtures("few_rounds")
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "static_int8" else pytest.mark.slow) for n in SCHEMES]
)
def test_a_quantized_program_is_replayed_to_the_byte(name, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("data.npz", WIDE.numpy())
    model, lock, config = export_layers(), tmp_path / "delegate.lock", {"backends": ["xnnpack"], **SCHEMES[name]}
    placement = delegate.Measured(budget=40, lockfile=lock)
    first = delegate.to_backend(model, config=config, placement=placement, cache=False).program
    assert sha256(replay(model, None, lock, config=config)) == sha256(first)


def test_layers_that_a_bound_keeps_in_float_are_replayed_without_its_inputs(tmp_path) -> None:
    model, lock = export_layers(), tmp_path / "delegate.lock"
    config = {
        "backends": ["xnnpack"],
        "quantization": {"scheme": "dynamic_int4"},
        "verify": {"sqnr_db": 30, "on_failure": "move"},
    }
    placement = delegate.ByPreference(lockfile=lock)
    first = delegate.to_backend(model, config=config, placement=placement, verify=(WIDE,), cache=False)
    assert any("in float, so that" in note for note in first.report.notes)
    again = replay(model, "xnnpack", lock)
    assert sha256(strip_debug_info(again)) == sha256(strip_debug_info(first.program))


@pytest.mark.usefixtures("vector")
def test_partitions_are_numbered_in_one_order_although_one_method_is_planned_again(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(vector_backend.OPERATORS, "aten.tanh.default", lambda x: np.float32(1.05) * np.tanh(x))

    class Steps(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = (((x + 1) * 0.5 + 2) * 0.5 * 0.25).tanh()
            return -x * 0.5 + 1

    lock, config = (
        tmp_path / "delegate.lock",
        {"backends": ["vector"], "verify": {"on_failure": "move", "sqnr_db": 100}},
    )
    model = {name: torch.export.export(Steps().eval(), (X,)) for name in "abc"}
    placement = delegate.ByPreference(lockfile=lock)
    inputs = {"a": (X,), "b": (0 * X,), "c": (X,)}  # "b" keeps its only partition: it is exact on these
    first = delegate.to_backend(model, config=config, placement=placement, verify=inputs, cache=False)
    names = [(p.method, p.name) for p in first.report.partitions]
    assert len(names) > len(model), "nothing was moved"
    assert [name for _, name in names] == [f"vector_{number}" for number in range(len(names))]
    assert sha256(strip_debug_info(replay(model, "vector", lock))) == sha256(strip_debug_info(first.program))


def test_an_edited_round_is_an_error(tmp_path) -> None:
    """A lock that decomposes a node that the model does not have, or that cannot be decomposed, names it."""
    model, lock = export("partly decomposed"), tmp_path / "delegate.lock"
    delegate.to_backend(model, "xnnpack", placement=delegate.ByPreference(lockfile=lock), cache=False)
    data = yaml.safe_load(lock.read_text())
    for round_, message in (
        ({"forward": ["nowhere:aten.celu.default#0"]}, "no node nowhere:aten.celu.default#0 to decompose"),
        ({"backward": ["x"]}, "backward has no node x"),
    ):
        edited = {**data, "plan": {**data["plan"], "decompositions": [round_]}}
        lock.write_text(yaml.safe_dump(edited))
        with pytest.raises(PartitionError, match=message):
            delegate.to_backend(model, "xnnpack", placement=delegate.Replay(lock), cache=False)


def test_a_lock_keeps_all_digits_of_what_is_no_measurement() -> None:
    section = {"scheme": "static_int8", "outliers": 0.000123456789}
    lock = Lock({"forward": "0"}, "here", {}, SavedPlan(()), {"xnnpack": {"share": 0.123456789}}, {"forward": section})
    again = Lock.from_yaml(lock.to_yaml())
    assert (again.quantization, again.options) == (lock.quantization, lock.options)
