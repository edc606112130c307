"""The memory of each value of a method: views, lifetimes and offsets.

For a method of static shapes the emitter saves the result. A method of dynamic shapes is planned once, at the bounds of
its sizes, because sizes within their ranges need at most that memory. But a view at the bounds may be none at other
sizes: a slice that covers its whole tensor can be reshaped in place, a smaller one cannot. So the views are tried when
a combination of sizes is bound. If one fails, or sizes have no bounds, that combination gets its own plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from delegate.errors import DelegateError, InputError, KernelError
from delegate.kernels.selection import Kernels, base_of, place
from delegate.memory.planner import plan_buffers, plan_memory
from delegate.plugins import one_line
from delegate.program.expr import Expr, ExpressionBounds, Number, Symbol, SymbolValues, evaluate
from delegate.program.instructions import block_bases
from delegate.program.lifetimes import Lifetime, Lifetimes
from delegate.program.model import (
    Arg,
    Instruction,
    KernelCall,
    MethodDefinition,
    Program,
    Ref,
    Storage,
    StorageKind,
    StructuredCall,
)
from delegate.program.raw import Array, shadow
from delegate.program.segments import align
from delegate.program.stages import used_symbols

if TYPE_CHECKING:
    from delegate.kernels.table import Kernel

UNPLANNED = Storage(StorageKind.ARENA, 0, -1)


class MemoryPlan(NamedTuple):
    """The storage of every value, the bytes of every arena, and the lifetimes in the host's arena."""

    storages: tuple[Storage, ...]
    arenas: tuple[int, ...]
    lifetimes: tuple[Lifetime, ...]


def owner(index: int, storages: Sequence[Storage]) -> int:
    """Return the value that owns the memory of a value."""
    while storages[index].kind is StorageKind.ALIAS:
        index = storages[index].index
    return index


def is_planned(method: MethodDefinition) -> bool:
    """Return True if the method has a memory plan."""
    return all(size >= 0 for size in method.arenas)


def assign_storage(
    program: Program,
    method: MethodDefinition,
    kernels: Kernels,
    symbols: Mapping[int, Number],
    sizes: Sequence[int] | None = None,
) -> MemoryPlan:
    """Assign memory to every value.

    Storages of constants, states and inputs stay unchanged, while a value that the method returns, or that a result is
    a view of, becomes an OUTPUT. A result of a view operator becomes an ALIAS if the strides allow it. Other values
    share the arena of their memory space.

    Args:
        symbols: the numbers of the symbols that the method uses.
        sizes: bytes to reserve for each value; its size with these symbols if None.

    Raises:
        InputError: `sizes` is None, and a view has another shape than in the program.
    """
    return _Assignment(program, method, kernels, symbols, sizes).plan()


def concrete(arg: Arg, symbols: Mapping[int, Number]) -> Any:
    """Return an argument without symbols: sizes become numbers, tuples become lists; tensors stay a Ref."""
    if isinstance(arg, tuple):
        return [concrete(a, symbols) for a in arg]
    return arg.evaluate(symbols) if isinstance(arg, Expr) else arg


def call_view(kernel: Kernel, args: Sequence[Any], method: MethodDefinition, call: KernelCall) -> list[Array] | None:
    """Return the views of a view kernel, one per result of its call; None if the strides allow none.

    Raises:
        KernelError: the kernel rejects the arguments, or returns another number of views.
    """
    try:
        result = kernel.function(*args)
    except DelegateError:
        raise
    except Exception as error:  # NumPy's many, of arguments that make no sense; a third party's kernel raises anything
        raise KernelError(f"{kernel.op} cannot create a view: {one_line(error)}", where=place(method, call)) from error
    if result is None:
        return None
    views = [result] if isinstance(result, np.ndarray) else list(result)
    if len(views) != len(call.outputs):
        what = f"{kernel.op} returned {len(views)} views, but the program has {len(call.outputs)}"
        raise KernelError(what, where=place(method, call))
    return views


def check_view(view: Array, expected: Array, where: str) -> None:
    """Raise InputError unless a view has the expected shape, KernelError unless it has the dtype."""
    check_shape(view, expected.shape, where)
    if view.dtype != expected.dtype:
        raise KernelError(f"a view is {view.dtype}, but the program declares {expected.dtype}", where=where)


def check_shape(array: Array, expected: Sequence[int], where: str) -> None:
    """Raise InputError unless an array has the expected shape."""
    if array.shape != tuple(expected):
        raise InputError(
            f"a result has the shape {list(array.shape)}, but the program declares {list(expected)}",
            where=where,
            remedy="pass inputs whose sizes and data satisfy the assumptions of the model (torch._check)",
        )


class _Assignment:
    """Finds the views in one walk over the instructions, then plans lifetimes and offsets."""

    def __init__(
        self,
        program: Program,
        method: MethodDefinition,
        kernels: Kernels,
        symbols: Mapping[int, Number],
        sizes: Sequence[int] | None,
    ) -> None:
        self.program, self.method, self.kernels, self.symbols = program, method, kernels, symbols
        self.storages = [v.storage if v.storage.kind is not StorageKind.ALIAS else UNPLANNED for v in method.values]
        self.shadows = [shadow([evaluate(d, symbols) for d in v.shape], v.dtype.numpy) for v in method.values]
        self.exact = sizes is None
        self.sizes = sizes or [s.size * s.itemsize for s in self.shadows]
        self.root = list(range(len(method.values)))

    def plan(self) -> MemoryPlan:
        self._walk(self.method.instructions)
        for number, index in enumerate(self.method.outputs):
            if isinstance(index, Ref):
                self._make_output(self.root[index.index], number)
        lives = Lifetimes(self.method, self.storages)
        planned: dict[int, list[int]] = {0: []}
        for index, storage in enumerate(self.storages):
            if storage.kind is StorageKind.ARENA and lives.start[index] >= 0:
                planned.setdefault(storage.index, []).append(index)
        arenas = [0] * (1 + max(planned))
        lifetimes = {s: [lives.lifetime(i, self.sizes[i]) for i in planned[s]] for s in planned}
        for space, indices in planned.items():
            offsets, arenas[space] = (plan_buffers if space else plan_memory)(lifetimes[space])
            for index, offset in zip(indices, offsets, strict=True):
                self.storages[index] = Storage(StorageKind.ARENA, space, offset)
        return MemoryPlan(tuple(self.storages), tuple(arenas), tuple(lifetimes[0]))

    def _make_output(self, root: int, number: int) -> None:
        if self.storages[root].kind is StorageKind.ARENA:
            self.storages[root] = Storage(StorageKind.OUTPUT, number)

    def _walk(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, KernelCall):
                kernel = self.kernels.of(self.program, self.method, instruction)
                if kernel.is_view:
                    self._alias(kernel, instruction)
            elif isinstance(instruction, StructuredCall):
                self._place_blocks(instruction)

    def _alias(self, kernel: Kernel, call: KernelCall) -> None:
        """Turn the outputs into views of the first argument, if its strides allow that."""
        base = base_of(self.method, call)
        if any(self.storages[o].kind is not StorageKind.ARENA for o in call.outputs):
            return
        args = [concrete(a, self.symbols) for a in call.args]
        args[0] = self.shadows[base]
        views = call_view(kernel, args, self.method, call)
        if views is not None:
            for output, view in zip(call.outputs, views, strict=True):
                if self.exact:
                    check_view(view, self.shadows[output], place(self.method, call))
                self._place(output, base, view)

    def _place(self, index: int, base: int, view: Array) -> None:
        self.storages[index] = Storage(StorageKind.ALIAS, base)
        self.shadows[index] = view
        self.root[index] = self.root[base]

    def _place_blocks(self, call: StructuredCall) -> None:
        """Let blocks read captured operands in place, and carried values in the memory of the call's results."""
        for block in call.blocks:
            for index, base in block_bases(call, block):
                self._place(index, base, self.shadows[base])
            self._walk(block.instructions)


LARGEST_ARENA = 1 << 30  # bytes; more is not reserved for sizes that may never occur


def plan_at_bounds(program: Program, method: MethodDefinition, kernels: Kernels) -> MethodDefinition:
    """Return the method with its memory planned for all its sizes; unchanged if that is impossible.

    It is impossible if a value has no bound, or if the arena would exceed `LARGEST_ARENA`. It is also impossible if the
    largest sizes conflict, as two parts of a tensor do. Lifetimes and views are those at the largest sizes.
    """
    bounds = ExpressionBounds(method.symbols)
    counts = [bounds.largest_count(v.shape) for v in method.values]
    sizes = [(count or 0) * v.dtype.itemsize for count, v in zip(counts, method.values, strict=True)]
    example = SymbolValues((i, _example(method.symbols[i])) for i in used_symbols(method))
    try:
        plan = assign_storage(program, method, kernels, example, sizes)
    except (InputError, KernelError, ValueError, IndexError):  # of a view of sizes that do not go together
        return method
    unbounded = any(c is None and s.kind is StorageKind.ARENA for c, s in zip(counts, plan.storages, strict=True))
    if unbounded or sum(map(align, plan.arenas)) > LARGEST_ARENA:
        return method
    values = tuple(v._replace(storage=s) for v, s in zip(method.values, plan.storages, strict=True))
    return method._replace(values=values, arenas=plan.arenas)


def _example(symbol: Symbol) -> int:
    """Return the largest number that a symbol may have, or a small one without a maximum."""
    return max(symbol.minimum, 2) if symbol.maximum is None else symbol.maximum
