"""The figures of accuracy, number by number, and the bounds on them."""

from __future__ import annotations

import math

import pytest
import torch

from delegate.accuracy.bounds import Bounds
from delegate.accuracy.figures import Differences, difference
from delegate.report import Report
from delegate.report.rows import Accuracy, MethodAccuracy, PartitionReport

INF, NAN = math.inf, math.nan
I8 = torch.int8

# Name -> what was given, the reference, their dtype, (SQNR in dB, max error, relative error).
FIGURES = {
    "the same": ([1, 2], [1, 2], torch.float32, (INF, 0, 0)),
    "a tenth": ([1.1, 2.2], [1, 2], torch.float64, (20, 0.2, 0.1)),
    "twice": ([2, -4], [1, -2], torch.bfloat16, (0, 2, 1)),
    "zeros": ([0, 0], [0, 0], torch.float32, (INF, 0, 0)),
    "noise without a signal": ([0, 1e-3], [0, 0], torch.float64, (-INF, 1e-3, INF)),
    "the same beyond numbers": ([INF, -INF, NAN, 1.1], [INF, -INF, NAN, 1], torch.float64, (20, 0.1, 0.1)),
    "an infinity of another sign": ([INF, 1], [-INF, 1], torch.float32, (-INF, INF, INF)),
    "a number for NaN": ([0, 1], [NAN, 1], torch.float32, (-INF, INF, INF)),
    "NaN for a number": ([NAN, 1], [0, 1], torch.float32, (-INF, INF, INF)),
    "nothing but NaN": ([NAN, NAN], [NAN, NAN], torch.float32, (NAN, NAN, NAN)),
    "no elements": ([], [], torch.float32, (INF, 0, 0)),
    "integers": ([-127, -119, -124], [-128, -120, -124], I8, (10 * math.log10(32 / 2), 1, 1 / 128)),
    "the same integers": ([3, 3], [3, 3], I8, (INF, 0, 0)),
    "integers without a signal": ([3, 4], [3, 3], I8, (-INF, 1, 1 / 3)),
    "booleans": ([1, 0, 1, 1], [1, 0, 1, 0], torch.bool, (0, 1, 1)),
    "complex": ([1.1j, 1], [1j, 1], torch.complex128, (10 * math.log10(2 / 0.01), 0.1, 0.1)),
}  # fmt: skip


@pytest.mark.parametrize("name", FIGURES)
def test_figures(name):
    given, wanted, dtype, figures = FIGURES[name]
    found = Differences()
    found.add([torch.tensor(given).to(dtype)], [torch.tensor(wanted).to(dtype)])
    accuracy = found.accuracy()
    assert accuracy is not None
    assert (accuracy.sqnr_db, accuracy.max_error, accuracy.relative_error) == pytest.approx(figures, nan_ok=True)
    assert accuracy.top1 is None


@pytest.mark.parametrize(
    ("given", "wanted", "top1"),
    [
        ([[0.1, 0.9], [0.6, 0.4]], [[0.0, 1.0], [0.2, 0.8]], 0.5),
        ([[0.0, 1.0]], [[1.0, 1.0]], 1.0),  # a tie
        ([[1.0, 0.0], [1.0, 0.0]], [[math.nan, 1.0], [2.0, 1.0]], 1.0),  # NaN is in no order
        ([[1.0], [2.0]], [[2.0], [1.0]], None),
        ([0.0, 1.0], [1.0, 0.0], None),
    ],
)
def test_top1(given, wanted, top1):
    found = Differences()
    found.add([torch.tensor(given)], [torch.tensor(wanted)])
    accuracy = found.accuracy()
    assert accuracy is not None
    assert accuracy.top1 == top1


@pytest.mark.parametrize("shape", [(1,), (2, 3), (0,), ()])
def test_another_shape_is_infinitely_far_off(shape):
    found = difference([torch.ones(shape)], [torch.ones(6)])
    assert (found.sqnr_db, found.max_error) == (-INF, INF)


def test_calls_add_up_and_the_worst_output_counts():
    found = Differences()
    ones = torch.ones(2, dtype=torch.float64)
    found.add([ones, ones], [ones, ones])
    found.add([ones, ones + 0.2], [ones, ones])
    accuracy = found.accuracy()
    assert accuracy is not None
    assert accuracy.sqnr_db == pytest.approx(10 * math.log10(4 / 0.08))
    assert (accuracy.max_error, accuracy.calls) == (pytest.approx(0.2), 2)
    assert Differences().accuracy() is None


# Bounds, figures (SQNR, max error, relative error, top-1), excess of noise.
EXCESS = [
    (Bounds(), (-INF, INF, INF, 0.0), 0.0),
    (Bounds(sqnr_db=20), (20.0, 1, 1, None), 1.0),
    (Bounds(sqnr_db=20), (10.0, 1, 1, None), 10.0),
    (Bounds(sqnr_db=20), (INF, 0, 0, None), 0.0),
    (Bounds(sqnr_db=20), (-INF, 0, 0, None), INF),
    (Bounds(sqnr_db=20), (NAN, 0, 0, None), INF),
    (Bounds(max_error=0.5), (0.0, 1.0, 9, None), 4.0),
    (Bounds(max_error=0), (0.0, 0.0, 0, None), 0.0),
    (Bounds(max_error=0), (0.0, 1e-9, 0, None), INF),
    (Bounds(relative_error=0.01), (0.0, 9, 0.02, None), 4.0),
    (Bounds(relative_error=0.01), (0.0, 9, INF, None), INF),
    (Bounds(top1=0.9), (0.0, 0, 0, 0.8), 2.0),
    (Bounds(top1=1), (0.0, 0, 0, 0.99), INF),
    (Bounds(top1=1), (0.0, 0, 0, None), 0.0),
    (Bounds(sqnr_db=20, max_error=1), (30.0, 3.0, 0, None), 9.0),
]


@pytest.mark.parametrize(("bounds", "figures", "excess"), EXCESS)
def test_excess(bounds, figures, excess):
    assert bounds.excess(Accuracy(*figures)) == pytest.approx(excess)


def test_what_was_not_measured_keeps_all_bounds():
    assert Bounds(sqnr_db=20).excess(None) == 0
    assert not Bounds()


@pytest.mark.parametrize("sqnr", [INF, -INF, 31.5])
def test_figures_in_json_and_text(sqnr):
    figures = Accuracy(sqnr, 0.5, INF, 0.25, 3)
    report = Report(
        ("forward",),
        partitions=(PartitionReport("forward", "a_0", "a", accuracy=figures), PartitionReport("forward", "a_1", "a")),
        accuracy=(
            MethodAccuracy("forward", "eager", figures, nan="NaN is first in aten.log"),
            MethodAccuracy("other", "eager", why="it is random"),
        ),
    )
    assert Report.from_json(report.to_json()) == report
    text = {INF: "exact", -INF: "-inf dB", 31.5: "31.5 dB"}[sqnr]
    assert report.accuracy_lines() == [
        f"forward against eager: {text}, max error 0.5 (inf relative), top-1 25%; NaN is first in aten.log",
        "other against eager: it is random",
        f"  a_0: {text}, max error 0.5 (inf relative), top-1 25%",
        "  a_1: not reached by the inputs",
    ]
