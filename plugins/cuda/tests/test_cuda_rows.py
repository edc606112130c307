"""Every row of the backend cuda: run on the host's CPU by TVM against eager, and compiled for a GPU."""

from __future__ import annotations

import copy
import shutil

import pytest
import torch
from delegate_cuda.aot.operators import TABLE
from torch import nn

import delegate
from delegate.compiled import CompiledProgram
from delegate.verdict import Reason
from tests.support.lowering import relative_error

from .cases import ALL

pytest.importorskip("tvm_ffi", reason="TVM is not installed: pip install delegate-cuda")

WITHOUT_CASE = {
    "aten.add.Scalar", "aten.sub.Scalar", "aten.mul.Scalar", "aten.div.Scalar",  # exported as .Tensor with a number
    "aten.native_layer_norm.default", "aten._adaptive_avg_pool2d.default",  # what the kept operators decompose to
}  # fmt: skip

TOLERANCES = {  # near what is measured
    "float32": 1e-6,
    "float16": 4 * torch.finfo(torch.float16).eps,  # 1.7 steps are measured
    "bfloat16": 4 * torch.finfo(torch.bfloat16).eps,  # 2.5 steps are measured
}


class Every(nn.Module):
    """Every case, one after the other; a step after each, so that none is only a view of its inputs."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.functions = [copy.deepcopy(function) for _, (function, _) in ALL]  # other tests share their weights
        self.parts = nn.ModuleList(f for f in self.functions if isinstance(f, nn.Module))
        self.to(dtype)

    def forward(self, *inputs: torch.Tensor) -> list[list[torch.Tensor]]:
        given = iter(inputs)
        results = []
        for function, (_, (_, example)) in zip(self.functions, ALL, strict=True):
            made = function(*(next(given) for _ in example))
            parts = made if isinstance(made, tuple | list) else [made]
            results.append([p.neg() if p.is_floating_point() else p for p in parts])
        return results


def inputs(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    return tuple(x.clone().to(dtype if x.is_floating_point() else x.dtype) for _, (_, example) in ALL for x in example)


def lower_model(module: nn.Module, args: tuple[torch.Tensor, ...], arch: str) -> CompiledProgram:
    options = {"arch": arch}
    return delegate.to_backend(
        torch.export.export(module.eval(), args), config={"backends": [{"name": "cuda", "options": options}]}
    )


def left_portable(program: CompiledProgram) -> set[str]:
    """What stays with kernels, beyond the views at a border that the runtime does for nothing."""
    portable = (n for n in program.report.nodes if n.backend == "portable")
    return {n.op for n in portable if n.verdicts["cuda"].reason is not Reason.BORDER}


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES.items())
def test_every_row_is_right(dtype, tolerance):
    module, args = Every(getattr(torch, dtype)).eval(), inputs(getattr(torch, dtype))
    program = lower_model(module, args, "llvm")
    assert left_portable(program) == set()
    with torch.no_grad():
        expected, actual = module(*args), program(*args)
    wrong = {}
    for (op, _), wanted, got in zip(ALL, expected, actual, strict=True):
        assert [g.dtype for g in got] == [w.dtype for w in wanted], op
        error = max(relative_error(g, w) for g, w in zip(got, wanted, strict=True))
        if error > tolerance:
            wrong[op] = error
    assert not wrong


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc here")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_row_compiles_for_a_gpu(dtype):
    program = lower_model(Every(getattr(torch, dtype)), inputs(getattr(torch, dtype)), "sm_80")
    assert left_portable(program) == set()


def test_every_row_has_a_case():
    assert {row.op for row in TABLE} - {op for op, _ in ALL} == WITHOUT_CASE
