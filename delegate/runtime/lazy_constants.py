"""Values that kernels compute from constants alone, such as dequantized weights: computed in the first call, then
stored.

All contexts of a program share them, and the file holds only the constants, but calls are as fast as if it held the
results.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from delegate.kernels.selection import Kernels
from delegate.memory.storage import owner
from delegate.plugins import PORTABLE
from delegate.program.expr import Expr
from delegate.program.instructions import reads, refs, walk
from delegate.program.model import Arg, Instruction, KernelCall, MethodDefinition, Program, Storage, StorageKind
from delegate.program.raw import nbytes
from delegate.runtime.backend import Array
from delegate.runtime.lifecycle import CallLock
from delegate.runtime.steps import Step, run_steps

_GROWTH = 16  # times the bytes of the program's constants may be stored: int4 weights in float64


@dataclass(slots=True)
class LazyConstants:
    """The values that one method computes from constants.

    Args:
        calls: the positions of the instructions that compute them.
        stored: their outputs that other instructions read; the rest lies in the arena during the computation.
    """

    calls: frozenset[int] = frozenset()
    stored: frozenset[int] = frozenset()
    is_done: bool = False
    _arrays: dict[int, Array] = field(default_factory=dict)
    _lock: CallLock = field(default_factory=lambda: CallLock("the computation of the program's constants"))

    def array(self, index: int, make: Callable[[], Array]) -> Array:
        """Return the stored array of a value; allocate it first if necessary."""
        with self._lock.hold():
            if index not in self._arrays:
                self._arrays[index] = make()
            return self._arrays[index]

    def compute(self, steps: Sequence[Step]) -> None:
        """Run the steps, unless another context has already."""
        with self._lock.hold():
            if not self.is_done:
                run_steps(steps)
                self.is_done = True


_NOTHING = LazyConstants()


class LazyConstantTable:
    """The values that the methods of one program compute from constants."""

    def __init__(self) -> None:
        self._methods: dict[int, tuple[tuple[Instruction, ...], LazyConstants]] = {}

    def of(
        self, program: Program, method: MethodDefinition, kernels: Kernels, storage: Sequence[Storage]
    ) -> LazyConstants:
        """Return the lazy constants of a method, for any memory plan.

        Args:
            program, method: the method and its program.
            kernels: that it runs on.
            storage: The storage that its values have.
        """
        known = self._methods.get(id(method.instructions))
        if known is None:
            known = (method.instructions, _find_lazy(program, method, kernels, storage))
            self._methods[id(method.instructions)] = known  # keeps the instructions alive, so that their id stays valid
        return known[1]


def _find_lazy(
    program: Program, method: MethodDefinition, kernels: Kernels, storage: Sequence[Storage]
) -> LazyConstants:
    """Find the values to compute from constants, unless they need far more memory than the constants."""
    constants = {i for i, s in enumerate(storage) if s.kind is StorageKind.CONSTANT}
    known, calls = set(constants), set[int]()
    for position, call in enumerate(method.instructions):
        inputs = set(reads(call))
        if isinstance(call, KernelCall) and inputs and inputs <= known and _is_fixed(call, method, storage):
            kernel = kernels.of(program, method, call)
            if kernel.library == PORTABLE and not kernel.random:
                known.update(call.outputs)
                calls.add(position)
    others = (c for i, c in enumerate(method.instructions) if i not in calls)
    all_reads = itertools.chain(refs(method.outputs), *(reads(call) for call in walk(others)))
    read = {owner(i, storage) for i in all_reads}
    stored = frozenset((known - constants) & read)
    size = sum(nbytes(_shape(method, i), method.values[i].dtype.numpy) for i in stored)
    constant_bytes = sum(nbytes(c.shape, c.dtype.numpy) for c in program.constants)
    return LazyConstants(frozenset(calls), stored) if calls and size <= _GROWTH * constant_bytes else _NOTHING


def _is_fixed(call: KernelCall, method: MethodDefinition, storage: Sequence[Storage]) -> bool:
    """Return True if arguments and results are the same in every call, and no result is the caller's."""
    storages = (storage[owner(i, storage)] for i in call.outputs)
    is_internal = all(
        s.kind is StorageKind.CONSTANT or (s.kind is StorageKind.ARENA and s.index == 0) for s in storages
    )
    return is_internal and not _has_expressions(call.args) and all(method.values[i].is_static for i in call.outputs)


def _has_expressions(args: Iterable[Arg]) -> bool:
    return any(_has_expressions(a) if isinstance(a, tuple) else isinstance(a, Expr) for a in args)


def _shape(method: MethodDefinition, index: int) -> tuple[int, ...]:
    return tuple(size for size in method.values[index].shape if isinstance(size, int))
