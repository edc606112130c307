"""Sizes that depend on data at 0, 1 and more, in every placement, compared with eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import delegate
from delegate.errors import DelegateError, InputError
from tests.support.cases.few_elements import CASES, PRODUCERS, ROWS, WITH_ANY_ROWS, compare, masks
from tests.support.detection import torchvision
from tests.support.functions import NamedFunction
from tests.support.lowering import assert_same
from tests.support.sampling import every

PLACEMENTS: dict[str, Any] = {
    "portable": {"backends": []},
    "default": {},
    "xnnpack": {"backends": ["xnnpack"], "partitioning": {"min_partition_size": 0}},
}


# Cases and functions of which XNNPACK runs nothing: neither the mask nor what follows.
PORTABLE = {("mask", "sort"), ("mask", "topk"), ("mask", "gather"), ("mask", "scatter")}
PORTABLE_EXTREMES = {"max", "max of columns", "argmax", "mode", "median"}


def assert_placed(program: Any, placement: str) -> None:
    """Assert that kernels run everything without backends, and that a backend that is named runs something."""
    backends = {node.backend for node in program.report.nodes}
    if placement != "default":
        assert placement in backends, f"{placement}: {backends}"


@pytest.mark.parametrize(("case", "placement"), every(13, CASES, PLACEMENTS), ids=str)
def test_as_eager(case, placement):
    program = compare(case, PLACEMENTS[placement])
    assert_placed(program, "portable" if placement == "xnnpack" and case in PORTABLE else placement)


@pytest.mark.parametrize(("case", "placement"), every(19, WITH_ANY_ROWS, PLACEMENTS), ids=str)
def test_rows_of_any_number(case, placement):
    assert_placed(compare(case, PLACEMENTS[placement], dynamic=True), placement)


def lowered(function: Callable[..., Any], placement: str, runs: str = "") -> Any:
    """Lower a function of rows, and assert that `runs` runs something; the named backend if that is empty."""
    exported = torch.export.export(NamedFunction(function).eval(), (ROWS, *masks(3)))
    program = delegate.to_backend(exported, config=PLACEMENTS[placement])
    assert_placed(program, runs or placement)
    return program


def twice(x: Any, y: Any) -> Any:
    return torch.cat([PRODUCERS["nms"](x, y), PRODUCERS["nms"](x, y) * 2])


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_two_of_one_operator(placement):
    """Each has a size of its own, which torch does not know to be equal."""
    with torchvision():
        program = lowered(twice, placement)
        for mask in masks(0, 1, 5):
            assert_same(program(ROWS, mask), twice(ROWS, mask))


def at_least(rows: Any, count: int) -> Any:
    torch._check(rows.shape[0] >= count)
    return rows * 2


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize(("producer", "count"), [("mask", 2), ("nonzero", 1), ("nms", 3)])
def test_a_minimum_of_the_model_stays(producer, count, placement):
    with torchvision():
        program = lowered(lambda x, y: at_least(PRODUCERS[producer](x, y), count), placement)
        assert_same(program(ROWS, *masks(count)), PRODUCERS[producer](ROWS, *masks(count)) * 2)
        with pytest.raises(InputError, match=str(count)):
            program(ROWS, *masks(count - 1))


def test_the_report_says_that_a_minimum_is_not_checked():
    with torchvision():
        (note,) = lowered(PRODUCERS["nms"], "portable").report.notes
        assert note.startswith("the size of node nms, torchvision.nms.default -> int64[u1], at tests/support/fun")
        assert lowered(PRODUCERS["mask"], "portable").report.notes == ()


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("squeeze", [lambda r: r[:, :1].squeeze(), lambda r: r.squeeze(0) * 2], ids=["all", "one"])
def test_the_rank_does_not_depend_on_data(squeeze, placement):
    program = lowered(lambda x, y: squeeze(x[y]), placement)
    for mask in masks(0, 2, 5):
        assert_same(program(ROWS, mask), squeeze(ROWS[mask]))
    with pytest.raises(InputError, match=r"u0 != 1"):
        program(ROWS, *masks(1))


EXTREMES: dict[str, Callable[[Any], Any]] = {
    "max": lambda r: r.max(),
    "max of columns": lambda r: r.max(0),
    "amin": lambda r: r.amin(0),
    "argmax": lambda r: r.argmax(0),
    "aminmax": lambda r: torch.aminmax(r, dim=0),
    "mode": lambda r: r.mode(0)[0],
    "median": lambda r: r.median(0)[0],
}


@pytest.mark.parametrize(("name", "placement"), every(3, EXTREMES, PLACEMENTS), ids=str)
def test_nothing_has_no_extreme(name, placement):
    runs = "portable" if placement == "xnnpack" and name in PORTABLE_EXTREMES else ""
    program = lowered(lambda x, y: EXTREMES[name](x[y]), placement, runs)
    for mask in masks(1, 3):
        assert_same(program(ROWS, mask), EXTREMES[name](ROWS[mask]))
    with pytest.raises(DelegateError):
        program(ROWS, *masks(0))
