"""NaN and infinity through XNNPACK: with `nan: exact`, the default, as eager; with `fast`, what it gives is said."""

from __future__ import annotations

import pytest
import torch

import delegate
from delegate.testing import assert_same
from tests.backends.nan import CASES, INF
from tests.e2e.test_dynamic import Function


def lowered(name, nan):
    function, x = CASES[name]
    exported = torch.export.export(Function(function).eval(), (x,))
    options = {} if nan is None else {"options": {"nan": nan}}
    return delegate.to_backend(exported, config={"backends": [{"name": "xnnpack", **options}]}), function(x), x


# What a mask takes away before a softmax stays NaN, as the documentation says.
@pytest.mark.parametrize("name", [name for name in CASES if name != "masked softmax"])
def test_as_eager(name):
    program, expected, x = lowered(name, None)
    assert_same(program(x), expected)


@pytest.mark.parametrize("name", ["amax along 1", "exp", "max pool", "average pool", "maximum"])
def test_the_report_says_it(name):
    numbers = torch.nan_to_num(CASES[name][1], 0.0, 9.0, -9.0)
    for nan, note in (("exact", "nan: exact, kept in"), ("fast", "nan: fast, may become a number")):
        program, _, _ = lowered(name, nan)
        notes = [n for p in program.report.partitions for n in p.notes]
        # An average pool is exact as a convolution is: nothing is added to it.
        assert any(note in n for n in notes) or (nan, name) == ("exact", "average pool")
        assert_same(program(numbers), CASES[name][0](numbers))


@pytest.mark.parametrize("function", [torch.sin, torch.cos])
def test_large_angles(function):
    """XNNPACK gives numbers in the hundreds for them."""
    x = torch.tensor([0.0, -3.0, 1e4, 2.0**19, -(2.0**27), 1e10, 3e38, INF])
    result = delegate.to_backend(torch.export.export(Function(function).eval(), (x,)), "xnnpack")(x)
    assert_same(result[:4], function(x[:4]))
    assert result[4:].isnan().all()
