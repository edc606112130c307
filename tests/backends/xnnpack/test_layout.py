"""Dimension orders. Doctests cover simple cases. These tests compare orders and reshapes with NumPy's memory."""

import itertools

import numpy as np
import pytest

from delegate.backends.xnnpack.aot import layout


def same_elements(old, order, new, new_order):
    """Return true if memory of `old` in `order` holds its reshape to `new` in `new_order`."""
    x = np.arange(np.prod(old)).reshape(old)
    return np.array_equal(x.transpose(order).ravel(), x.reshape(new).transpose(new_order).ravel())


SHAPES = [
    ((2, 3, 4), (6, 4)), ((2, 3, 4), (2, 12)), ((2, 3, 4), (24,)), ((6, 4), (2, 3, 4)), ((1, 8, 4), (8, 1, 4)),
    ((1, 3, 1, 5), (3, 5)), ((2, 12), (2, 3, 1, 4)), ((4, 6), (6, 4)), ((1, 1), (1,)), ((2, 3, 4, 5), (2, 3, 20)),
    ((3, 5), (1, 3, 1, 5, 1)), ((1,), ()),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), SHAPES, ids=str)
def test_reshape_of_every_order(old, new):
    for order in itertools.permutations(range(len(old))):
        reshaped = layout.reshape(old, new, order)
        assert order != layout.row_major(len(old)) or reshaped is not None  # row-major always stays
        if reshaped is not None:
            assert sorted(reshaped) == list(range(len(new)))
            assert same_elements(old, order, new, reshaped)
        else:  # no order of the result has that memory
            assert not any(same_elements(old, order, new, f) for f in itertools.permutations(range(len(new))))


def test_permute_and_transposition():
    x = np.arange(24).reshape(2, 3, 4)
    for order, dims in itertools.product(itertools.permutations(range(3)), repeat=2):
        permuted = x.transpose(dims)
        assert np.array_equal(permuted.transpose(layout.permute(order, dims)), x.transpose(order))
        assert np.array_equal(x.transpose(order).transpose(layout.transposition(order, dims)), x.transpose(dims))
