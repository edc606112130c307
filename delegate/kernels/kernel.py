"""Kernel, a row of the kernel table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from delegate.program.dtypes import DType


@dataclass(frozen=True, slots=True)
class Kernel:
    """A row of the kernel table.

    Args:
        op: the operator, e.g. "aten.add.Tensor".
        function: the function; see `KernelTable.kernel` and `KernelTable.view` for its arguments.
        dtypes: the supported element types of the tensor arguments and results.
        is_view: if it returns a view of its first argument, made once when the program is bound.
        library: the name of its library, for messages.
        convert: converts an array, a `DType` or a list for the function, if it needs other types than NumPy's. It is
            called once for memory that stays in place, and in every call for other memory.
        whole: if it is faster than the kernels of its operator's decomposition.
        in_place: if it is also correct when `out` is its first argument, with the same memory, shape and dtype.
        contiguous: if it needs row-major arrays.
        random: if its results differ in every call.
        allocates: if it allocates its results, whose sizes depend on data.
    """

    op: str
    function: Callable[..., Any]
    dtypes: frozenset[DType]
    is_view: bool
    library: str
    convert: Callable[[Any], Any] | None = None
    whole: bool = False
    in_place: bool = False
    contiguous: bool = False
    allocates: bool = False
    random: bool = False
