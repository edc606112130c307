"""Which memory each value of a method has: views found, lifetimes known, offsets planned.

The emitter asks once for a method of static shapes and saves the answer. A method of dynamic shapes is asked again
for every new combination of shapes, when it is bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from delegate.program.expr import Expr, evaluate
from delegate.program.lifetimes import refs
from delegate.program.memory import Lifetime, plan_memory
from delegate.program.model import Arg, Block, DelegateCall, Home, KernelCall, Method, Program, Ref, Storage
from delegate.runtime.backend import Array
from delegate.runtime.kernels import Kernels

if TYPE_CHECKING:
    from delegate.kernels.table import Kernel

UNPLANNED = Storage(Home.ARENA, 0, -1)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The storage of every value, the bytes of every arena, and the lifetimes of what lies in the arena."""

    storages: tuple[Storage, ...]
    arenas: tuple[int, ...]
    lifetimes: tuple[Lifetime, ...]


def assign_storage(program: Program, method: Method, kernels: Kernels, symbols: Mapping[int, int]) -> MemoryPlan:
    """Give every value its memory.

    Storages of constants, states and inputs stay as they are. A value that leaves the method, or that a result is a
    view of, becomes an OUTPUT; a result of a view operator becomes an ALIAS where strides allow it; the rest share one
    arena.
    """
    return _Assignment(program, method, kernels, symbols).plan()


def concrete(arg: Arg, symbols: Mapping[int, int]) -> Any:
    """An argument without symbols: sizes become numbers, tuples become lists; tensors stay a Ref."""
    if isinstance(arg, tuple):
        return [concrete(a, symbols) for a in arg]
    return arg.evaluate(symbols) if isinstance(arg, Expr) else arg


def shadow(shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """An array of that shape with row-major strides that takes no memory. Only its strides mean anything."""
    strides = [dtype.itemsize] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * max(shape[i + 1], 1)
    return np.lib.stride_tricks.as_strided(np.zeros(1, dtype), shape, strides, writeable=False)


def call_view(kernel: Kernel, args: Sequence[Any]) -> list[Array] | None:
    """The views that a view kernel gives, as a list; None where the strides allow none."""
    made = kernel.function(*args)
    if made is None or isinstance(made, np.ndarray):
        return None if made is None else [made]
    return list(made)


class _Assignment:
    """One walk over the instructions. A step is a place in time: every instruction, also of inner blocks, takes one."""

    def __init__(self, program: Program, method: Method, kernels: Kernels, symbols: Mapping[int, int]) -> None:
        self.program, self.method, self.kernels, self.symbols = program, method, kernels, symbols
        count = len(method.values)
        self.storages = [v.storage if v.storage.home is not Home.ALIAS else UNPLANNED for v in method.values]
        self.shadows = [shadow([evaluate(d, symbols) for d in v.shape], v.dtype.numpy) for v in method.values]
        self.root = list(range(count))
        self.start = [-1] * count
        self.end = [-1] * count
        self.step = 0

    def plan(self) -> MemoryPlan:
        self._walk(self.method.instructions)
        for number, index in enumerate(self.method.outputs):
            if isinstance(index, Ref):
                self._make_output(self.root[index.index], number)
        planned = [i for i in range(len(self.storages)) if self._in_arena(i)]
        lifetimes = [Lifetime(self._size(i), self.start[i], self.end[i]) for i in planned]
        offsets, total = plan_memory(lifetimes)
        for index, offset in zip(planned, offsets, strict=True):
            self.storages[index] = Storage(Home.ARENA, 0, offset)
        return MemoryPlan(tuple(self.storages), (total,), tuple(lifetimes))

    def _in_arena(self, index: int) -> bool:
        return self.storages[index].home is Home.ARENA and self.start[index] >= 0

    def _make_output(self, root: int, number: int) -> None:
        if self.storages[root].home is Home.ARENA:
            self.storages[root] = Storage(Home.OUTPUT, number)

    def _size(self, index: int) -> int:
        return self.shadows[index].size * self.shadows[index].itemsize

    def _walk(self, instructions: Iterable[Any]) -> None:
        for instruction in instructions:
            self.step += 1
            if isinstance(instruction, KernelCall):
                self._kernel_call(instruction)
            elif isinstance(instruction, DelegateCall):
                self._use(instruction.inputs)
                self._define(instruction.outputs)
            else:
                self._structured(instruction.operands, instruction.blocks, instruction.outputs)

    def _kernel_call(self, call: KernelCall) -> None:
        self._use(refs(call.args))
        kernel = self.kernels.of(self.program, self.method, call)
        if not (kernel.is_view and self._alias(kernel, call)):
            self._define(call.outputs)

    def _alias(self, kernel: Kernel, call: KernelCall) -> bool:
        """Make the outputs views of the first argument; False where its strides allow none."""
        base = call.args[0]
        assert isinstance(base, Ref)
        if any(self.storages[o].home is not Home.ARENA for o in call.outputs):
            return False
        args = [concrete(a, self.symbols) for a in call.args]
        args[0] = self.shadows[base.index]
        views = call_view(kernel, args)
        if views is None:
            return False
        for output, view in zip(call.outputs, views, strict=True):
            self.storages[output] = Storage(Home.ALIAS, base.index)
            self.shadows[output] = view
            self.root[output] = self.root[base.index]
        return True

    def _structured(self, operands: Sequence[int], blocks: Sequence[Block], outputs: Sequence[int]) -> None:
        """Whatever the blocks touch from outside, take or give lives as long as the whole construct."""
        first = self.step
        self._use(operands)
        self._define(outputs)
        for block in blocks:
            self._define(block.inputs)
            self._walk(block.instructions)
            self._use(block.outputs)
        self.step += 1
        for index in {*operands, *outputs, *(i for b in blocks for i in (*b.inputs, *b.outputs, *_touched(b)))}:
            root = self.root[index]
            if self.start[root] <= first or index in {i for b in blocks for i in (*b.inputs, *b.outputs)}:
                self.end[root] = max(self.end[root], self.step)

    def _use(self, indices: Iterable[int]) -> None:
        for index in indices:
            root = self.root[index]
            self.end[root] = max(self.end[root], self.step)

    def _define(self, indices: Iterable[int]) -> None:
        for index in indices:
            self.start[index] = self.end[index] = self.step


def _touched(block: Block) -> Iterable[int]:
    """All values that the instructions of a block read, those of inner blocks included."""
    for instruction in block.instructions:
        if isinstance(instruction, KernelCall):
            yield from refs(instruction.args)
        elif isinstance(instruction, DelegateCall):
            yield from instruction.inputs
        else:
            yield from instruction.operands
            for inner in instruction.blocks:
                yield from _touched(inner)
                yield from inner.outputs
