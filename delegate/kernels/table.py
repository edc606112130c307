"""The kernel table: rows of operators by dtype, and the table that the portable kernels register in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from delegate.errors import KernelError
from delegate.kernels.half_precision import HALF, widen_allocating_kernel, widen_kernel
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


F = TypeVar("F", bound=Callable[..., Any])

FLOAT = frozenset({DType.float16, DType.float32, DType.float64})
INT = frozenset({DType.uint8, DType.int8, DType.int16, DType.int32, DType.int64})
UNSIGNED = frozenset({DType.uint16, DType.uint32, DType.uint64})  # torch has few operators for them
BOOL = frozenset({DType.bool})
COMPLEX = frozenset({DType.complex64, DType.complex128})
REAL = FLOAT | INT | BOOL
ANY = REAL | COMPLEX | UNSIGNED | {DType.bfloat16}


class KernelTable:
    """Kernels of one library: at most one per operator, dtype and layout, plus one that allocates.

    >>> table = KernelTable("mylib")
    >>> @table.kernel("mylib::scale", dtypes={DType.float32})
    ... def scale(x, factor, *, out):
    ...     np.multiply(x, factor, out=out)

    Args:
        library: the name of the library, for messages. In a package, it is the name of its entry point in the group
            `delegate.kernels`.
    """

    torch_free = True  # the kernels run without torch

    def __init__(self, library: str) -> None:
        self.library = library
        self._rows: dict[str, list[Kernel]] = {}
        self._generator: np.random.Generator | None = None

    def __repr__(self) -> str:
        return f"<KernelTable {self.library!r} of {len(self._rows)} operators>"

    @property
    def generator(self) -> np.random.Generator:
        """The source of the kernels' random numbers."""
        if self._generator is None:
            self._generator = np.random.default_rng()
        return self._generator

    def seed(self, seed: int) -> None:
        """Restart the random numbers: the same seed gives the same numbers, which differ from torch's."""
        self._generator = np.random.default_rng(seed)

    def kernel(
        self,
        *ops: str,
        dtypes: Iterable[DType] = REAL,
        contiguous: bool = False,
        whole: bool = False,
        in_place: bool = False,
        random: bool = False,
    ) -> Callable[[F], F]:
        """Register a function that computes operators into existing memory; a decorator.

        It is called as `function(*args, out=out)`. args are in the order of the operator's schema, with all defaults
        filled in: tensors are arrays (any strides, read-only), lists are lists, sizes are ints, a dtype is a `DType`,
        and layout, device and memory-format arguments are None.

        `out` is a contiguous array of the result's shape and dtype that shares no memory with the arguments. If the
        operator has several results, it is a tuple, also with results that the graph does not use. A result that the
        arguments exclude, e.g. by the mask of a gradient, is None. The function must fill `out` completely and return
        nothing.

        If an operator writes to its arguments, their new values follow the results in `out`, in the order of the
        schema. `out` omits arguments that are None. The arguments themselves do not change.

        Args:
            ops: operators as torch prints them, "mylib.scale.default", or registers them, "mylib::scale".
            dtypes: the supported element types of the tensor arguments and results.
            contiguous: if it needs row-major arrays. Others go to another kernel of the operator, or are copied.
            whole: if a compound operator is faster so than decomposed, which programs without a backend then preserve.
            in_place: if `out` may be the first argument itself, and unchanged elements need not be written. States are
                then updated at the cost of their changes, and the other arguments share no memory with `out`.
            random: if its results differ in every call; it then runs in every call, also with constant arguments.

        Raises:
            ValueError: another kernel of the table has the same operator, dtype and layout, or a name is not an
                operator.
            TypeError: the function is not callable, or a dtype is not a `DType`.
        """
        properties = {"contiguous": contiguous, "whole": whole, "in_place": in_place, "random": random}
        return self._register(ops, dtypes, is_view=False, **properties)

    def view(self, *ops: str, dtypes: Iterable[DType] = ANY) -> Callable[[F], F]:
        """Register a function that returns a view of its first argument, or a tuple of views; a decorator.

        It is called as `function(*args)` when a program is bound to memory, never while it runs. If the strides of the
        argument allow no view, it returns None. The runtime then copies: it calls the function again on a contiguous
        copy. The result must have exactly the shape in the graph.
        """
        return self._register(ops, dtypes, is_view=True)

    def allocating(self, *ops: str, dtypes: Iterable[DType] = REAL) -> Callable[[F], F]:
        """Register a function that computes operators whose result sizes depend on data; a decorator.

        It is called as `function(*args)` with the arguments of `kernel`. It returns a new array, or a tuple of arrays
        if the operator has several results, of the dtypes in the graph. Results share no memory with the arguments. An
        operator may also have a kernel that writes to existing memory.
        """
        return self._register(ops, dtypes, is_view=False, allocates=True)

    def _register(
        self, ops: Sequence[str], dtypes: Iterable[DType], is_view: bool, **properties: Any
    ) -> Callable[[F], F]:
        taken = frozenset(dtypes)
        if invalid := [dtype for dtype in taken if not isinstance(dtype, DType)]:
            raise TypeError(f"the dtypes of a kernel must be members of delegate.DType, not {invalid[0]!r}")

        def register(function: F) -> F:
            if not callable(function):
                raise TypeError(f"a kernel of {', '.join(ops)} must be a function, not {function!r}")
            for op in map(operator_name, ops):
                self.add(Kernel(op, function, taken, is_view, self.library, **properties))
            return function

        return register

    def add(self, kernel: Kernel) -> None:
        """Add a row; raise ValueError if another row has the same operator, dtype and layout."""
        rows = self._rows.setdefault(kernel.op, [])
        for other in rows:
            both = other.dtypes & kernel.dtypes
            if both and (other.contiguous, other.allocates) == (kernel.contiguous, kernel.allocates):
                names = ", ".join(sorted(t.name for t in both))
                raise ValueError(
                    f"two kernels of {kernel.op} for {names}: from {other.library} and from {kernel.library}"
                )
        rows.append(kernel)

    def find(self, op: str, dtypes: Iterable[DType], *, allocates: bool = False) -> Kernel | None:
        """Return the kernel of an operator on these dtypes (of all tensor arguments and results).

        It may need row-major arrays: `Kernel.contiguous`. If no row supports float16 or bfloat16, a row for float32
        does: it is wrapped to compute in float32 and round.

        Args:
            op: the operator.
            dtypes: the dtypes of all its tensors.
            allocates: if the kernel must allocate its results.
        """
        requested = frozenset(dtypes)
        row = self._row(op, requested, allocates)
        if row is not None or not requested & HALF or requested >= {DType.bfloat16, DType.uint16}:
            return row
        wide = self._row(op, (requested - HALF) | {DType.float32}, allocates)
        if wide is None or wide.is_view:
            return None
        widen = widen_allocating_kernel if allocates else widen_kernel
        return replace(wide, function=widen(wide.function, requested), dtypes=requested)

    def _row(self, op: str, requested: frozenset[DType], allocates: bool) -> Kernel | None:
        known = [k for k in self._rows.get(op, ()) if requested <= k.dtypes]
        rows = [k for k in known if k.allocates == allocates]
        if known and not rows and not allocates:  # another value with as many elements determines the sizes
            return replace(known[0], function=partial(_fill_results, known[0].function), allocates=False)
        general = next((k for k in rows if not k.contiguous), None)
        special = next((k for k in rows if k.contiguous), None)
        return with_any_layout(special, general) if special and general else special or general

    def rows(self, op: str) -> tuple[Kernel, ...]:
        """Return all kernels of an operator."""
        return tuple(self._rows.get(op, ()))

    def __iter__(self) -> Iterator[Kernel]:
        return (k for rows in self._rows.values() for k in rows)

    def __contains__(self, op: object) -> bool:
        return op in self._rows


def _fill_results(function: Callable[..., Any], *args: Any, out: Any) -> None:
    """Call a function that allocates its results, and copy them into memory of the expected sizes."""
    results = function(*args)
    for target, result in zip(*((x if isinstance(x, tuple) else (x,)) for x in (out, results)), strict=True):
        if target.shape != np.shape(result):
            raise KernelError(
                f"it returned the shape {list(np.shape(result))}, but the result has the shape {list(target.shape)}"
            )
        np.copyto(target, result, casting="no")


def operator_name(name: str) -> str:
    """Return the full name of an operator; raise ValueError for an invalid name.

    >>> operator_name("mylib::scale")
    'mylib.scale.default'
    """
    parts = name.replace("::", ".").split(".")
    if len(parts) == 2:
        parts.append("default")
    if len(parts) != 3 or not all(part.isidentifier() for part in parts):
        raise ValueError(f"{name!r} is not the name of an operator: write 'mylib::scale' or 'mylib.scale.default'")
    return ".".join(parts)


def with_any_layout(special: Kernel, general: Kernel | None) -> Kernel:
    """Return a kernel for arrays of any strides, from one that needs row-major arrays.

    Args:
        special: runs if all arrays are row-major.
        general: runs otherwise; None to copy the arrays for `special`.
    """
    otherwise = _with_copies(special.function) if general is None else _with_conversion(general)

    def function(*args: Any, out: Any) -> None:
        (special.function if all(map(_is_row_major, args)) else otherwise)(*args, out=out)

    in_place = special.in_place and (general is None or general.in_place)
    return replace(special, function=function, contiguous=False, in_place=in_place)


def _is_row_major(arg: Any) -> bool:
    if isinstance(arg, np.ndarray):
        return arg.flags.c_contiguous
    return all(map(_is_row_major, arg)) if isinstance(arg, list) else True


def _with_copies(function: Callable[..., None]) -> Callable[..., None]:
    return lambda *args, out: function(*map(_to_row_major, args), out=out)


def _to_row_major(arg: Any) -> Any:
    if isinstance(arg, list):
        return [_to_row_major(a) for a in arg]
    return arg.copy(order="C") if isinstance(arg, np.ndarray) and not arg.flags.c_contiguous else arg


def _with_conversion(kernel: Kernel) -> Callable[..., None]:
    """Return the kernel's function over NumPy arrays, with its conversion."""
    convert = kernel.convert
    if convert is None:
        return kernel.function

    def function(*args: Any, out: Any) -> None:
        kernel.function(*map(convert, args), out=tuple(map(convert, out)) if isinstance(out, tuple) else convert(out))

    return function


TABLE = KernelTable("portable")
