"""Products of groups of matrices, as in mixtures of experts: the kernel as torch's, and a router with experts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from delegate.errors import KernelError
from tests.support import zoo
from tests.support.kernels import check, run, sample
from tests.support.lowering import answers, assert_same, compiled
from tests.support.models import MODELS

grouped_mm = torch.ops.aten._grouped_mm.default
DTYPES = {torch.float32: 2e-4, torch.float16: 4e-3, torch.bfloat16: 2e-2}  # with tolerances: sums may cancel
# Torch requires strides of whole 16 bytes, so all sizes are multiples of 8.
ROWS, INNER, COLUMNS, GROUPS = 16, 24, 8, 4
ENDS = {
    "all rows": [3, 4, 11, 16],
    "groups without rows": [0, 5, 5, 16],
    "one group": [16, 16, 16, 16],
    "the last": [0, 0, 0, 16],
}
SHAPES = {  # of both sides, and the result's dimension of groups: rows, columns, or none
    "rows": ((ROWS, INNER), (GROUPS, INNER, COLUMNS)),
    "columns": ((GROUPS, COLUMNS, INNER), (INNER, ROWS)),
    "sums": ((COLUMNS, ROWS), (ROWS, INNER)),
}


def layouts(x: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensor with rows, and with columns, next to each other in memory; and a part of a larger one."""
    larger = torch.cat([x, x], -1)
    return [x, x.mT.contiguous().mT, larger[..., : x.shape[-1]]]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("form", SHAPES)
def test_groups(form, ends, dtype):
    shapes, bounds = SHAPES[form], torch.tensor(ends, dtype=torch.int32)
    for left in layouts(sample(*shapes[0], dtype=dtype)):
        for right in layouts(sample(*shapes[1], dtype=dtype, seed=1)):
            check(grouped_mm, left, right, bounds, rtol=DTYPES[dtype])
    check(grouped_mm, left, right, bounds, out_dtype=dtype, rtol=DTYPES[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_batches(dtype):
    left, right = sample(GROUPS, ROWS, INNER, dtype=dtype), sample(GROUPS, INNER, COLUMNS, dtype=dtype, seed=1)
    check(grouped_mm, left, right, rtol=DTYPES[dtype])
    check(grouped_mm, left, right.mT.contiguous().mT, rtol=DTYPES[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("form", "rest"), [("rows", (slice(11, None),)), ("columns", (..., slice(11, None)))])
def test_what_belongs_to_no_group_is_zero(form, rest, dtype):
    """Torch leaves it as it was in memory."""
    left, right = (sample(*shape, dtype=dtype) for shape in SHAPES[form])
    bounds = torch.tensor([2, 2, 7, 11], dtype=torch.int32)
    expected = grouped_mm(left, right, bounds)
    expected[rest] = 0
    (result,) = run(grouped_mm, left, right, bounds, expected=(expected,))
    assert_same(result, expected, 1e-2)
    assert not result[rest].any()


def test_sums_of_some_rows():
    left, right = (sample(*shape) for shape in SHAPES["sums"])
    check(grouped_mm, left, right, torch.tensor([0, 5, 5, 11], dtype=torch.int32), rtol=2e-4)


def test_no_rows_at_all():
    check(grouped_mm, sample(0, INNER), sample(*SHAPES["rows"][1]), torch.zeros(GROUPS, dtype=torch.int32))


@pytest.mark.parametrize("ends", [[3, 2, 11, 16], [-1, 2, 11, 16], [3, 4, 11, 17]], ids=str)
@pytest.mark.parametrize("form", SHAPES)
def test_ends_that_descend_or_exceed_the_size_are_errors(form, ends):
    left, right = (sample(*shape) for shape in SHAPES[form])
    bounds = torch.tensor(ends, dtype=torch.int32)
    with pytest.raises(KernelError, match="but the size is 16"):
        run(grouped_mm, left, right, bounds, expected=(grouped_mm(left, right, bounds),))


class Experts(nn.Module):
    """Each token goes to one of the experts, in bfloat16, the only dtype that torch exports."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.router = nn.Linear(INNER, GROUPS)
        self.weight = nn.Parameter(torch.randn(GROUPS, INNER, COLUMNS) / 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        experts, order = torch.sort(self.router(x).argmax(-1), stable=True)
        ends = torch.searchsorted(experts, torch.arange(1, GROUPS + 1), out_int32=True)
        result = torch._grouped_mm(x[order], self.weight, ends)
        return result[torch.argsort(order)].relu()


ROUTING = {"argmax.default": 1, "sort.stable": 1, "searchsorted.Tensor": 1, "sort.default": 1, "index.Tensor": 2}


@pytest.mark.parametrize("backend", [(), "xnnpack"], ids=str)
def test_experts_with_dynamic_tokens(backend):
    model, example = Experts().to(torch.bfloat16).eval(), sample(9, INNER, dtype=torch.bfloat16)
    dynamic = {"x": {0: torch.export.Dim("tokens", min=1)}}
    portable = {f"aten.{name}": count for name, count in ROUTING.items()} | {"aten._grouped_mm.default": 1}
    program = compiled(
        model, (example,), backends=backend, dynamic_shapes=dynamic, portable=portable if backend else None
    )
    if backend:
        assert answers(program, backend)["runs"] == 2
    for count in (1, 9, 40):
        x = sample(count, INNER, dtype=torch.bfloat16, seed=count)
        assert_same(program(x), model(x), 2e-2)


class Logits(nn.Module):
    """A language model as a function of its tokens."""

    def __init__(self, name: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = MODELS[name][0]().to(torch.bfloat16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids).logits


@pytest.mark.parametrize("name", ["mixtral", "qwen2_moe", "olmoe"])
def test_mixtures_of_experts_of_transformers(name):
    with zoo.libraries():
        model, ids = Logits(name).eval(), torch.arange(8)[None] * 5
        program = compiled(model, (ids,))
        assert_same(program(ids), model(ids), 2e-2)
    assert any(node.op == "aten._grouped_mm.default" for node in program.report.nodes)
