"""A method bound to memory: every instruction a step over NumPy views, for one combination of input shapes.

Values that lie in the arena, in constants or in states are bound once. Values that lie in the caller's arrays (INPUT)
or in the arrays that the caller will get (OUTPUT), and views of these, differ from call to call: wherever a step holds
one, that place is a slot, and a call fills the slots before it runs the steps. So neither inputs nor outputs are
copied.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from delegate.errors import LoweringError
from delegate.program.blocks import block_bases
from delegate.program.dtypes import DType
from delegate.program.expr import Expr, Number, evaluate
from delegate.program.lifetimes import refs
from delegate.program.model import (
    Arg,
    Block,
    DelegateCall,
    Home,
    Instruction,
    KernelCall,
    Method,
    Program,
    Ref,
    Storage,
    Structure,
    StructuredCall,
)
from delegate.runtime.backend import Array, Delegate
from delegate.runtime.blocks import BoundBlock, IfStep, Moves, ScanStep, WhileStep
from delegate.runtime.kernels import Kernels, place
from delegate.runtime.platform import Platform
from delegate.runtime.steps import CompactStep, DelegateStep, Step, kernel_step, run_steps
from delegate.runtime.storage import assign_storage, call_view, concrete

if TYPE_CHECKING:
    from delegate.kernels.table import Kernel
    from delegate.runtime.profile import Profile

Slot = tuple[list[Any], int]  # a list, and the entry of it that a call fills


@dataclass(frozen=True, slots=True)
class Resources:
    """What the bindings of one context share; all but the last three are the same in all contexts of a program.

    Args:
        program: what they bind.
        constants: an array per constant.
        delegates: a delegate per partition.
        guards: what is held while a delegate runs: a lock, or nothing where it can run several calls at once.
        kernels: where kernels are looked up.
        platform: gives memory.
        states: an array per state.
        lock: held during a call.
        profile: watches the instructions; None where nobody does.
    """

    program: Program
    constants: tuple[Array, ...]
    delegates: tuple[Delegate, ...]
    guards: tuple[AbstractContextManager[Any], ...]
    kernels: Kernels
    platform: Platform
    states: tuple[Array, ...]
    lock: Lock
    profile: Profile | None = None


class _CallView:
    """A view that is made anew in every call, because its base differs from call to call."""

    __slots__ = ("args", "kernel", "slots")

    def __init__(self, kernel: Kernel, args: list[Any], slots: list[list[Slot]]) -> None:
        self.kernel, self.args, self.slots = kernel, args, slots

    def __call__(self) -> None:
        views = call_view(self.kernel, self.args)
        assert views is not None  # the same strides allowed it when the method was bound
        for slots, view in zip(self.slots, views, strict=True):
            for entries, i in slots:
                entries[i] = view


class Binding:
    """The steps of a method for one combination of shapes.

    Args:
        resources: what it shares with others.
        method: what is bound.
        symbols: the numbers of the symbols that it uses.
        arenas: memory for the arenas of a method that holds its plan; its own if None.

    Not thread-safe: the steps share one arena. `Method` holds the lock of its context meanwhile.
    """

    def __init__(
        self,
        resources: Resources,
        method: Method,
        symbols: Mapping[int, Number],
        arenas: Sequence[Array] | None = None,
    ) -> None:
        self._resources, self._method, self._symbols = resources, method, symbols
        self._slots: dict[int, list[Slot]] = defaultdict(list)
        self._call_views: list[_CallView] = []
        self._same: dict[int, int] = {}  # inputs of blocks that are another value as it is
        self.steps: list[Step] = []
        storages, sizes = self._storages()
        self._storage = storages
        self._empty = resources.platform.empty
        self._arenas = arenas or [resources.platform.memory(size) for size in sizes]
        self._shapes = [tuple(evaluate(d, symbols) for d in v.shape) for v in method.values]
        self._arrays = [self._home_array(i) for i in range(len(method.values))]
        for instruction in method.instructions:
            self._bind(instruction)
        self._only_delegates = all(isinstance(step, DelegateStep) for step in self.steps)
        self._direct = self._single_delegate()
        self._made = [
            (self._shapes[o.index], method.values[o.index].dtype.numpy) for o in method.outputs if isinstance(o, Ref)
        ]
        self._results: list[Any] = [None] * len(method.outputs)
        self._copies: list[tuple[int, Array]] = []
        for number, output in enumerate(method.outputs):
            self._bind_result(number, output)
        self._input_slots = self._slots_by_input()
        self._fresh = [
            (self._shapes[i], method.values[i].dtype.numpy, self._slots[i])
            for i, s in enumerate(storages)
            if s.home is Home.OUTPUT
        ]
        self._call_slots = [slot for i, slots in self._slots.items() if self._per_call(i) for slot in slots]

    def run(self, inputs: Sequence[Array | None]) -> list[Any]:
        """Run once.

        Args:
            inputs: an array per input of the method, row-major and of the bound shapes; None for a literal.

        Returns:
            A new array, or a number, per output of the method.
        """
        if self._direct is not None:
            return self._run_direct(self._direct, inputs)
        for slots, array in zip(self._input_slots, inputs, strict=True):
            for entries, i in slots:
                entries[i] = array
        for shape, dtype, slots in self._fresh:
            made = self._empty(shape, dtype)
            for entries, i in slots:
                entries[i] = made
        try:
            for view in self._call_views:
                view()
            if self._only_delegates:
                run_steps(self.steps)
            else:
                with np.errstate(all="ignore"):  # torch does not warn of infinities and NaN either
                    run_steps(self.steps)
            results = list(self._results)
            for number, array in self._copies:
                results[number] = made = self._empty(array.shape, array.dtype)
                np.copyto(made, array)
            return results
        finally:
            for entries, i in self._call_slots:  # the caller's arrays are not kept alive
                entries[i] = None

    def _single_delegate(self) -> DelegateStep | None:
        """The step of a method that does nothing but hand its arguments to a delegate and give what that makes."""
        calls = self._method.instructions
        if len(calls) != 1 or not isinstance(calls[0], DelegateCall):
            return None
        inputs = tuple(i.value for i in self._method.inputs)
        results = tuple(Ref(o) for o in calls[0].outputs)
        step = self.steps[-1]
        if len(self.steps) != 1 or calls[0].inputs != inputs or self._method.outputs != results:
            return None
        if any(self._storage[o].home is not Home.OUTPUT for o in calls[0].outputs):
            return None
        return step if isinstance(step, DelegateStep) else None

    def _run_direct(self, step: DelegateStep, inputs: Sequence[Array | None]) -> list[Any]:
        """Short, for the time of a small model is the time that is spent in Python."""
        outputs: list[Any] = [self._empty(shape, dtype) for shape, dtype in self._made]
        try:
            with step.guard:
                step.delegate.execute(inputs, outputs)  # type: ignore[arg-type]
        except Exception as error:
            raise step.failed(error) from error
        return outputs

    def _storages(self) -> tuple[Sequence[Storage], Sequence[int]]:
        method = self._method
        if all(size >= 0 for size in method.arenas):
            return [v.storage for v in method.values], method.arenas
        plan = assign_storage(self._resources.program, method, self._resources.kernels, self._symbols)
        return plan.storages, plan.arenas

    def _home_array(self, index: int) -> Array | None:
        """The array of a value that is neither a view nor different in every call."""
        storage, value = self._storage[index], self._method.values[index]
        if storage.home is Home.CONSTANT:
            return self._resources.constants[storage.index]
        if storage.home is Home.STATE:
            return self._resources.states[storage.index]
        if storage.home is Home.ARENA and storage.offset >= 0:
            shape, dtype = self._shapes[index], value.dtype.numpy
            size = dtype.itemsize * int(np.prod(shape))
            raw = self._arenas[storage.index][storage.offset : storage.offset + size]
            return raw.view(dtype).reshape(shape)
        return None

    def _owner(self, index: int) -> int:
        """The value whose memory the value lies in."""
        while self._storage[index].home is Home.ALIAS:
            index = self._storage[index].index
        return index

    def _per_call(self, index: int) -> bool:
        """Whether the value lies in other memory at every call."""
        return self._storage[self._owner(index)].home in (Home.INPUT, Home.OUTPUT)

    def _bind(self, instruction: Instruction) -> None:
        first, profile = len(self.steps), self._resources.profile
        self._bind_unwatched(instruction)
        if profile is not None:
            made = self.steps[first:]
            self.steps[first:] = profile.watched(self._resources.program, self._method, instruction, made)

    def _bind_unwatched(self, instruction: Instruction) -> None:
        if isinstance(instruction, KernelCall):
            self._bind_kernel(instruction)
        elif isinstance(instruction, DelegateCall):
            self._bind_delegate(instruction)
        else:
            self._bind_structured(instruction)

    def _bind_kernel(self, call: KernelCall) -> None:
        kernel = self._resources.kernels.of(self._resources.program, self._method, call)
        args = self._arguments(call.args)
        if kernel.is_view and all(self._storage[o].home is Home.ALIAS for o in call.outputs):
            self._bind_view(kernel, call, args)
            return
        outs = self._entries(call.outputs)
        copies: list[Step] = []
        if not kernel.is_view and not self._may_write(kernel, call):
            for i, out in enumerate(outs):
                if out is not None:
                    outs[i] = self._empty(out.shape, out.dtype)
                    copies.append(CompactStep(outs[i], out))
        self.steps.append(kernel_step(kernel, args, outs, place(self._method, call)))
        self.steps.extend(copies)

    def _may_write(self, kernel: Kernel, call: KernelCall) -> bool:
        """Whether the kernel is right where its results lie: in no memory that it reads, unless it runs in place.

        The library that is here may be another than the one that the program was made with.
        """
        written = {i for o in call.outputs if (i := self._state_of(o)) >= 0}
        if not written:
            return True
        first = call.args[0] if call.args else None
        whole = isinstance(first, Ref) and self._storage[first.index].home is Home.STATE
        others = call.args[1:] if kernel.in_place and whole else call.args
        return all(self._state_of(i) not in written for i in refs(others))

    def _state_of(self, index: int) -> int:
        """The state that a value lies in, or -1."""
        storage = self._storage[self._owner(index)]
        return storage.index if storage.home is Home.STATE else -1

    def _bind_view(self, kernel: Kernel, call: KernelCall, args: list[Any]) -> None:
        if self._per_call(call.outputs[0]):
            self._call_views.append(_CallView(kernel, args, [self._slots[o] for o in call.outputs]))
            return
        views = call_view(kernel, args)
        if views is None:
            raise LoweringError(f"{kernel.op} gives no view of these strides", where=place(self._method, call))
        for output, view in zip(call.outputs, views, strict=True):
            self._arrays[output] = view

    def _bind_delegate(self, call: DelegateCall) -> None:
        program = self._resources.program
        inputs = self._entries(call.inputs)
        for i, index in enumerate(call.inputs):
            array = inputs[i]
            if array is not None and not array.flags.c_contiguous:
                inputs[i] = self._empty(array.shape, array.dtype)
                self.steps.append(CompactStep(array, inputs[i]))
            elif array is None and self._storage[self._same.get(index, index)].home is Home.ALIAS:
                self._compact_per_call(index, inputs, i)
        self.steps.append(
            DelegateStep(
                self._resources.delegates[call.delegate],
                self._resources.guards[call.delegate],
                inputs,
                self._entries(call.outputs),
                program.delegates[call.delegate],
            )
        )

    def _compact_per_call(self, index: int, inputs: list[Any], i: int) -> None:
        """A view of the caller's array may be strided: the delegate gets a row-major copy of it."""
        index = self._same.get(index, index)
        self._slots[index].remove((inputs, i))
        inputs[i] = self._empty(self._shapes[index], self._method.values[index].dtype.numpy)
        step = CompactStep(inputs[i], inputs[i])
        self._slots[index].append((step.source, 0))
        self.steps.append(step)

    def _bind_structured(self, call: StructuredCall) -> None:
        kept, place = call.outputs[: call.carried], f"method {self._method.name}, {call.kind.name.lower()}"
        blocks = [self._bind_block(call, block) for block in call.blocks]
        start, body = self._moves(call.operands[: call.carried], kept), call.blocks[-1]
        advance = self._moves(body.outputs[: call.carried], kept)
        if call.kind is Structure.IF:
            leave = [self._moves(block.outputs, call.outputs) for block in call.blocks]
            then, other = zip(blocks, leave, strict=True)
            self.steps.append(IfStep(place, self._entries(call.operands[:1]), then, other))
        elif call.kind is Structure.WHILE:
            holds = self._entries(call.blocks[0].outputs)
            self.steps.append(WhileStep(place, start, blocks[0], holds, blocks[1], advance))
        else:
            behind = call.carried + call.sequences
            sequences = call.operands[call.carried : behind], body.inputs[call.carried : behind]
            stacks = body.outputs[call.carried :], call.outputs[call.carried :]
            self.steps.append(ScanStep(place, start, self._pair(*sequences), blocks[0], self._pair(*stacks), advance))

    def _bind_block(self, call: StructuredCall, block: Block) -> BoundBlock:
        bases = dict(block_bases(call, block))
        self._same |= {i: self._same.get(b, b) for i, b in bases.items() if self._storage[i].home is Home.ALIAS}
        enter = self._moves(list(bases.values()), list(bases))
        outside, self.steps = self.steps, []
        for instruction in block.instructions:
            self._bind(instruction)
        inside, self.steps = self.steps, outside
        return BoundBlock(enter, inside)

    def _moves(self, sources: Sequence[int], targets: Sequence[int]) -> Moves:
        """Copies of values to others; none where both are one value."""
        same = self._same
        pairs = [(s, t) for s, t in zip(sources, targets, strict=True) if same.get(s, s) != same.get(t, t)]
        owners = [self._owner(t) for _, t in pairs]
        staged = [
            (i, self._empty(self._shapes[s], self._method.values[s].dtype.numpy))
            for i, (s, _) in enumerate(pairs)
            if self._owner(s) in owners[:i] or self._owner(s) in owners[i + 1 :]
        ]
        return Moves(self._entries(s for s, _ in pairs), self._entries(t for _, t in pairs), staged)

    def _pair(self, sources: Iterable[int], targets: Iterable[int]) -> tuple[list[Any], list[Any]]:
        return self._entries(sources), self._entries(targets)

    def _arguments(self, args: Iterable[Arg]) -> list[Any]:
        made: list[Any] = []
        for i, arg in enumerate(args):
            if isinstance(arg, Ref):
                made.append(self._array_or_slot(arg.index, made, i))
            elif isinstance(arg, tuple):
                made.append(self._arguments(arg))
            else:
                made.append(concrete(arg, self._symbols))
        return made

    def _entries(self, indices: Iterable[int]) -> list[Any]:
        made: list[Any] = []
        for i, index in enumerate(indices):
            made.append(self._array_or_slot(index, made, i))
        return made

    def _array_or_slot(self, index: int, entries: list[Any], i: int) -> Array | None:
        index = self._same.get(index, index)
        if self._per_call(index):
            self._slots[index].append((entries, i))
            return None
        return self._arrays[index]

    def _bind_result(self, number: int, output: Arg) -> None:
        if not isinstance(output, Ref):
            self._results[number] = output.evaluate(self._symbols) if isinstance(output, Expr) else output
        elif self._per_call(output.index):
            self._slots[output.index].append((self._results, number))
        else:
            array = self._arrays[output.index]
            assert array is not None
            self._copies.append((number, array))

    def _slots_by_input(self) -> list[list[Slot]]:
        """The slots to fill per input of the method, in order."""
        return [self._slots[given.value] if given.value >= 0 else [] for given in self._method.inputs]


def array_of(data: memoryview | bytes, dtype: DType, shape: tuple[int, ...]) -> Array:
    """A read-only array over the bytes of a segment."""
    array = np.frombuffer(data, dtype.numpy).reshape(shape)
    array.flags.writeable = False
    return array
