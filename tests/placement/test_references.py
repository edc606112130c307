"""The reference of `placement.accuracy`: the float program, also if the program is quantized before it is placed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import ExportedProgram, export

import delegate
from delegate.errors import AccuracyError
from tests.support.placing import FLOAT, X, config, decibels, model
from tests.support.quantized import settings_of

pytest.importorskip("torchao")
from delegate.quantization import quantize


@pytest.fixture(scope="module")
def small() -> ExportedProgram:
    """Return the program as a user has it who quantized it elsewhere."""
    return quantize(FLOAT, settings_of("xnnpack", "static_int8"), [X])


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
        assert ("but 70 dB is required" in plan.why) == (bound == 70)


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
        assert {"but 20 dB" in p.why for p in placement.plans} == {reference is other}


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
    with pytest.raises(AccuracyError, match=r"returns \d results.*its reference \d.*method forward.*lowered from"):
        delegate.to_backend(
            export(module, (X,)),
            config=config(20.0),
            verify=delegate.Verify(X, reference=export(reference, (X,))),
            cache=False,
        )
