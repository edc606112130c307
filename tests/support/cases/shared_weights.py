"""Layers whose weights two methods of one program share, also in its file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

import delegate
from delegate.program.model import Program
from delegate.testing import assert_same
from tests.support.lowering import assert_runs

X = torch.randn(3, 64)


def layers() -> nn.Module:
    """Return layers with weights large enough to lie outside of a graph."""
    return nn.Sequential(nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 8)).eval()


def changed(program: Program, **specs: Any) -> Program:
    """Return a program with other compile specs of its only delegate."""
    (spec,) = program.delegates
    return program._replace(delegates=(spec._replace(compile_specs={**spec.compile_specs, **specs}),))


def check_file_size(backend: str, folder: Path) -> None:
    """Assert that a second method of the same layers adds no weights to the file, and that both methods are right."""
    module = layers()
    one = torch.export.export(module, (X,))
    two = torch.export.export(nn.Sequential(module, nn.Tanh()), (X[:1],))
    program = delegate.to_backend({"one": one, "two": two}, backend)
    assert_runs(program, backend)
    program.save(folder / "two.dlg")
    delegate.to_backend(one, backend).save(folder / "one.dlg")
    weights = sum(p.nbytes for p in module.parameters())
    assert (folder / "two.dlg").stat().st_size - (folder / "one.dlg").stat().st_size < weights / 4
    with delegate.load(folder / "two.dlg") as loaded, torch.no_grad():
        assert_same(loaded.method("one")(X.numpy()), module(X))
        assert_same(loaded.method("two")(X[:1].numpy()), module(X[:1]).tanh())
