"""Errors of torch.export in one line: the reason, the user's own line and the remedy; torch's error is the cause."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import delegate
from delegate.errors import ExportError

X = torch.ones(2, 4)


class Branch(torch.nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x + 1
        return x - 1


class Helper(torch.nn.Module):
    def forward(self, x):
        return shifted(x)


def shifted(x):
    return x + torch.from_numpy(np.sin(x.numpy()))


class Shapes(torch.nn.Module):
    def forward(self, x):
        return x @ torch.ones(5, 3)


class Aliased(torch.nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, same, same, (x,))


def same(x):
    return x


class Two(torch.nn.Module):
    def forward(self, x, y):
        return x + y


@pytest.mark.parametrize(
    ("module", "reason", "place", "remedy"),
    [
        (Branch(), "depends on the content of a tensor", "in forward: `if x.sum() > 0:`", "torch.where or torch.cond"),
        (Helper(), "numpy", "in shifted: `return x + torch.from_numpy(np.sin(x.numpy()))`", "change this line"),
        (Shapes(), "a and b must have same reduction dim", "`return x @ torch.ones(5, 3)`", "change this line"),
        (
            Aliased(),
            "Higher order ops do not support aliasing",
            "in forward: `return torch.cond(",
            "return input.clone()",
        ),
        (Two(), "missing a required argument: 'y'", "", "the example inputs"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, torch.nn.Module) else "",
)
def test_the_reason_and_the_line(
    module: torch.nn.Module, reason: str, place: str, remedy: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ExportError) as caught:
        delegate.export(module.eval(), (X,))
    error = caught.value
    assert error.what.startswith(f"torch.export failed on {type(module).__name__}: ")
    assert reason in error.what
    assert place in error.where
    assert ("test_export_errors.py:" in error.where) == bool(place)
    assert remedy in error.remedy
    assert "`--debug`" in error.remedy
    assert "\n" not in str(error)
    assert len(str(error)) < 500
    assert error.__cause__ is not None
    assert capfd.readouterr() == ("", ""), "torch prints the graph"
