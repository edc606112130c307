"""The kernel table: which kernel runs an operator on given dtypes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from delegate.errors import KernelError
from delegate.kernels.halves import HALF, widened, widened_allocating
from delegate.kernels.kernel import Kernel
from delegate.kernels.layouts import with_any_layout
from delegate.program.dtypes import DType

F = TypeVar("F", bound=Callable[..., Any])

FLOAT = frozenset({DType.float16, DType.float32, DType.float64})
INT = frozenset({DType.uint8, DType.int8, DType.int16, DType.int32, DType.int64})
UNSIGNED = frozenset({DType.uint16, DType.uint32, DType.uint64})  # torch has few operators for them
BOOL = frozenset({DType.bool})
COMPLEX = frozenset({DType.complex64, DType.complex128})
REAL = FLOAT | INT | BOOL
ANY = REAL | COMPLEX | UNSIGNED | {DType.bfloat16}


class KernelTable:
    """Kernels of one library, at most one per operator, dtype and layout; one more that allocates.

    >>> table = KernelTable("mylib")
    >>> @table.kernel("mylib::scale", dtypes={DType.float32})
    ... def scale(x, factor, *, out):
    ...     np.multiply(x, factor, out=out)

    Args:
        library: its name: of its entry point in group `delegate.kernels` where a package brings it, and for messages.
    """

    torch_free = True  # they run wherever programs do

    def __init__(self, library: str) -> None:
        self.library = library
        self._rows: dict[str, list[Kernel]] = {}
        self._generator: np.random.Generator | None = None

    @property
    def generator(self) -> np.random.Generator:
        """The source of its kernels' random numbers."""
        if self._generator is None:
            self._generator = np.random.default_rng()
        return self._generator

    def seed(self, seed: int) -> None:
        """Start its random numbers anew: the same seed gives the same numbers, which are not torch's."""
        self._generator = np.random.default_rng(seed)

    def kernel(
        self,
        *ops: str,
        dtypes: Iterable[DType] = REAL,
        contiguous: bool = False,
        whole: bool = False,
        in_place: bool = False,
    ) -> Callable[[F], F]:
        """Decorator: the function computes these operators into memory that it is given.

        It is called as `function(*args, out=out)`: args in the order of the operator's schema with all defaults filled
        in; tensors are arrays (any strides, read-only), lists are lists, sizes are ints, a dtype is a `DType`, layout,
        device and memory-format arguments are None. `out` is a contiguous array of the result's shape and dtype that
        shares no memory with the arguments, or a tuple of them where the operator has several results: also of those
        that the graph does not use, but None for one that the arguments leave out, as the mask of a gradient does. It
        must fill `out` completely and return nothing.

        Of an operator that writes to its arguments, the results are followed by the new values of what it writes to (of
        those that are given), in the order of the schema; the arguments themselves stay as they are.

        Args:
            ops: operators as torch prints them, "mylib.scale.default", or as it registers them, "mylib::scale".
            dtypes: element types of the tensor arguments and results that it takes.
            contiguous: it takes row-major arrays alone: others go to another kernel of the operator, or are copied.
            whole: for compound operators that are faster so than decomposed: a program that goes to no backend keeps
                them.
            in_place: `out` may be the first argument itself, and need not be written where nothing changes: so states
                are updated, at the cost of what changes. The other arguments share no memory with `out`.

        Raises:
            ValueError: a kernel of the table claims the same operator, dtype and layout, or a name is no operator's.
            TypeError: the function is none, or a dtype is no `DType`.
        """
        return self._register(ops, dtypes, is_view=False, contiguous=contiguous, whole=whole, in_place=in_place)

    def view(self, *ops: str, dtypes: Iterable[DType] = ANY) -> Callable[[F], F]:
        """Decorator: the function gives a view (a tuple of views for several results) of its first argument.

        It is called as `function(*args)` when a program is bound to memory, never while it runs. Where the strides of
        the argument allow no view it returns None, and the runtime copies instead: it runs the function again on a
        contiguous copy. The result must have exactly the shape that the graph says.
        """
        return self._register(ops, dtypes, is_view=True)

    def allocating(self, *ops: str, dtypes: Iterable[DType] = REAL) -> Callable[[F], F]:
        """Decorator: the function computes these operators where the sizes of their results depend on data.

        It is called as `function(*args)`, with arguments as those of `kernel`, and returns a new array, or a tuple of
        them where the operator has several results, of the dtypes that the graph says. They share no memory with the
        arguments. An operator may have such a kernel beside one that fills memory that it is given.
        """
        return self._register(ops, dtypes, is_view=False, allocates=True)

    def _register(
        self, ops: Sequence[str], dtypes: Iterable[DType], is_view: bool, **properties: Any
    ) -> Callable[[F], F]:
        taken = frozenset(dtypes)
        if odd := [dtype for dtype in taken if not isinstance(dtype, DType)]:
            raise TypeError(f"the dtypes of a kernel should be of delegate.DType, not {odd[0]!r}")

        def register(function: F) -> F:
            if not callable(function):
                raise TypeError(f"a kernel of {', '.join(ops)} should be a function, not {function!r}")
            for op in map(operator_name, ops):
                self.add(Kernel(op, function, taken, is_view, self.library, **properties))
            return function

        return register

    def add(self, kernel: Kernel) -> None:
        """Add a row; raises ValueError if another claims the same operator, dtype and layout."""
        rows = self._rows.setdefault(kernel.op, [])
        for other in rows:
            both = other.dtypes & kernel.dtypes
            if both and (other.contiguous, other.allocates) == (kernel.contiguous, kernel.allocates):
                names = ", ".join(sorted(t.name for t in both))
                raise ValueError(f"two kernels of {kernel.op} for {names}: of {other.library} and of {kernel.library}")
        rows.append(kernel)

    def find(self, op: str, dtypes: Iterable[DType], *, allocates: bool = False) -> Kernel | None:
        """The kernel that takes an operator on these dtypes (of all tensor arguments and results).

        It may take row-major arrays alone: `Kernel.contiguous`. Where no row takes float16 or bfloat16, a row for
        float32 does: it is wrapped to compute in float32 and round.

        Args:
            op: the operator.
            dtypes: of all its tensors.
            allocates: whether it is to make its results itself.
        """
        wanted = frozenset(dtypes)
        found = self._row(op, wanted, allocates)
        if found is not None or not wanted & HALF or wanted >= {DType.bfloat16, DType.uint16}:
            return found
        wide = self._row(op, (wanted - HALF) | {DType.float32}, allocates)
        if wide is None or wide.is_view:
            return None
        widen = widened_allocating if allocates else widened
        return replace(wide, function=widen(wide.function, wanted), dtypes=wanted)

    def _row(self, op: str, wanted: frozenset[DType], allocates: bool) -> Kernel | None:
        known = [k for k in self._rows.get(op, ()) if wanted <= k.dtypes]
        rows = [k for k in known if k.allocates == allocates]
        if known and not rows and not allocates:  # the sizes are known: another value with as many elements told them
            return replace(known[0], function=partial(_filling, known[0].function), allocates=False)
        general = next((k for k in rows if not k.contiguous), None)
        special = next((k for k in rows if k.contiguous), None)
        return with_any_layout(special, general) if special and general else special or general

    def rows(self, op: str) -> tuple[Kernel, ...]:
        """All kernels of an operator."""
        return tuple(self._rows.get(op, ()))

    def __iter__(self) -> Iterator[Kernel]:
        return (k for rows in self._rows.values() for k in rows)

    def __contains__(self, op: object) -> bool:
        return op in self._rows


def _filling(function: Callable[..., Any], *args: Any, out: Any) -> None:
    """Run a function that makes its results, and copy them into memory of the sizes that they should have."""
    made = function(*args)
    for target, result in zip(*((x if isinstance(x, tuple) else (x,)) for x in (out, made)), strict=True):
        if target.shape != np.shape(result):
            raise KernelError(f"it gives {list(np.shape(result))}, where {list(target.shape)} are to be filled")
        np.copyto(target, result, casting="no")


def operator_name(name: str) -> str:
    """The full name of an operator; raises ValueError for what is no name of one.

    >>> operator_name("mylib::scale")
    'mylib.scale.default'
    """
    parts = name.replace("::", ".").split(".")
    if len(parts) == 2:
        parts.append("default")
    if len(parts) != 3 or not all(part.isidentifier() for part in parts):
        raise ValueError(f"{name!r} is no operator: write 'mylib::scale' or 'mylib.scale.default'")
    return ".".join(parts)
