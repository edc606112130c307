"""The comparison detects every kind of mistake in a result."""

from __future__ import annotations

import math
from collections import namedtuple

import ml_dtypes
import numpy as np
import pytest
import torch

from delegate.testing import assert_same, relative_error

INF, NAN = math.inf, math.nan
BASE = torch.tensor([1.0, -4.0, 0.0, 2.0])
Pair = namedtuple("Pair", ["first", "second"])


def values(*numbers, dtype=torch.float32):
    return torch.tensor(numbers, dtype=dtype)


# A mistake by its name: actual, expected, arguments of `assert_same`, words of the message.
MISTAKES = {
    "a wrong value": (BASE + values(0, 0, 0.1, 0), BASE, {}, r"result\[2\] is 0\.1.*error 0\.025"),
    "a wrong sign": (-BASE, BASE, {}, r"\[1\] is 4"),
    "more than the tolerance": (BASE * 1.011, BASE, {"tolerance": 1e-2}, "more than 0.01"),
    "one bit": (torch.nextafter(BASE, BASE + 1), BASE, {"tolerance": 0.0}, "relative error"),
    "one bit of float64": (
        values(5e-324, dtype=torch.float64),
        values(0, dtype=torch.float64),
        {"tolerance": 0.0},
        "error inf",
    ),
    "NaN everywhere": (BASE * NAN, BASE, {"tolerance": 0.9}, "NaN"),
    "NaN in one place": (values(1, NAN, 0, 2), BASE, {"tolerance": 0.9}, r"\[1\] is nan, expected -4"),
    "NaN that is missing": (BASE, values(1, NAN, 0, 2), {"tolerance": 0.9}, r"\[1\] is -4.* expected nan"),
    "NaN in another place": (values(NAN, 1), values(1, NAN), {"tolerance": 0.9}, "NaN"),
    "a number for NaN alone": (values(3), values(NAN), {"tolerance": 0.9}, "NaN"),
    "infinity": (values(1, INF, 0, 2), BASE, {"tolerance": 0.9}, "infinity"),
    "a number for infinity": (values(1, 1e30), values(1, INF), {"tolerance": 0.9}, "infinity"),
    "a number for infinity alone": (values(7), values(INF), {"tolerance": 0.9}, "infinity"),
    "NaN for infinity": (values(NAN), values(INF), {"tolerance": 0.9}, "NaN"),
    "infinity of the other sign": (values(1, -INF), values(1, INF), {"tolerance": 0.9}, "infinity"),
    "an error beside infinity": (values(INF, 1.1), values(INF, 1.0), {"tolerance": 1e-2}, r"\[1\]"),
    "an error beside NaN": (values(NAN, 1.1), values(NAN, 1.0), {"tolerance": 1e-2}, r"\[1\]"),
    "not zero": (values(0, 1e-30), values(0, 0), {"tolerance": 0.9}, "relative error inf"),
    "numbers that overflow": (
        values(1e308, dtype=torch.float64),
        values(-1e308, dtype=torch.float64),
        {"tolerance": 0.9},
        "relative error",
    ),
    "a small value by each value": (values(1e6, 2.0), values(1e6, 1.0), {"each": True}, r"\[1\] is 2"),
    "above the smallest value": (values(2e-2), values(1e-2), {"at_least": 1e-2}, "error 1"),
    "-0.0 for 0.0": (values(0.0), values(-0.0), {"signed_zeros": True}, r"-0\.0"),
    "0.0 for -0.0": (values(-0.0), values(0.0), {"signed_zeros": True}, r"-0\.0"),
    "an integer": (torch.tensor([3, 4]), torch.tensor([3, 5]), {"tolerance": 0.9}, r"\[1\] is 4, expected 5"),
    "a large integer": (torch.tensor([2**60 + 1]), torch.tensor([2**60]), {"tolerance": 0.9}, "expected"),
    "two steps": (torch.tensor([3]), torch.tensor([5]), {"steps": 1}, "within 1"),
    "integers that wrap": (torch.tensor([-(2**63)]), torch.tensor([2**63 - 1]), {"steps": 1}, "within 1"),
    "a bool": (torch.tensor([True]), torch.tensor([False]), {"tolerance": 0.9}, "expected False"),
    "another dtype": (BASE.double(), BASE, {}, "dtype torch.float64"),
    "a half precision": (BASE.half(), BASE.bfloat16(), {}, "dtype"),
    "bits that are no bfloat16": (np.zeros(4, np.uint16), BASE.half(), {}, "dtype"),
    "wrong bits of bfloat16": ((BASE * 2).bfloat16().view(torch.uint16).numpy(), BASE.bfloat16(), {}, "error"),
    "a shape that broadcasts": (values(1), values(1, 1), {}, r"shape \[1\], expected \[2\]"),
    "a number of no dimension": (torch.tensor(1.0), values(1), {}, "shape"),
    "an empty shape": (torch.empty(0, 3), torch.empty(3, 0), {}, "shape"),
    "a list for a tuple": ([BASE], (BASE,), {}, "structure"),
    "a result too many": ((BASE, BASE), (BASE,), {}, "structure"),
    "no result": ((), (BASE,), {}, "structure"),
    "another key": ({"a": BASE}, {"b": BASE}, {}, "structure"),
    "a tensor in a tuple": ((BASE,), BASE, {}, "structure"),
    "the second result": (Pair(BASE, BASE + 1), Pair(BASE, BASE), {}, r"second"),
    "None": (None, BASE, {}, "expected tensor"),
    "a number that is no tensor": (1.0, torch.tensor(1.0), {}, "dtype"),
    "another integer": ((BASE, 3), (BASE, 4), {}, "3, expected 4"),
    "a bool for an integer": (True, 1, {}, "expected 1"),
    "another string": ("a", "b", {}, "expected 'b'"),
    "a float": ((1.0,), (1.1,), {}, "error"),
    "a float of NaN": (1.0, NAN, {}, "NaN"),
    "a complex part": (values(1 + 2j, dtype=torch.complex64), values(1 - 2j, dtype=torch.complex64), {}, r"\[0, 1\]"),
    "NaN in a complex part": (
        values(complex(1, NAN), dtype=torch.complex64),
        values(complex(1, 1), dtype=torch.complex64),
        {"tolerance": 0.9},
        "NaN",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_seen(name):
    actual, expected, arguments, words = MISTAKES[name]
    with pytest.raises(AssertionError, match=words):
        assert_same(actual, expected, **arguments)


SAME = {
    "equal values": (BASE.clone(), BASE, {"tolerance": 0.0}),
    "within the tolerance": (BASE * 1.009, BASE, {"tolerance": 1e-2}),
    "errors of the largest value": (values(100, 1.001), values(100, 1), {"tolerance": 1e-4}),
    "errors of each value": (values(100.001, 1.00001), values(100, 1), {"tolerance": 1e-4, "each": True}),
    "below the smallest value": (values(1e-6), values(2e-6), {"tolerance": 1e-3, "at_least": 1e-2}),
    "NaN and infinities": (values(NAN, INF, -INF, 1), values(NAN, INF, -INF, 1), {"tolerance": 0.0}),
    "NaN alone": (values(NAN), values(NAN), {"tolerance": 0.0}),
    "zeros of both signs": (values(-0.0), values(0.0), {"tolerance": 0.0}),
    "zeros of the same sign": (values(-0.0, 0.0), values(-0.0, 0.0), {"tolerance": 0.0, "signed_zeros": True}),
    "a step": (torch.tensor([-128, 127]).to(torch.int8), torch.tensor([-127, 126]).to(torch.int8), {"steps": 1}),
    "an array for a tensor": (BASE.numpy(), BASE, {"tolerance": 0.0}),
    "a number of NumPy": (np.float32(2), torch.tensor(2.0), {"tolerance": 0.0}),
    "bits of bfloat16": (BASE.bfloat16().view(torch.uint16).numpy(), BASE.bfloat16(), {"tolerance": 0.0}),
    "ml_dtypes": (BASE.numpy().astype(ml_dtypes.bfloat16), BASE.bfloat16(), {"tolerance": 0.0}),
    "unsigned": (torch.tensor([2**63 + 5], dtype=torch.uint64), torch.tensor([2**63 + 5], dtype=torch.uint64), {}),
    "nothing": (torch.empty(0, 3), torch.empty(0, 3), {"tolerance": 0.0}),
    "no results": ((), (), {}),
    "a tree": ({"a": [BASE, 3], "b": None}, {"a": [BASE, 3], "b": None}, {"tolerance": 0.0}),
    "complex numbers": (values(1 + 2j, dtype=torch.complex64), values(1 + 2j, dtype=torch.complex64), {}),
    "another order in memory": (torch.ones(2, 3).t(), torch.ones(3, 2), {}),
    "a view of a conjugate": (values(1 + 2j, dtype=torch.complex64).conj(), values(1 - 2j, dtype=torch.complex64), {}),
    "a parameter": (torch.nn.Parameter(BASE), BASE, {}),
}


@pytest.mark.parametrize("name", SAME)
def test_the_same_is_accepted(name):
    actual, expected, arguments = SAME[name]
    assert_same(actual, expected, **arguments)


@pytest.mark.parametrize("tolerance", [NAN, INF, 1.0, -1e-3])
def test_tolerances_that_accept_anything_are_refused(tolerance):
    with pytest.raises(ValueError, match="accepts anything"):
        assert_same(BASE, BASE, tolerance)


def test_relative_error_of_the_largest_value():
    assert relative_error(values(4, 1.5), values(4, 1)) == 0.125
    assert relative_error(values(4, 1.5), values(4, 1), each=True) == 0.5
    assert relative_error((values(4), values(1, INF)), (values(4), values(2, INF))) == 0.5
    assert relative_error(values(1), values(0)) == INF
    assert relative_error(torch.empty(0), torch.empty(0)) == 0


@pytest.mark.parametrize("actual", [values(NAN, 1), values(INF, 1), values(1, 1, 1), values(1, 1, dtype=torch.float64)])
def test_relative_error_is_never_nan(actual):
    with pytest.raises(AssertionError):
        relative_error(actual, values(1, 1))
