"""Libraries that refuse a region, and libraries that fail: to compile a region, to open an artifact, to run it."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from delegate_devtools import debug
from torch import nn

import delegate
from delegate.backend.aot import PreprocessResult, Region, RegionFailed
from delegate.edge.node import op_name
from delegate.errors import BackendFailed
from delegate.registry import default_registry
from tests.support import vector_backend
from tests.support.sources import ROOT
from tests.support.vector_backend import Vector

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
WHY = "no such plan"
CONFIG = {"backends": [{"name": "vector", "isolate": "none"}]}


class Chain(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ((-x).tanh() + x).tanh() * 2


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    default_registry.cache_clear()
    default_registry().register(vector_backend.INFO)
    yield
    default_registry.cache_clear()


def export_model() -> torch.export.ExportedProgram:
    return torch.export.export(Chain(), (X,))


def with_operators(region: Region, *operators: str) -> bool:
    return {op_name(n) for n in region.calls}.issuperset(operators)


def fail_at(monkeypatch: pytest.MonkeyPatch, error: Exception, *operators: str) -> None:
    """Let the backend raise an error for regions that have all of some operators."""
    preprocess = Vector.preprocess

    def fails(self: Vector, region: Region) -> PreprocessResult:
        if with_operators(region, *operators):
            raise error
        return preprocess(self, region)

    monkeypatch.setattr(Vector, "preprocess", fails)


def plant(monkeypatch: pytest.MonkeyPatch, when: str, how: str, *operators: str) -> None:
    """Let delegates of regions that have all of some operators fail: at "init" or at "execute"."""
    preprocess = Vector.preprocess

    def fail_in_region(self: Vector, region: Region) -> PreprocessResult:
        result = preprocess(self, region)
        if not with_operators(region, *operators):
            return result
        return PreprocessResult(json.dumps(json.loads(bytes(result.blob)) | {when: how}).encode(), result.compile_specs)

    monkeypatch.setattr(Vector, "preprocess", fail_in_region)


@pytest.mark.parametrize(
    ("error", "kind", "operators", "names"),
    [
        pytest.param(RegionFailed(WHY), "refusal", ["aten.add.Tensor"], ["add"], marks=pytest.mark.slow),
        (RegionFailed(WHY), "refusal", ["aten.neg.default", "aten.add.Tensor"], ["neg", "tanh", "add"]),
        (ZeroDivisionError(WHY), "failure", ["aten.add.Tensor"], ["add"]),
        (BackendFailed(WHY), "failure", ["aten.add.Tensor"], ["add"]),
    ],
)
def test_a_region_that_does_not_compile(
    error: Exception, kind: str, operators: list[str], names: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fail_at(monkeypatch, error, *operators)
    diagnosis = debug(export_model(), config=CONFIG, cache=False, output=tmp_path)
    (fault,) = diagnosis.faults
    assert (fault.kind.name, [node.name for node in fault.nodes], fault.size) == (kind, names, 5)
    found = {"refusal": ": no operator is wrong by itself, 1 refusal\n", "failure": ": 1 fault\n"}[kind]
    assert found in str(diagnosis)
    assert ("\n1. failure: " in str(diagnosis), "refus" in str(diagnosis)) == (kind == "failure", kind == "refusal")
    assert WHY in fault.kind.explanation
    assert fault.is_minimal
    assert fault.is_confirmed
    assert f"{names[0]}: portable" in fault.remedy
    folder = Path(fault.reproduction).parent
    saved = torch.export.load(folder / "region.pt2")
    assert {node.name for node in saved.graph.nodes}.issuperset(names)
    with zipfile.ZipFile(folder / "region.pt2") as archive:  # others read it: it has no folder of this machine
        assert not any(str(ROOT).encode() in archive.read(name) for name in archive.namelist())
    compile(Path(fault.reproduction).read_text(), fault.reproduction, "exec")


@pytest.mark.parametrize("error", [ZeroDivisionError(WHY), pytest.param(RegionFailed(WHY), marks=pytest.mark.slow)])
def test_a_region_that_does_not_compile_while_plans_are_measured(
    error: Exception, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fail_at(monkeypatch, error, "aten.add.Tensor")
    diagnosis = debug(
        export_model(), config=CONFIG, cache=False, placement=delegate.Measured(budget=0.1), output=tmp_path
    )
    (fault,) = diagnosis.faults
    kind = "refusal" if isinstance(error, RegionFailed) else "failure"
    assert (fault.kind.name, [node.name for node in fault.nodes]) == (kind, ["add"])
    assert len(list(tmp_path.iterdir())) == 1


def test_a_part_that_is_refused_does_not_show_the_failure_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Vector, region: Region) -> PreprocessResult:
        if with_operators(region, "aten.neg.default", "aten.add.Tensor"):
            raise ZeroDivisionError(WHY)
        raise RegionFailed("too small")

    monkeypatch.setattr(Vector, "preprocess", fails)
    failure, refusal, *_ = debug(export_model(), config=CONFIG, cache=False).faults
    assert (failure.kind.name, {"neg", "add"} <= {node.name for node in failure.nodes}) == ("failure", True)
    assert (refusal.kind.name, "too small" in refusal.kind.explanation) == ("refusal", True)


@pytest.mark.extended
def test_plans_that_measurement_drops_are_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "execute", "raise")
    config = {"backends": [*CONFIG["backends"], "xnnpack"]}
    diagnosis = debug(export_model(), config=config, cache=False, placement=delegate.Measured(budget=5))
    assert diagnosis.faults == ()
    assert any(note.startswith("plan vector of method forward was dropped: ") for note in diagnosis.notes)


@pytest.mark.slow
def test_a_compiler_whose_process_crashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(vector_backend.CRASHES, "aten.add.Tensor")
    config = {"backends": [{"name": "vector", "isolate": "compile"}]}
    (fault,) = debug(export_model(), config=config, cache=False).faults
    assert (fault.kind.name, [node.name for node in fault.nodes]) == ("failure", ["add"])
    assert "SIGABRT" in fault.kind.explanation


@pytest.mark.extended
@pytest.mark.parametrize(("when", "how"), [("init", "raise"), pytest.param("execute", "crash", marks=pytest.mark.slow)])
def test_an_artifact_that_is_not_opened_or_does_not_run(when: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, when, how, "aten.add.Tensor")
    diagnosis = debug(export_model(), config=CONFIG, cache=False)
    (fault,) = diagnosis.faults
    assert (fault.kind.name, [node.name for node in fault.nodes]) == ("failure", ["add"]), str(diagnosis)
    assert fault.is_confirmed
    note = {"init": "the program cannot be loaded", "execute": "the program failed"}[when]
    assert note in "; ".join(diagnosis.notes)
