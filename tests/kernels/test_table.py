"""The kernel table: names of operators, duplicate kernels, layouts."""

from __future__ import annotations

import numpy as np
import pytest

from delegate.kernels.table import KernelTable, operator_name, with_any_layout
from delegate.program.dtypes import DType

F32 = frozenset({DType.float32})


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("mylib::scale", "mylib.scale.default"),
        ("mylib::scale.out", "mylib.scale.out"),
        ("mylib.scale", "mylib.scale.default"),
        ("aten.add.Tensor", "aten.add.Tensor"),
    ],
)
def test_names(name, full):
    assert operator_name(name) == full


@pytest.mark.parametrize("name", ["scale", "", "a.b.c.d", "my lib::scale", "mylib::"])
def test_names_of_nothing(name):
    with pytest.raises(ValueError, match="is not the name of an operator: write 'mylib::scale'"):
        operator_name(name)


def doubling(table: KernelTable, factor: int, **kwargs: object) -> None:
    @table.kernel("mylib::scale", dtypes=F32, **kwargs)
    def scale(x, *, out):
        np.multiply(x, factor, out=out)


@pytest.mark.parametrize(
    ("dtypes", "function", "words"),
    [
        ({"float32"}, np.copyto, "must be members of delegate.DType, not 'float32'"),
        ({np.float32}, np.copyto, "must be members of delegate.DType"),
        ({DType.float32}, None, "a kernel of mylib::scale must be a function, not None"),
    ],
)
def test_what_is_no_kernel(dtypes, function, words):
    with pytest.raises(TypeError, match=words):
        KernelTable("mylib").kernel("mylib::scale", dtypes=dtypes)(function)


def test_two_claims():
    table = KernelTable("own")
    doubling(table, 2)
    doubling(table, 3, contiguous=True)
    with pytest.raises(ValueError, match=r"two kernels of mylib\.scale\.default for float32"):
        doubling(table, 4)
    with pytest.raises(ValueError, match=r"two kernels of mylib\.scale\.default for float32"):
        doubling(table, 4, contiguous=True)


@pytest.mark.parametrize(("general", "strided"), [(True, 2.0), (False, 3.0)], ids=["another kernel", "a copy"])
def test_layouts(general, strided):
    """Check a row-major kernel (times 3) with and without a general kernel (times 2)."""
    table = KernelTable("own")
    doubling(table, 3, contiguous=True)
    if general:
        doubling(table, 2)
    kernel = table.find("mylib.scale.default", F32)
    assert kernel.contiguous is not general
    kernel = with_any_layout(kernel, None) if kernel.contiguous else kernel
    ones = np.ones((2, 3), np.float32)
    for source, factor in ((ones, 3.0), (ones.T, strided)):
        out = np.empty(source.shape, np.float32)
        kernel.function(source, out=out)
        assert (out == factor).all()
