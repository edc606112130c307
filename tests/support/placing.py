"""Small models to place: in segments, and with a reference in floats."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import export

from delegate.accuracy.figures import difference
from delegate.placement.runtime.elimination import EliminationTest, Record, fixed_rounds, measure_rounds
from delegate.placement.runtime.trials import ProgramRunner, Trial
from delegate.program.model import Program

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
def static(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return a section `quantization`, which has the same program made here."""
    path = tmp_path_factory.mktemp("data") / "data.npz"
    np.savez(path, X.numpy())
    return {"scheme": "static_int8", "backend": "xnnpack:one", "calibration": str(path)}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the pause between the two measurements of a placement."""
    monkeypatch.setattr("delegate.placement.placer._PAUSE", 0.0)


@pytest.fixture
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """End measurements after eight rounds, which all count, so that no budget depends on the machine's speed."""
    monkeypatch.setattr(EliminationTest.__init__, "__defaults__", ((), 8))
    monkeypatch.setattr("delegate.placement.runtime.elimination._MORE", math.inf)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Looping(nn.Module):
    """Control flow between two layers, and two results of one operator."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.cond(x.sum() > 0, lambda a: a.relu() + 1, lambda a: a - 1, (self.first(x),))
        left, right = y.split(4, 1)
        return self.last(left) + right.topk(4).values


def killed_midway(factory: Any, program: Program, kill: Callable[[Any], None]) -> Record:
    """Return the record of the program that is killed after two rounds, and check the four rounds of the other one."""
    runners: list[ProgramRunner] = []

    class Watching:
        def start(self, trial: Trial) -> ProgramRunner:
            runners.append(factory.start(trial))
            return runners[-1]

    def go_on(records: Mapping[str, Record]) -> Any:
        if len(records["a"].rounds) == 2:
            kill(runners[0])
        return fixed_rounds(4)(records)

    records = measure_rounds([Trial(n, program, "forward") for n in "ab"], Watching(), go_on, lambda: True)
    assert len(records["a"].rounds) == 2
    assert (len(records["b"].rounds), records["b"].failure) == (4, "")
    return records["a"]
