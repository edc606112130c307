"""Kinds of faults: each relation between results and torch's has its own words."""

from __future__ import annotations

import math

import pytest
import torch
from delegate_devtools.faults import kind_of, to_int8
from delegate_devtools.recorder import same

from delegate.accuracy.recording import RecordedCall
from delegate.testing import assert_same

WANT = torch.linspace(-4, 4, 64)
NAN = torch.where(WANT > 3, math.nan, WANT)
# Name -> results, those of torch, the kind, and a part of the explanation.
CASES = {
    "zero": (torch.zeros(64), WANT, "wrong values", "all elements are zero"),
    "moved": (WANT.roll(5), WANT, "wrong values", "in other places"),
    "sign": (-(WANT + 1), WANT + 1, "wrong values", "the other sign"),
    "offset": (WANT + 0.5, WANT, "wrong values", "off by 0.5"),
    "factor": (WANT * 3 + 3, WANT + 1, "wrong values", "3 times"),
    "clamped": (WANT.clamp(-2, 2), WANT, "saturation", "a range of -4 to 4 would fit"),
    "NaN appears": (NAN, WANT, "NaN", "8 of 64 elements are NaN"),
    "NaN vanishes": (WANT, NAN, "NaN", "8 of 64 elements are NaN in torch"),
    "infinity": (torch.where(WANT > 3, math.inf, WANT), WANT, "infinity", "8 of 64 elements are infinity"),
    "beyond float16": (torch.where(WANT > 3, math.inf, WANT), WANT * 1e5, "overflow", "float16 ends at 65504"),
    "zero beyond float16": (torch.where(WANT > 3, 0.0, WANT), torch.where(WANT > 3, WANT * 1e5, WANT), "overflow",
                            "8 of 64 elements are zero, and are numbers in torch; float16 ends at 65504"),
    "NaN beyond float16": (torch.where(WANT > 3, math.nan, WANT), torch.where(WANT > 3, 1e5, WANT), "overflow", "NaN"),
    "cut off at the end of float16": (torch.where(WANT > 3, 65504.0, WANT), torch.where(WANT > 3, 1e5, WANT),
                                      "overflow", "8 of 64 elements are other numbers"),
    "zero, large, and wrong elsewhere": (torch.zeros(64), WANT * 1e5, "wrong values", "all elements are zero"),
    "a few": (torch.where(WANT > 3.9, 0.0, WANT), WANT, "wrong values", "2% of the elements differ"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_kinds(case: str) -> None:
    actual, expected, name, words = CASES[case]
    kind = kind_of(RecordedCall((WANT,), (actual,), (expected,)), None)
    assert kind.name == name
    assert words in kind.explanation


def test_rounding_to_int8() -> None:
    rounded = to_int8(WANT)
    assert len(rounded.unique()) <= 255
    assert_same(rounded, WANT, 1 / 127)


@pytest.mark.parametrize(
    ("first", "second", "are_same"),
    [
        ([math.nan, 1.0], [math.nan, 1.0], True),
        ([math.nan, 1.0], [0.0, 1.0], False),
        ([math.inf], [torch.finfo(torch.float32).max], False),
        ([-math.inf], [math.inf], False),
        ([True], [True], True),
    ],
)
def test_two_executions_are_the_same_only_with_nan_and_infinity_at_the_same_places(
    first: list[float], second: list[float], are_same: bool
) -> None:
    assert same([torch.tensor(first)], [torch.tensor(second)]) == are_same
