"""The sweep finds differences of each kind, and says which have no row and which rows are no longer needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch

import delegate
from delegate.backend.deviations import Deviation, Handling
from delegate.backends.xnnpack.aot.backend import XnnpackBackend
from tests.deviations import run, sweep
from tests.deviations.comparison import differences
from tests.deviations.points import groups, sizes
from tests.support import probes
from tests.support.availability import require

INF, NAN = float("inf"), float("nan")
KEPT = Deviation(
    "Lib 1",
    ("aten.exp",),
    "tails",
    "returns inf",
    "returns 3e38",
    Handling.KEPT,
    "t",
    points=("tails", "signs of zero"),
)
REJECTED = Deviation("Lib 1", ("aten.log",), "0", "returns NaN", "returns -inf", Handling.REJECTED, "t")


@pytest.mark.parametrize(
    ("result", "eager", "kind"),
    [
        ([1.0, 2.0], [1.0, 2.0], None),
        ([1.0, 2.00001], [1.0, 2.0], "values"),
        ([0.0, 2.0], [1e-30, 2.0], "values"),
        ([0.0, 2.0], [1e-40, 2.0], None),
        ([NAN, 2.0], [1.0, 2.0], "NaN"),
        ([1.0, 2.0], [NAN, 2.0], "NaN"),
        ([-INF, 2.0], [INF, 2.0], "infinities"),
        ([3e38, 2.0], [INF, 2.0], "infinities"),
        ([0.0, 2.0], [-0.0, 2.0], "signs of zero"),
        ([1.0], [1.0, 2.0], "shapes"),
    ],
    ids=str,
)
def test_differences_of_elementwise_functions(result: list[float], eager: list[float], kind: str | None) -> None:
    right = torch.tensor(eager)
    assert [d.kind for d in differences(torch.tensor(result), right, right.double())] == [kind] * (kind is not None)


def test_sums_are_compared_with_the_sum_of_absolute_terms() -> None:
    eager, exact, terms = torch.tensor([1e-4]), torch.tensor([1.0e-4]).double(), torch.tensor([1e6]).double()
    assert not list(differences(torch.tensor([0.5]), eager, exact, terms))
    assert [d.kind for d in differences(torch.tensor([50.0]), eager, exact, terms)] == ["values"]


def test_integers_are_compared_exactly() -> None:
    right = torch.tensor([1, 2])
    assert not list(differences(right, right, right))
    assert [d.kind for d in differences(torch.tensor([1, 3]), right, right)] == ["integers"]
    assert [d.kind for d in differences(right.int(), right, right)] == ["dtypes"]


def test_every_group_keeps_shapes_and_dtypes() -> None:
    example = (torch.rand(2, 3).half(), torch.tensor([1, 2]))
    for _, inputs in groups(example, elementwise=False):
        assert [(x.shape, x.dtype) for x in inputs] == [(x.shape, x.dtype) for x in example]
    assert {x.shape for _, inputs in sizes(example[:1]) for x in inputs} == {(3, 4), (1, 3), (2, 1), (0, 3), (2, 0)}


def test_a_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    require("xnnpack")
    lower = delegate.to_backend

    def faulty(*args: Any, **options: Any) -> Any:
        program = lower(*args, **options)

        def call(*inputs: torch.Tensor) -> torch.Tensor:
            y = program(*inputs)
            return torch.where(inputs[0] < -90, 0.125, y)

        call.report = program.report
        return call

    assert [r for r in sweep.records("aten.tanh.default", "xnnpack") if r.get("points") == "tails"] == []
    monkeypatch.setattr(delegate, "to_backend", faulty)
    found = [r for r in sweep.records("aten.tanh.default", "xnnpack") if r.get("points") == "tails"]
    assert {(r["kind"], r["dtype"]) for r in found} == {("values", d) for d in ("float32", "float16", "bfloat16")}


def test_what_the_library_does_alone_is_known() -> None:
    require("xnnpack")
    records = list(sweep.records("aten.sigmoid.default", "xnnpack"))
    assert {r["theirs"] for r in records if r.get("points") == "limits"} == {True}
    assert records[-1] == {"operators": ["aten.sigmoid.default"]}


@pytest.mark.parametrize(
    ("records", "unknown", "gone"),
    [
        ([{"case": "aten.exp.default", "points": "tails", "kind": "values"}], 0, 0),
        ([{"case": "aten.exp.default", "points": "zeros", "kind": "signs of zero"}], 0, 0),
        ([{"case": "aten.exp.default", "points": "zeros", "kind": "values"}], 1, 1),
        ([{"case": "aten.sin.default", "points": "tails", "kind": "values"}], 1, 1),
        ([{"case": "aten.sin.default", "kind": "end"}], 1, 1),
        ([{"case": "aten.log.default", "row": REJECTED.message, "differs": True}], 0, 1),
        ([{"case": "aten.log.default", "row": REJECTED.message, "differs": False}], 0, 2),
        ([{"case": "aten.log.default"}], 0, 1),  # the row rejects nothing of the case
        (
            [
                {"case": "aten.cosh.default", "points": "tails", "kind": "values"},
                {"case": "aten.cosh.default", "operators": ["aten.exp.default", "aten.add.Tensor"]},
            ],
            0,
            0,
        ),
    ],
    ids=str,
)
def test_rows_are_held_against_records(
    records: list[dict[str, Any]], unknown: int, gone: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(XnnpackBackend, "deviations", (KEPT, REJECTED))
    records.append({"case": "aten.exp.default", "operators": ["aten.exp.default"]})
    given: Iterator[dict[str, Any]] = ({"result": "1", "expected": "2", **r} for r in records)
    new, old = run.compare(XnnpackBackend.deviations, list(given))
    assert (len(new), len(old)) == (unknown, gone)


def test_a_rewrite_without_a_probe_is_found() -> None:
    lost = Deviation("Lib 1", ("aten.exp",), "x", "y", "z", Handling.REWRITTEN, "t")
    assert probes.unprobed("lib", [lost, KEPT]) == [lost]


def test_a_rewrite_that_the_library_no_longer_needs_is_found() -> None:
    right = replace(probes.PROBES[0], theirs=lambda x: probes.PROBES[0].torch(torch.as_tensor(x)), backend="lib")
    row = Deviation("Lib 1", (right.operator,), right.domain, "y", "z", Handling.REWRITTEN, "t")
    with patch.object(probes, "PROBES", (right,)):
        assert probes.needless("lib", [row]) == [row]
