"""What kernels make of constants alone, such as the floats of quantized weights: computed in the first call, then kept.

All contexts of a program share it. A file holds the constants alone, and calls take as long as if it held the results.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from threading import Lock

from delegate.plugins import PORTABLE
from delegate.program.blocks import walk
from delegate.program.expr import Expr
from delegate.program.lifetimes import reads, refs
from delegate.program.model import Arg, Instruction, KernelCall, Method, Program, Storage, StorageKind
from delegate.program.raw import nbytes
from delegate.runtime.backend import Array
from delegate.runtime.kernels import Kernels
from delegate.runtime.steps import Step, run_steps

_GROWTH = 16  # times the bytes of a program's constants that may be kept: those of int4 weights in float64


@dataclass(slots=True)
class LazyConstants:
    """What one method computes of constants.

    Args:
        calls: the positions of its instructions that do so.
        kept: the values of theirs that others read; the rest lies in the arena meanwhile.
    """

    calls: frozenset[int] = frozenset()
    kept: frozenset[int] = frozenset()
    is_done: bool = False
    _arrays: dict[int, Array] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def array(self, index: int, make: Callable[[], Array]) -> Array:
        """Where a value is kept."""
        with self._lock:
            if index not in self._arrays:
                self._arrays[index] = make()
            return self._arrays[index]

    def compute(self, steps: Sequence[Step]) -> None:
        """Run the steps, unless another context has."""
        with self._lock:
            if not self.is_done:
                run_steps(steps)
                self.is_done = True


_NOTHING = LazyConstants()


class LazyConstantTable:
    """What the methods of one program compute of constants."""

    def __init__(self) -> None:
        self._methods: dict[int, tuple[tuple[Instruction, ...], LazyConstants]] = {}

    def of(self, program: Program, method: Method, kernels: Kernels, storage: Sequence[Storage]) -> LazyConstants:
        """That of a method, in whatever plan of memory.

        Args:
            program, method: whose.
            kernels: that it runs on.
            storage: of its values, as it is bound.
        """
        known = self._methods.get(id(method.instructions))
        if known is None:
            known = (method.instructions, _computed(program, method, kernels, storage))
            self._methods[id(method.instructions)] = known  # with the instructions, so that the id stays theirs
        return known[1]


def _computed(program: Program, method: Method, kernels: Kernels, storage: Sequence[Storage]) -> LazyConstants:
    """What can be computed of constants, unless it would take far more memory than they do."""
    constants = {i for i, s in enumerate(storage) if s.kind is StorageKind.CONSTANT}
    known, calls = set(constants), set[int]()
    for position, call in enumerate(method.instructions):
        taken = set(reads(call))
        if isinstance(call, KernelCall) and taken and taken <= known and _is_fixed(call, method, storage):
            kernel = kernels.of(program, method, call)
            if kernel.library == PORTABLE and not kernel.random:
                known.update(call.outputs)
                calls.add(position)
    others = (c for i, c in enumerate(method.instructions) if i not in calls)
    taken_up = itertools.chain(refs(method.outputs), *(reads(call) for call in walk(others)))
    read = {_owner(i, storage) for i in taken_up}
    kept = frozenset((known - constants) & read)
    size = sum(nbytes(_shape(method, i), method.values[i].dtype.numpy) for i in kept)
    given = sum(nbytes(c.shape, c.dtype.numpy) for c in program.constants)
    return LazyConstants(frozenset(calls), kept) if calls and size <= _GROWTH * given else _NOTHING


def _is_fixed(call: KernelCall, method: Method, storage: Sequence[Storage]) -> bool:
    """Whether nothing that it is told, or gives, differs from call to call, and it gives nothing to the caller."""
    homes = (storage[_owner(i, storage)] for i in call.outputs)
    at_home = all(s.kind is StorageKind.CONSTANT or (s.kind is StorageKind.ARENA and s.index == 0) for s in homes)
    return at_home and not _has_expressions(call.args) and all(_is_static(method, i) for i in call.outputs)


def _has_expressions(args: Iterable[Arg]) -> bool:
    return any(_has_expressions(a) if isinstance(a, tuple) else isinstance(a, Expr) for a in args)


def _is_static(method: Method, index: int) -> bool:
    return all(isinstance(size, int) for size in method.values[index].shape)


def _shape(method: Method, index: int) -> tuple[int, ...]:
    return tuple(size for size in method.values[index].shape if isinstance(size, int))


def _owner(index: int, storage: Sequence[Storage]) -> int:
    while storage[index].kind is StorageKind.ALIAS:
        index = storage[index].index
    return index
