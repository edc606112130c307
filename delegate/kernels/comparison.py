"""Comparisons, logical operators and selection by a condition."""

from __future__ import annotations

from functools import partial

import numpy as np

from delegate.kernels.half_precision import Array
from delegate.kernels.operands import WIDE_COMPLEX, Operand, cast, result_type
from delegate.kernels.portable_table import TABLE
from delegate.kernels.table import ANY, BOOL, COMPLEX, INT, REAL, UNSIGNED
from delegate.program.dtypes import DType

_COMPARISONS: dict[str, np.ufunc] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
_LOGICAL: dict[str, np.ufunc] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def _compare(ufunc: np.ufunc, a: Operand, b: Operand, *, out: Array) -> None:
    dtype = result_type(a, b)
    ufunc(cast(a, dtype), cast(b, dtype), out=out)


def _logical(ufunc: np.ufunc, a: Array, b: Array, *, out: Array) -> None:
    ufunc(a, b, out=out)


for _name, _ufunc in _COMPARISONS.items():
    TABLE.kernel(f"aten.{_name}.Tensor", f"aten.{_name}.Scalar", dtypes=REAL | COMPLEX | UNSIGNED)(
        partial(_compare, _ufunc)
    )
for _name, _ufunc in _LOGICAL.items():
    TABLE.kernel(f"aten.logical_{_name}.default", dtypes=REAL | COMPLEX | UNSIGNED)(partial(_logical, _ufunc))


@TABLE.kernel(
    "aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.Scalar",
    dtypes=ANY - {DType.bfloat16},
)  # fmt: skip
def where(condition: Array, a: Operand, b: Operand, *, out: Array) -> None:
    """Select a where the condition is true, else b."""
    np.copyto(out, cast(b, out.dtype))
    np.copyto(out, cast(a, out.dtype), where=condition.astype(np.bool_, copy=False))


@TABLE.kernel("aten.isclose.default", dtypes=WIDE_COMPLEX | INT | BOOL)
def isclose(a: Array, b: Array, rtol: float, atol: float, equal_nan: bool, *, out: Array) -> None:
    np.copyto(out, np.isclose(a, b, rtol=rtol, atol=atol, equal_nan=equal_nan))


@TABLE.kernel("aten.isin.Tensor_Tensor", "aten.isin.Tensor_Scalar", "aten.isin.Scalar_Tensor")
def isin(elements: Operand, tests: Operand, assume_unique: bool, invert: bool, *, out: Array) -> None:
    np.copyto(out, np.isin(elements, tests, invert=invert))
