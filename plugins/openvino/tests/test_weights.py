"""Large constants lie beside the IR, so that a file holds once what methods share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from delegate_openvino.weights import large_constants
from torch import nn

import delegate
from delegate.errors import BackendFailed
from delegate.program.file import serialize
from delegate.program.model import Program
from delegate.testing import assert_same
from tests.support.cases.equal_weights import CASES, Each
from tests.support.cases.shared_weights import X, changed, check_file_size, layers
from tests.support.lowering import assert_runs
from tests.support.sampling import every


def lower_model(module: nn.Module) -> Program:
    return delegate.to_backend(torch.export.export(module, (X,)), "openvino").program


def answer(program: Program) -> torch.Tensor:
    with delegate.load(serialize(program)) as loaded:
        return torch.from_numpy(loaded(X.numpy()).copy())


def test_two_methods_share_them(tmp_path: Path) -> None:
    check_file_size("openvino", tmp_path)


@pytest.mark.parametrize(
    "starts", [[], [0], [-64, 76800], [76800, 0], [8, 76800], [0, 2**62], [0, 0], ["0", 1], [0.0, 1], None, 5]
)
def test_places_that_are_none(starts: object) -> None:
    program = lower_model(layers())
    assert len(program.delegates[0].data) == 2
    with pytest.raises(BackendFailed, match="openvino"):
        answer(changed(program, weights=starts))


def test_what_bodies_of_branches_read_stays() -> None:
    layer = '<layer type="{}"><data offset="{}" size="5000"/>{}</layer>'
    body = "<{0}><layers>{1}</layers></{0}>"
    branches = "".join(
        body.format(f"{arm}_body", layer.format("Const", at, "")) for arm, at in (("then", 0), ("else", 9000))
    )
    top = "".join(layer.format("Const", at, "") for at in (0, 20000)) + layer.format("If", 0, branches)
    assert large_constants(f"<net><layers>{top}</layers></net>".encode()) == [(20000, 5000)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", every(2, CASES))
def test_halves(case: str, dtype: torch.dtype) -> None:
    uses, weight, x = CASES[case]
    module = Each(list(uses.values()), weight.to(dtype)).eval()
    with torch.no_grad():
        program = delegate.to_backend(torch.export.export(module, (x.to(dtype),)), "openvino")
        results, expected = program(x.to(dtype)), module(x.to(dtype))
    assert_runs(program, "openvino", {"aten._to_copy.default": 1} if "matrix" in case else {})  # a cast to integers
    assert_same(
        dict(zip(uses, results, strict=True)), dict(zip(uses, expected, strict=True)), 2 * torch.finfo(dtype).eps
    )
