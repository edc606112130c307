"""Which memory each value of a method has: views found, lifetimes known, offsets planned.

The emitter asks once for a method of static shapes and saves the answer. A method of dynamic shapes is asked again
for every new combination of shapes, when it is bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from delegate.errors import DelegateError, InputError, KernelError
from delegate.plugins import one_line
from delegate.program.blocks import block_bases
from delegate.program.expr import Expr, Number, evaluate
from delegate.program.lifetimes import Lifetimes
from delegate.program.memory_plan import Lifetime, plan_buffers, plan_memory
from delegate.program.model import (
    Arg,
    Instruction,
    KernelCall,
    Method,
    Program,
    Ref,
    Storage,
    StorageKind,
    StructuredCall,
)
from delegate.program.raw import shadow
from delegate.runtime.backend import Array
from delegate.runtime.kernels import Kernels, base_of, place

if TYPE_CHECKING:
    from delegate.kernels.kernel import Kernel

UNPLANNED = Storage(StorageKind.ARENA, 0, -1)


class MemoryPlan(NamedTuple):
    """The storage of every value, the bytes of every arena, and the lifetimes of what lies in the host's arena."""

    storages: tuple[Storage, ...]
    arenas: tuple[int, ...]
    lifetimes: tuple[Lifetime, ...]


def assign_storage(
    program: Program,
    method: Method,
    kernels: Kernels,
    symbols: Mapping[int, Number],
    sizes: Sequence[int] | None = None,
) -> MemoryPlan:
    """Give every value its memory.

    Storages of constants, states and inputs stay as they are. A value that leaves the method, or that a result is a
    view of, becomes an OUTPUT; a result of a view operator becomes an ALIAS where strides allow it; the rest share the
    arena of the memory space that they are in.

    Args:
        symbols: the numbers of the symbols that the method uses, for which it is planned.
        sizes: bytes to set aside for each value; those that it has with these symbols if None.

    Raises:
        InputError: where `sizes` are None, a view has another shape than the program says.
    """
    return _Assignment(program, method, kernels, symbols, sizes).plan()


def concrete(arg: Arg, symbols: Mapping[int, Number]) -> Any:
    """An argument without symbols: sizes become numbers, tuples become lists; tensors stay a Ref."""
    if isinstance(arg, tuple):
        return [concrete(a, symbols) for a in arg]
    return arg.evaluate(symbols) if isinstance(arg, Expr) else arg


def call_view(kernel: Kernel, args: Sequence[Any], method: Method, call: KernelCall) -> list[Array] | None:
    """The views that a view kernel gives, one per result of its call; None where the strides allow none.

    Raises:
        KernelError: the kernel refuses the arguments, or gives another number of views.
    """
    try:
        made = kernel.function(*args)
    except DelegateError:
        raise
    except Exception as error:  # NumPy's many, of arguments that make no sense; a third party's kernel raises anything
        raise KernelError(f"{kernel.op} gives no view: {one_line(error)}", where=place(method, call)) from error
    if made is None:
        return None
    views = [made] if isinstance(made, np.ndarray) else list(made)
    if len(views) != len(call.outputs):
        what = f"{kernel.op} gives {len(views)} views, the program has {len(call.outputs)}"
        raise KernelError(what, where=place(method, call))
    return views


def check_view(made: Array, expected: Array, where: str) -> None:
    """Raise InputError unless a view has the shape that the program says, KernelError unless it has the dtype."""
    check_shape(made, expected.shape, where)
    if made.dtype != expected.dtype:
        raise KernelError(f"a view is of {made.dtype}, but the program says {expected.dtype}", where=where)


def check_shape(made: Array, expected: Sequence[int], where: str) -> None:
    """Raise InputError unless an array has the shape that the program says."""
    if made.shape != tuple(expected):
        raise InputError(
            f"a result has the shape {list(made.shape)}, but the program says {list(expected)}",
            where=where,
            remedy="the sizes given, or read off data, break an assumption of the model (torch._check)",
        )


class _Assignment:
    """Finds the views in one walk over the instructions; then lifetimes and offsets follow."""

    def __init__(
        self,
        program: Program,
        method: Method,
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
                self._structured_call(instruction)

    def _alias(self, kernel: Kernel, call: KernelCall) -> None:
        """Make the outputs views of the first argument, if its strides allow that."""
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

    def _structured_call(self, call: StructuredCall) -> None:
        """Blocks read captured operands where they lie, and carried values where the results of the call will be."""
        for block in call.blocks:
            for index, base in block_bases(call, block):
                self._place(index, base, self.shadows[base])
            self._walk(block.instructions)
