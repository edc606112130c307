"""Casts and signs of the built-in backends, with the casts that each is expected to refuse."""

from __future__ import annotations

import pytest
import torch

from delegate.testing import assert_same
from tests.support.availability import require
from tests.support.cases.casts import DTYPES, SIGNS, check_signs, lowered, names, taken
from tests.support.sampling import every

# Backend -> dtype -> the dtypes that the backend casts it to itself; all other casts are refused.
TAKEN = {
    "xnnpack": {torch.float16: "float32", torch.bfloat16: "float32"},
    "cuda": {
        torch.float32: "bfloat16 bool float16 int32 int64",
        torch.float16: "bfloat16 bool float32 int32 int64",
        torch.bfloat16: "bool float16 float32 int32 int64",
        torch.int64: "bfloat16 bool float16 float32 int32",
        torch.int32: "bfloat16 bool float16 float32 int64",
        torch.bool: "bfloat16 float16 float32 int32 int64",
    },
    "portable": {d: " ".join(str(o).removeprefix("torch.") for o in DTYPES if o is not d) for d in DTYPES},
}


@pytest.mark.parametrize("dtype", every(3, DTYPES), ids=str)
@pytest.mark.parametrize("backend", TAKEN)
def test_casts(backend, dtype):
    require(backend)
    assert taken(backend, dtype) == names(TAKEN[backend].get(dtype, ""))


@pytest.mark.parametrize("name", [*every(3, SIGNS), "all"])
@pytest.mark.parametrize("backend", ["xnnpack", "cuda", "webgpu", "portable"])
def test_signs(backend, name):
    require(backend)
    check_signs(backend, name)


# How many of the two casts, to another dtype and back, the DSP runs; none of other pairs.
ON_DSP = {
    (torch.float16, torch.int32): 1,
    (torch.float16, torch.bool): 2,
    (torch.float32, torch.bool): 1,
    (torch.int32, torch.bool): 2,
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int32], ids=str)
def test_the_dsp_drops_no_cast(dtype):
    """In float16 arithmetic, whose largest number is finite: rounding and truncation stay what they are."""
    require("dsp")
    x = torch.tensor([1.5, -1.5, 2.25, 1 + 2**-11, 0.0]).to(dtype)
    for to in (torch.float16, torch.bfloat16, torch.int32, torch.bool):
        if to is not dtype:
            program = lowered(lambda v, to=to: v.to(to).to(v.dtype), x, "dsp")
            assert sum(n.backend == "dsp" for n in program.report.nodes) == ON_DSP.get((dtype, to), 0)
            assert_same(program(x), x.to(to).to(dtype), 1e-6, each=True)


EXACT = {
    "float16": torch.tensor([1.0, 2.0, 3.0]).half(),
    "bool": torch.tensor([True, False, True]),
    "int32": torch.tensor([1, 2, 2**31 - 1], dtype=torch.int32),
}


@pytest.mark.parametrize("name", EXACT)
def test_a_cast_to_float32_that_leaves_the_dsp_is_exact(name):
    """The DSP's results were 1.0000001 for 1, and a ceil of them on kernels was 2."""
    require("dsp")

    def function(x):
        y = x.float()
        return torch.ceil(y.double()), y.reshape(1, 3), torch.tanh(y)

    program = lowered(function, EXACT[name], "dsp")
    actual, expected = program(EXACT[name]), function(EXACT[name])
    assert_same(actual[:2], expected[:2])
    assert_same(actual[2], expected[2], 1e-3)
    assert "dsp" in {n.backend for n in program.report.nodes if n.op == "aten.tanh.default"}


def test_the_dsp_says_what_it_loses():
    require("dsp")
    x = torch.tensor([[1.0, float("nan"), 2.0]])
    program = lowered(lambda v: v.amax(1), x, "dsp")
    assert any(note.startswith("nan: fast") for p in program.report.partitions for note in p.notes)
    exact = lowered(lambda v: v.amax(1), x, "dsp", {"nan": "exact"})
    assert "loses NaN" in str([n.verdicts for n in exact.report.nodes])
    assert exact(x).isnan().all()
