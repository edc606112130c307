"""Weights lie beside the blob, so that a file holds once what methods share; older files have them in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import delegate
from delegate.errors import DelegateError
from delegate.program.file import serialize
from delegate.program.model import Program
from delegate.program.segments import align
from delegate.testing import assert_same

X = torch.randn(3, 64)


def lowered(module: nn.Module) -> delegate.DelegatedProgram:
    return delegate.to_backend(torch.export.export(module, (X,)), "onnxruntime")


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 8)).eval()


def changed(program: Program, **specs: Any) -> Program:
    (spec,) = program.delegates
    return program._replace(delegates=(spec._replace(compile_specs={**spec.compile_specs, **specs}),))


def test_two_methods_share_them(tmp_path: Path) -> None:
    module = layers()
    one = torch.export.export(module, (X,))
    two = torch.export.export(nn.Sequential(module, nn.Tanh()), (X[:1],))
    program = delegate.to_backend({"one": one, "two": two}, "onnxruntime")
    assert [n for n in program.report.nodes if n.backend != "onnxruntime"] == []
    program.save(tmp_path / "two.dlg")
    delegate.to_backend(one, "onnxruntime").save(tmp_path / "one.dlg")
    weights = sum(p.nbytes for p in module.parameters())
    assert (tmp_path / "two.dlg").stat().st_size - (tmp_path / "one.dlg").stat().st_size < weights / 4
    with delegate.load(tmp_path / "two.dlg") as loaded, torch.no_grad():
        assert_same(loaded.method("one")(X.numpy()), module(X))
        assert_same(loaded.method("two")(X[:1].numpy()), module(X[:1]).tanh())


def test_a_file_with_weights_in_the_blob() -> None:
    module = layers()
    program = lowered(module).program
    (spec,) = program.delegates
    graph = bytes(program.segments[spec.segment])
    blob, rows = bytearray(graph), []
    for name, dtype, shape, place in spec.compile_specs["weights"]:
        data = bytes(program.segments[spec.data[place]])
        blob += bytes(align(len(blob)) - len(blob))
        rows.append([name, dtype, shape, len(blob) - align(len(graph)), len(data)])
        blob += data
    assert rows
    program = changed(program, graph=len(graph), weights=rows)
    segments = tuple(bytes(blob) if i == spec.segment else s for i, s in enumerate(program.segments))
    old = program._replace(segments=segments, delegates=(program.delegates[0]._replace(data=()),))
    with delegate.load(serialize(old)) as loaded, torch.no_grad():
        assert_same(loaded(X.numpy()), module(X))


@pytest.mark.parametrize("place", [-1, 99, 1.5, "0", None, [0]])
def test_a_weight_that_is_not_there(place: object) -> None:
    program = lowered(layers()).program
    (spec,) = program.delegates
    name, dtype, shape, _ = spec.compile_specs["weights"][0]
    with pytest.raises(DelegateError, match="onnxruntime"):
        delegate.load(serialize(changed(program, weights=[[name, dtype, shape, place]])))
