"""The reference of `placement.accuracy`: the float program, also if the program is quantized before it is placed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import ExportedProgram, export

import delegate
from delegate.accuracy.figures import difference
from delegate.errors import AccuracyError

pytest.importorskip("torchao")
from delegate.quantization import Settings, quantize

SIZES = {"policy": "measured", "objective": "file size", "budget": 60}  # what other work on the cores does not disturb


def model(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)).eval()


X = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))
FLOAT = export(model(), (X,))


def config(bound: float | None, **sections: Any) -> dict[str, Any]:
    placement = SIZES if bound is None else {**SIZES, "accuracy": {"sqnr_db": bound}}
    return {"backends": ["xnnpack:one", "xnnpack:two"], "placement": placement, **sections}


def decibels(actual: torch.Tensor, expected: torch.Tensor) -> float:
    figures = difference([actual], [expected])
    assert figures is not None
    return figures.sqnr_db


@pytest.fixture(scope="module")
def small() -> ExportedProgram:
    """Return the program as a user has it who quantized it elsewhere."""
    return quantize(FLOAT, Settings("xnnpack", "static_int8"), [X])


@pytest.fixture(scope="module")
def static(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return a section `quantization`, which has the same program made here."""
    path = tmp_path_factory.mktemp("data") / "data.npz"
    np.savez(path, X.numpy())
    return {"scheme": "static_int8", "backend": "xnnpack:one", "calibration": str(path)}


@pytest.mark.parametrize("bound", [20.0, 70.0])
@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_a_bound_is_for_results_against_the_float_program(
    small: ExportedProgram, static: dict[str, str], where: str, bound: float
) -> None:
    if where == "here":
        program = delegate.to_backend(FLOAT, config=config(bound, quantization=static), cache=False)
    else:
        program = delegate.to_backend(small, config=config(bound), cache=False, verify=delegate.Verify(reference=FLOAT))
    (placement,) = program.report.placements
    noise = decibels(program(X), model()(X))
    assert 20 < noise < 70
    assert placement.plans
    for plan in placement.plans:
        assert plan.sqnr_db == pytest.approx(noise, abs=1)
        assert ("where 70 dB is asked" in plan.why) == (bound == 70)


def test_without_a_float_program_the_quantized_one_is_the_reference(small: ExportedProgram) -> None:
    program = delegate.to_backend(small, config=config(70.0), cache=False)
    assert {plan.sqnr_db > 100 and not plan.why for plan in program.report.placements[0].plans} == {True}


def test_without_a_bound_results_are_those_of_the_program_itself(static: dict[str, str]) -> None:
    """Else a backend that is less accurate than the quantized program would not be found."""
    program = delegate.to_backend(FLOAT, config=config(None, quantization=static), cache=False)
    assert {plan.sqnr_db > 100 and not plan.why for plan in program.report.placements[0].plans} == {True}


def test_a_kept_choice_is_of_its_reference(
    small: ExportedProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELEGATE_CACHE", str(tmp_path))
    other = export(model(1), (X,))
    for reference, is_known in ((FLOAT, False), (FLOAT, True), (other, False), (other, True)):
        program = delegate.to_backend(small, config=config(20.0), verify=delegate.Verify(reference=reference))
        (placement,) = program.report.placements
        assert (placement.spent == 0) == is_known
        assert {"where 20 dB" in p.why for p in placement.plans} == {reference is other}


class Two(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, x


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return x * self.count


@pytest.mark.parametrize(("module", "reference"), [(nn.ReLU(), Two()), (Counting(), nn.ReLU())])
def test_a_reference_of_another_number_of_results_is_an_error(module: nn.Module, reference: nn.Module) -> None:
    with pytest.raises(AccuracyError, match=r"gives \d results.*its reference \d.*method forward.*made of"):
        delegate.to_backend(
            export(module, (X,)),
            config=config(20.0),
            verify=delegate.Verify(X, reference=export(reference, (X,))),
            cache=False,
        )
