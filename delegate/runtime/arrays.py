"""The arrays of a method's values, and the places that are filled anew in every call.

Values that lie in the arena, in constants or in states have their arrays once and for all. Values that lie in the
caller's arrays (INPUT) or in the arrays that the caller will get (OUTPUT), and views of these, differ from call to
call: wherever a list holds one, that place is a slot, and a call fills the slots before it runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from delegate.program.expr import Number, evaluate
from delegate.program.model import Arg, Method, Ref, Storage, StorageKind
from delegate.program.raw import nbytes, shadow
from delegate.runtime.backend import Array, DeviceTensor, TensorType
from delegate.runtime.resources import Resources
from delegate.runtime.storage import assign_storage, concrete

if TYPE_CHECKING:
    from delegate.runtime.arenas import Arena

Slot = tuple[list[Any], int]  # a list, and the entry of it that a call fills


class Arrays:
    """Arrays and slots of one method for one combination of sizes.

    Args:
        resources: where constants, states and memory are.
        method: whose values they are of.
        symbols: the numbers of the symbols that it uses.
        arenas: memory for the arenas of a method that holds its plan; their own if None.

    Attributes:
        storage: of every value.
        shapes: of every value.
        slots: the places to fill, by value.
    """

    def __init__(
        self,
        resources: Resources,
        method: Method,
        symbols: Mapping[int, Number],
        arenas: Sequence[Arena] | None = None,
    ) -> None:
        self._resources, self._method, self._symbols = resources, method, symbols
        self._same: dict[int, int] = {}
        self._examples: dict[int, Array] = {}
        self.slots: dict[int, list[Slot]] = defaultdict(list)
        self.storage, sizes = self._storages()
        self.shapes = [tuple(evaluate(d, symbols) for d in v.shape) for v in method.values]
        self._arenas = arenas or self._own_arenas(sizes)
        self._arrays = [self._home_array(i) for i in range(len(method.values))]

    def _storages(self) -> tuple[Sequence[Storage], Sequence[int]]:
        method = self._method
        if all(size >= 0 for size in method.arenas):
            return [v.storage for v in method.values], method.arenas
        plan = assign_storage(self._resources.program, method, self._resources.kernels, self._symbols)
        return plan.storages, plan.arenas

    def _own_arenas(self, totals: Sequence[int]) -> Sequence[Arena]:
        if len(totals) == 1:
            return [self._resources.platform.memory(totals[0])]
        from delegate.runtime.arenas import make_arenas  # most programs do without it

        sizes = [nbytes(shape, self.dtype(i)) for i, shape in enumerate(self.shapes)]
        return make_arenas(self._resources, self._method, self.storage, totals, sizes)

    def _home_array(self, index: int) -> Array | DeviceTensor | None:
        """The array of a value that is neither a view nor different in every call."""
        storage, value = self.storage[index], self._method.values[index]
        if storage.kind is StorageKind.CONSTANT:
            return self._resources.constants[storage.index]
        if storage.kind is StorageKind.STATE:
            return self._resources.states[storage.index]
        if storage.kind is StorageKind.ARENA and storage.offset >= 0:
            shape, dtype = self.shapes[index], value.dtype.numpy
            size = nbytes(shape, dtype)
            arena = self._arenas[storage.index]
            if isinstance(arena, dict):
                return arena[storage.offset].tensor(shape, dtype)
            return arena[storage.offset : storage.offset + size].view(dtype).reshape(shape)
        return None

    def dtype(self, index: int) -> np.dtype[Any]:
        """The dtype of a value's array."""
        return self._method.values[index].dtype.numpy

    def types(self, indices: Iterable[int]) -> tuple[TensorType, ...]:
        """Sizes and dtypes of values."""
        return tuple(TensorType(self.shapes[i], self.dtype(i)) for i in indices)

    def room(self, index: int) -> Array:
        """New memory for what the value holds."""
        return self._resources.platform.empty(self.shapes[index], self.dtype(index))

    def owner(self, index: int) -> int:
        """The value whose memory the value lies in."""
        while self.storage[index].kind is StorageKind.ALIAS:
            index = self.storage[index].index
        return index

    def per_call(self, index: int) -> bool:
        """Whether the value lies in other memory at every call."""
        return self.storage[self.owner(index)].kind in (StorageKind.INPUT, StorageKind.OUTPUT)

    def call_slots(self) -> list[Slot]:
        """All places that a call fills."""
        return [slot for index, slots in self.slots.items() if self.per_call(index) for slot in slots]

    def is_view(self, index: int) -> bool:
        """Whether the value is a part or another shape of one that owns memory."""
        return self.storage[self.same(index)].kind is StorageKind.ALIAS

    def same(self, index: int) -> int:
        """The value that this one is as it is: itself, unless it is an input of a block that is another value."""
        return self._same.get(index, index)

    def identify(self, index: int, other: int) -> None:
        """Say that a value is another one as it is."""
        self._same[index] = self.same(other)

    def array(self, index: int) -> Array | DeviceTensor | None:
        """The array of a value; None where it differs from call to call."""
        return self._arrays[self.same(index)]

    def set_array(self, index: int, array: Array) -> None:
        """Say which array a value has that is a view, or does not lie in the arena after all."""
        self._arrays[index] = array

    def shadow(self, index: int) -> Array:
        """An array of the shape and the dtype of a value that takes no memory."""
        return shadow(self.shapes[index], self.dtype(index))

    def example(self, index: int) -> Array:
        """An array of no memory with the strides that a value has in every call."""
        found = self._examples.get(self.same(index))
        return self.shadow(index) if found is None else found

    def set_example(self, index: int, view: Array) -> None:
        """Say which strides a value has that is a view of one that differs from call to call."""
        self._examples[index] = view

    def arguments(self, args: Iterable[Arg]) -> list[Any]:
        """Arguments of a kernel: arrays, slots where arrays differ from call to call, numbers and lists."""
        made: list[Any] = []
        for i, arg in enumerate(args):
            if isinstance(arg, Ref):
                made.append(self._entry(arg.index, made, i))
            elif isinstance(arg, tuple):
                made.append(self.arguments(arg))
            else:
                made.append(concrete(arg, self._symbols))
        return made

    def entries(self, indices: Iterable[int]) -> list[Any]:
        """The arrays of values; slots where they differ from call to call."""
        made: list[Any] = []
        for i, index in enumerate(indices):
            made.append(self._entry(index, made, i))
        return made

    def _entry(self, index: int, entries: list[Any], i: int) -> Array | DeviceTensor | None:
        index = self.same(index)
        if self.per_call(index):
            self.slots[index].append((entries, i))
            return None
        return self._arrays[index]
