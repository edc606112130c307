"""Kernel: a row of the kernel table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from delegate.program.dtypes import DType


@dataclass(frozen=True, slots=True)
class Kernel:
    """A row of the table.

    Args:
        op: the operator, e.g. "aten.add.Tensor".
        function: see `KernelTable.kernel` and `KernelTable.view` for how it is called.
        dtypes: element types of the tensor arguments and results that it takes.
        is_view: it gives a view of its first argument, made once when the program is bound.
        library: who registered it, for messages.
        convert: makes what the function takes of an array, a `DType` or a list, where it takes others than those of
            NumPy; called once for what stays where it is, and in every call for what does not.
        whole: it is faster than the kernels of what its operator decomposes to.
        in_place: it is right too where `out` is its first argument, same memory, shape and dtype.
        contiguous: it takes row-major arrays alone.
        random: it gives other results every time.
        allocates: it makes its results itself, for their sizes depend on data.
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
