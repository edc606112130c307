"""Warnings name the line of the user's call, wherever in the project they arise."""

from __future__ import annotations

import ast
import inspect
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import delegate
from tests.support.sources import ROOT

PRODUCT = [*Path(delegate.__file__).parent.rglob("*.py"), *ROOT.glob("plugins/*/delegate_*/**/*.py")]
HELPER = "user_warnings.py"  # the module that all others warn by


def _training() -> torch.export.ExportedProgram:
    return torch.export.export(nn.Sequential(nn.Linear(4, 4), nn.Dropout()).train(), (torch.ones(2, 4),))


def _export(module: nn.Module) -> torch.export.ExportedProgram:
    return torch.export.export(module.eval(), (torch.ones(2, 4),))


class _Cumulative(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(x, 0)


# What warns -> words of the warning. Each calls a public function from this file.
WARNING: dict[str, tuple[Callable[[], object], str]] = {
    "to_backend of training": (lambda: delegate.to_backend(_training(), "xnnpack"), "training mode"),
    "explain of training": (lambda: delegate.explain(_training(), "xnnpack"), "training mode"),
    "portable nodes": (
        lambda: delegate.to_backend(_export(_Cumulative()), "xnnpack", config={"policy": {"portable": "warn"}}),
        "portable",
    ),
    "nothing to quantize": (
        lambda: delegate.to_backend(_export(nn.ReLU()), "xnnpack", config={"quantization": {"scheme": "dynamic_int8"}}),
        "no operator",
    ),
}


@pytest.mark.parametrize("name", WARNING)
def test_the_line_is_the_users(name: str) -> None:
    call, words = WARNING[name]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    records = [record for record in caught if words in str(record.message)]
    assert records, [str(record.message) for record in caught]
    lines, first = inspect.getsourcelines(call)
    for record in records:
        assert record.filename == __file__
        assert first <= record.lineno < first + len(lines)


@pytest.mark.extended
def test_no_other_module_calls_warnings() -> None:
    calls = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in PRODUCT
        if file.name != HELPER
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("warnings.warn", "warnings.warn_explicit")
    ]
    assert not calls
