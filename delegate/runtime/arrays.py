"""The memory of an execution plan: arenas, the arrays of values in them, and the slots that are filled in every call.

The plans of a context share its `Resources`. Values in the arena, in constants or in states have fixed arrays. Values
in the caller's arrays (INPUT), in new result arrays (OUTPUT), and views of these differ between calls. A list entry
that holds such a value is a slot, which a call fills before it runs.

Values that kernels compute from constants alone, such as dequantized weights, are computed in the first call, then
stored. All contexts of a program share them, and the file holds only the constants, but calls are as fast as if it held
the results.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from delegate.kernels.selection import Kernels
from delegate.memory.storage import assign_storage, concrete, is_planned, owner
from delegate.plugins import PORTABLE
from delegate.program.expr import Expr, Number, evaluate
from delegate.program.instructions import reads, refs, walk
from delegate.program.model import (
    Arg,
    DelegateCall,
    DelegateSpec,
    Instruction,
    KernelCall,
    MethodDefinition,
    Program,
    Ref,
    Storage,
    StorageKind,
)
from delegate.program.raw import nbytes, shadow
from delegate.runtime.backend import Array, Delegate, DeviceMemory, DeviceTensor, TensorType
from delegate.runtime.lifecycle import CallLock
from delegate.runtime.platform import Platform
from delegate.runtime.steps import Step, run_steps

if TYPE_CHECKING:
    from delegate.runtime.devices import Space
    from delegate.runtime.watch import Watch


class Resources(NamedTuple):
    """The resources of one context. All contexts of a program share all but states, lock, watch and profiled delegates.

    Args:
        program: The program that is bound.
        constants: an array per constant.
        delegates: a delegate per partition.
        delegate_locks: held while a delegate runs; None for a thread-safe delegate.
        kernels: source of kernels.
        platform: allocates memory.
        states: an array per state.
        lazy_constants: values that methods compute from constants alone.
        lock: held during a call.
        watch: observes the instructions; None without a listener.
        profiled: number of a delegate -> the delegate and lock in its place, which report the library's operators.
        spaces: memory of devices, as `Program.spaces`.
        portable_shares: method -> the share of portable kernels in its time, by the last profile of it that has ended.
    """

    program: Program
    constants: tuple[Array, ...]
    delegates: tuple[Delegate, ...]
    delegate_locks: tuple[CallLock | None, ...]
    kernels: Kernels
    platform: Platform
    states: tuple[Array, ...]
    lazy_constants: LazyConstantTable
    lock: CallLock
    portable_shares: dict[str, float]
    watch: Watch | None = None
    profiled: Mapping[int, tuple[Delegate, CallLock | None]] = MappingProxyType({})
    spaces: tuple[Space, ...] = ()

    def delegate(self, number: int) -> tuple[Delegate, CallLock | None]:
        """Return the delegate of a partition, and its lock."""
        return self.profiled.get(number) or (self.delegates[number], self.delegate_locks[number])


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


# id of a method's instructions -> these, which keeps the id valid, and their lazy constants
LazyConstantTable = dict[int, tuple[tuple[Instruction, ...], LazyConstants]]


def lazy_constants_of(resources: Resources, method: MethodDefinition, storage: Sequence[Storage]) -> LazyConstants:
    """Return the lazy constants of a method, for any memory plan; `storage` is the storage that its values have."""
    key = id(method.instructions)
    if key not in resources.lazy_constants:
        found = _find_lazy(resources.program, method, resources.kernels, storage)
        resources.lazy_constants[key] = method.instructions, found
    return resources.lazy_constants[key][1]


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


Arena = Array | dict[int, DeviceMemory]  # bytes of the host, or blocks of a device by offset
Slot = tuple[list[Any], int]  # a list, and the index of the entry that a call fills


class Arrays:
    """Arrays and slots of one method for one combination of sizes.

    Args:
        resources: source of constants, states and memory.
        method: the owner of the values.
        symbols: the numbers of the symbols that it uses.
        arenas: memory for a method with a saved memory plan; allocated here if None.

    Attributes:
        storage: Every value's storage.
        shapes: Every value's shape.
        slots: the entries to fill in each call, by value.
    """

    def __init__(
        self,
        resources: Resources,
        method: MethodDefinition,
        symbols: Mapping[int, Number],
        arenas: Sequence[Arena] | None = None,
    ) -> None:
        self._resources, self._method, self._symbols = resources, method, symbols
        self._same: dict[int, int] = {}
        self._examples: dict[int, Array] = {}
        self.slots: dict[int, list[Slot]] = defaultdict(list)
        self.storage, totals = self._storages()
        self.shapes = [tuple(evaluate(d, symbols) for d in v.shape) for v in method.values]
        self._arenas = arenas or make_arenas(resources, method, self.storage, totals, self._nbytes)
        self._arrays = [self._fixed_array(i) for i in range(len(method.values))]

    def _storages(self) -> tuple[Sequence[Storage], Sequence[int]]:
        method = self._method
        if is_planned(method):
            return [v.storage for v in method.values], method.arenas
        plan = assign_storage(self._resources.program, method, self._resources.kernels, self._symbols)
        return plan.storages, plan.arenas

    def _nbytes(self, index: int) -> int:
        return nbytes(self.shapes[index], self.dtype(index))

    def _fixed_array(self, index: int) -> Array | DeviceTensor | None:
        """Return the array of a value; None for views and for values that differ between calls."""
        storage, value = self.storage[index], self._method.values[index]
        if storage.kind is StorageKind.CONSTANT:
            return self._resources.constants[storage.index]
        if storage.kind is StorageKind.STATE:
            return self._resources.states[storage.index]
        if storage.kind is StorageKind.ARENA and storage.offset >= 0:
            shape, dtype = self.shapes[index], value.dtype.numpy
            arena = self._arenas[storage.index]
            if isinstance(arena, dict):
                return arena[storage.offset].tensor(shape, dtype)
            return arena[storage.offset : storage.offset + self._nbytes(index)].view(dtype).reshape(shape)
        return None

    def dtype(self, index: int) -> np.dtype[Any]:
        """Return the dtype of a value's array."""
        return self._method.values[index].dtype.numpy

    def types(self, indices: Iterable[int]) -> tuple[TensorType, ...]:
        """Return the sizes and dtypes of values."""
        return tuple(TensorType(self.shapes[i], self.dtype(i)) for i in indices)

    def allocate(self, index: int) -> Array:
        """Allocate an array for a value."""
        return self._resources.platform.empty(self.shapes[index], self.dtype(index))

    def owner(self, index: int) -> int:
        """Return the value that owns the memory of a value."""
        return owner(index, self.storage)

    def per_call(self, index: int) -> bool:
        """Return True if the memory of a value differs between calls."""
        return self.storage[self.owner(index)].kind in (StorageKind.INPUT, StorageKind.OUTPUT)

    def call_slots(self) -> list[Slot]:
        """Return all slots that a call fills."""
        return [slot for index, slots in self.slots.items() if self.per_call(index) for slot in slots]

    def is_view(self, index: int) -> bool:
        """Return True if the value is a view of a value that owns memory."""
        return self.storage[self.same(index)].kind is StorageKind.ALIAS

    def same(self, index: int) -> int:
        """Return the value that this value is identical to: itself, or the base of a block's input."""
        return self._same.get(index, index)

    def identify(self, index: int, other: int) -> None:
        """Record that a value is identical to another one."""
        self._same[index] = self.same(other)

    def array(self, index: int) -> Array | DeviceTensor | None:
        """Return the array of a value; None if it differs between calls."""
        return self._arrays[self.same(index)]

    def set_array(self, index: int, array: Array) -> None:
        """Set the array of a view, or of a value outside of the arena."""
        self._arrays[index] = array

    def shadow(self, index: int) -> Array:
        """Return an array of the shape and dtype of a value that takes no memory."""
        return shadow(self.shapes[index], self.dtype(index))

    def example(self, index: int) -> Array:
        """Return an array without memory, with the strides that a value has in every call."""
        example = self._examples.get(self.same(index))
        return self.shadow(index) if example is None else example

    def set_example(self, index: int, view: Array) -> None:
        """Set the strides of a view on a value that differs between calls."""
        self._examples[index] = view

    def arguments(self, args: Iterable[Arg]) -> list[Any]:
        """Return arguments of a kernel: arrays, numbers and lists, with slots for arrays that vary between calls."""
        arguments: list[Any] = []
        for i, arg in enumerate(args):
            if isinstance(arg, Ref):
                arguments.append(self._entry(arg.index, arguments, i))
            elif isinstance(arg, tuple):
                arguments.append(self.arguments(arg))
            else:
                arguments.append(concrete(arg, self._symbols))
        return arguments

    def entries(self, indices: Iterable[int]) -> list[Any]:
        """Return the arrays of values, with slots for those that differ between calls."""
        entries: list[Any] = []
        for i, index in enumerate(indices):
            entries.append(self._entry(index, entries, i))
        return entries

    def _entry(self, index: int, entries: list[Any], i: int) -> Array | DeviceTensor | None:
        index = self.same(index)
        if self.per_call(index):
            self.slots[index].append((entries, i))
            return None
        return self._arrays[index]


def make_arenas(
    resources: Resources,
    method: MethodDefinition,
    storages: Sequence[Storage],
    totals: Sequence[int],
    size_of: Callable[[int], int],
) -> list[Arena]:
    """Return memory for every memory space of a method; raise as `Space.blocks` and `Platform.memory` do.

    Args:
        resources: The context's resources.
        method: the method to bind.
        storages: The storages that the values have.
        totals: bytes of every memory space.
        size_of: returns the bytes of a value.
    """
    arenas: list[Arena] = []
    for number, total in enumerate(totals):
        blocks: Arena | None = None
        if total and 0 < number <= len(resources.spaces):
            space = resources.spaces[number - 1]
            blocks = space.blocks(_blocks(resources.program, method, storages, size_of, number))
        arenas.append(resources.platform.memory(total) if blocks is None else blocks)
    return arenas


def _blocks(
    program: Program, method: MethodDefinition, storages: Sequence[Storage], size_of: Callable[[int], int], number: int
) -> dict[int, tuple[int, DelegateSpec]]:
    """Return the blocks of a memory space by offset: the size of its largest value, and a delegate that uses it."""
    blocks: dict[int, tuple[int, DelegateSpec]] = {}
    for call in walk(method.instructions):
        if isinstance(call, DelegateCall):
            for index in (*call.outputs, *call.inputs):
                storage = storages[index]
                if (storage.kind, storage.index) == (StorageKind.ARENA, number):
                    spec = program.delegates[call.delegate]
                    block = blocks.get(storage.offset, (0, spec))
                    blocks[storage.offset] = max(block, (size_of(index), spec), key=itemgetter(0))
    return blocks
