"""A method bound to memory: every instruction a step over NumPy arrays, for one combination of input shapes.

Neither inputs nor outputs are copied: see `arrays`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from delegate.errors import KernelError
from delegate.program.blocks import walk
from delegate.program.expr import Expr, Number
from delegate.program.lifetimes import refs
from delegate.program.model import (
    Arg,
    DelegateCall,
    Instruction,
    KernelCall,
    Method,
    Ref,
    StorageKind,
    Structure,
    StructuredCall,
)
from delegate.runtime.arrays import Arrays, Slot
from delegate.runtime.backend import Array, DeviceTensor
from delegate.runtime.direct import DirectCall
from delegate.runtime.kernels import base_of, place
from delegate.runtime.platform import no_memory
from delegate.runtime.resources import Resources
from delegate.runtime.steps import CompactStep, DelegateStep, Step, kernel_step, run_steps
from delegate.runtime.storage import call_view, check_view
from delegate.runtime.structures import structured_step

if TYPE_CHECKING:
    from delegate.kernels.kernel import Kernel
    from delegate.runtime.arenas import Arena


class _CallView:
    """A view that is made anew in every call, because its base differs from call to call.

    It was tried when the method was bound, on an array of the same strides.
    """

    __slots__ = ("args", "function", "slots")

    def __init__(self, kernel: Kernel, args: list[Any], slots: list[list[Slot]]) -> None:
        self.function, self.args, self.slots = kernel.function, args, slots

    def __call__(self) -> None:
        made = self.function(*self.args)
        for slots, view in zip(self.slots, (made,) if isinstance(made, np.ndarray) else made, strict=True):
            for entries, i in slots:
                entries[i] = view


class ExecutionPlan:
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
        arenas: Sequence[Arena] | None = None,
    ) -> None:
        self._resources, self._method, self._symbols = resources, method, symbols
        self._arrays = Arrays(resources, method, symbols, arenas)
        self._empty = resources.platform.empty
        self._call_views: list[_CallView] = []
        self.steps: list[Step] = []
        self._begin: tuple[Step, ...] = ()  # what every block begins with
        self._lazy = resources.lazy_constants.of(resources.program, method, resources.kernels, self._arrays.storage)
        self._at_first: list[Step] = []
        for position, instruction in enumerate(method.instructions):
            if position in self._lazy.calls:
                self._bind_computed(instruction)
            else:
                self._bind(instruction)
        self._only_delegates = all(isinstance(step, DelegateStep) for step in self.steps)
        self.direct = self._direct_call()
        self._results: list[Any] = [None] * len(method.outputs)
        self._copies: list[tuple[int, Array]] = []
        for number, output in enumerate(method.outputs):
            self._bind_result(number, output)
        self._input_slots = self._slots_by_input()
        self._fresh = [
            (self._arrays.shapes[i], self._arrays.dtype(i), self._arrays.slots[i])
            for i, s in enumerate(self._arrays.storage)
            if s.kind is StorageKind.OUTPUT
        ]
        self._call_slots = self._arrays.call_slots()

    def run(self, inputs: Sequence[Array | None]) -> list[Any]:
        """Run once.

        Args:
            inputs: an array per input of the method, row-major and of the bound shapes; None for a literal.

        Returns:
            A new array, or a number, per output of the method.
        """
        if self.direct is not None:
            return self.direct(inputs)
        for slots, array in zip(self._input_slots, inputs, strict=True):
            for entries, i in slots:
                entries[i] = array
        try:
            for shape, dtype, slots in self._fresh:
                made = self._empty(shape, dtype)
                for entries, i in slots:
                    entries[i] = made
        except (MemoryError, ValueError) as error:
            raise no_memory([shape for shape, _, _ in self._fresh], error) from error
        try:
            for view in self._call_views:
                view()
            if self._only_delegates and not self._at_first:
                run_steps(self.steps)
            else:
                with np.errstate(all="ignore"):  # torch does not warn of infinities and NaN either
                    self._compute()
                    run_steps(self.steps)
            results = list(self._results)
            for number, array in self._copies:
                results[number] = made = self._empty(array.shape, array.dtype)
                np.copyto(made, array)
            return results
        finally:
            for entries, i in self._call_slots:  # the caller's arrays are not kept alive
                entries[i] = None

    def _compute(self) -> None:
        """In the first call: what depends on constants alone."""
        if self._at_first:
            self._lazy.compute(self._at_first)
            self._at_first = []

    def _direct_call(self) -> DirectCall | None:
        """The call of a method that does nothing but hand its arguments to a delegate and give what that makes."""
        calls, step = self._method.instructions, self.steps[0] if len(self.steps) == 1 else None
        if len(calls) != 1 or not isinstance(calls[0], DelegateCall) or not isinstance(step, DelegateStep):
            return None
        outputs = calls[0].outputs
        if calls[0].inputs != tuple(i.value for i in self._method.inputs):
            return None
        if self._method.outputs != tuple(map(Ref, outputs)):
            return None
        if any(self._arrays.storage[o].kind is not StorageKind.OUTPUT for o in outputs):
            return None
        return DirectCall(step, [(self._arrays.shapes[o], self._arrays.dtype(o)) for o in outputs], self._empty)

    def _bind(self, instruction: Instruction) -> None:
        first, watch = len(self.steps), self._resources.watch
        self._bind_unwatched(instruction)
        if watch is not None:
            made = self.steps[first:]
            self.steps[first:] = watch.watched(self._resources.program, self._method, instruction, made)

    def _bind_computed(self, instruction: Instruction) -> None:
        """What depends on constants alone runs in the first call, and lies in memory of its own if others read it."""
        for index in instruction.outputs:
            if index in self._lazy.kept:
                self._arrays.set_array(index, self._lazy.array(index, partial(self._arrays.room, index)))
        self._at_first += self._steps_of((instruction,))

    def _steps_of(self, instructions: Iterable[Instruction]) -> list[Step]:
        """The steps of a block."""
        outside, self.steps = self.steps, [*self._begin]
        for instruction in instructions:
            self._bind(instruction)
        inside, self.steps = self.steps, outside
        return inside

    def _bind_unwatched(self, instruction: Instruction) -> None:
        if isinstance(instruction, KernelCall):
            self._bind_kernel(instruction)
        elif isinstance(instruction, DelegateCall):
            self._bind_delegate(instruction)
        elif instruction.kind is Structure.PARALLEL:
            self._bind_parallel(instruction)
        else:
            self.steps.append(structured_step(self._arrays, instruction, self._steps_of, self._method.name))

    def _bind_parallel(self, call: StructuredCall) -> None:
        from delegate.runtime.parallel import ParallelStep, Stop  # most programs do without it

        called = (c.delegate for block in call.blocks for c in walk(block.instructions) if isinstance(c, DelegateCall))
        stop = Stop([self._resources.delegates[number].interrupt for number in dict.fromkeys(called)])
        outside, self._begin = self._begin, (stop,)
        branches = [self._steps_of(block.instructions) for block in call.blocks]
        self._begin = outside
        place = f"method {self._method.name}, {call.kind.name.lower()}"
        self.steps.append(ParallelStep(place, branches, stop, self._resources.workers))

    def _bind_kernel(self, call: KernelCall) -> None:
        kernel = self._resources.kernels.of(self._resources.program, self._method, call)
        args = self._arrays.arguments(call.args)
        if kernel.is_view and all(self._arrays.storage[o].kind is StorageKind.ALIAS for o in call.outputs):
            self._bind_view(kernel, call, args)
            return
        outs = self._arrays.entries(call.outputs)
        if self._resources.spaces and args and isinstance(args[0], DeviceTensor):
            self._bind_fetch(call, args[0], outs)
            return
        if self._resources.spaces and outs and isinstance(outs[0], DeviceTensor):
            self._bind_upload(call, args, outs[0])
            return
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
        whole = isinstance(first, Ref) and self._arrays.storage[first.index].kind is StorageKind.STATE
        others = call.args[1:] if kernel.in_place and whole else call.args
        return all(self._state_of(i) not in written for i in refs(others))

    def _state_of(self, index: int) -> int:
        """The state that a value lies in, or -1."""
        storage = self._arrays.storage[self._arrays.owner(index)]
        return storage.index if storage.kind is StorageKind.STATE else -1

    def _bind_view(self, kernel: Kernel, call: KernelCall, args: list[Any]) -> None:
        base = base_of(self._method, call)
        if any(self._arrays.storage[o].index != base for o in call.outputs):
            what = f"{kernel.op} gives views of its first argument, the program has others"
            raise KernelError(what, where=place(self._method, call))
        anew = self._arrays.per_call(call.outputs[0])
        views = call_view(kernel, [self._arrays.example(base), *args[1:]] if anew else args, self._method, call)
        if views is None:
            raise KernelError(f"{kernel.op} gives no view of these strides", where=place(self._method, call))
        for output, view in zip(call.outputs, views, strict=True):
            check_view(view, self._arrays.shadow(output), place(self._method, call))
            if anew:
                self._arrays.set_example(output, view)
            else:
                self._arrays.set_array(output, view)
        if anew:
            self._call_views.append(_CallView(kernel, args, [self._arrays.slots[o] for o in call.outputs]))

    def _bind_delegate(self, call: DelegateCall) -> None:
        program = self._resources.program
        inputs = self._arrays.entries(call.inputs)
        for i, index in enumerate(call.inputs):
            array = inputs[i]
            if isinstance(array, np.ndarray) and not array.flags.c_contiguous:
                inputs[i] = self._empty(array.shape, array.dtype)
                self.steps.append(CompactStep(array, inputs[i]))
            elif array is None and self._arrays.is_view(index):
                self._compact_per_call(index, inputs, i)
        step = self._delegate_step(inputs)(
            self._resources.delegates[call.delegate],
            self._resources.delegate_locks[call.delegate],
            inputs,
            self._arrays.entries(call.outputs),
            program.delegates[call.delegate],
        )
        step.prepare(self._arrays.types(call.inputs), self._arrays.types(call.outputs))
        self.steps.append(step)

    def _delegate_step(self, inputs: Iterable[Any]) -> type[DelegateStep]:
        if not self._resources.spaces or not any(isinstance(i, DeviceTensor) for i in inputs):
            return DelegateStep
        from delegate.runtime.device_steps import DeviceStep

        return DeviceStep

    def _bind_fetch(self, call: KernelCall, source: DeviceTensor, outs: list[Any]) -> None:
        """A tensor in a device's memory is copied by its backend, not by a kernel."""
        from delegate.runtime.device_steps import FetchStep, partition_of

        (index,) = refs(call.args)
        self.steps.append(FetchStep(source, outs, partition_of(self._resources.program, self._method, index)))

    def _bind_upload(self, call: KernelCall, args: list[Any], target: DeviceTensor) -> None:
        """So is one that several partitions of a device read."""
        from delegate.runtime.device_steps import UploadStep, partition_of

        (index,) = call.outputs
        space = self._resources.spaces[self._arrays.storage[index].index - 1]
        spec = partition_of(self._resources.program, self._method, index)
        self.steps.append(UploadStep(args, target, space, spec))

    def _compact_per_call(self, index: int, inputs: list[Any], i: int) -> None:
        """A view of the caller's array may be strided: the delegate gets a row-major copy of it."""
        slots = self._arrays.slots[self._arrays.same(index)]
        slots[:] = [slot for slot in slots if slot[0] is not inputs or slot[1] != i]  # arrays are not compared
        inputs[i] = self._arrays.room(index)
        step = CompactStep(inputs[i], inputs[i])
        slots.append((step.source, 0))
        self.steps.append(step)

    def _bind_result(self, number: int, output: Arg) -> None:
        if not isinstance(output, Ref):
            self._results[number] = output.evaluate(self._symbols) if isinstance(output, Expr) else output
        elif self._arrays.per_call(output.index):
            self._arrays.slots[output.index].append((self._results, number))
        else:
            array = self._arrays.array(output.index)
            assert isinstance(array, np.ndarray)
            self._copies.append((number, array))

    def _slots_by_input(self) -> list[list[Slot]]:
        """The slots to fill per input of the method, in order."""
        return [self._arrays.slots[given.value] if given.value >= 0 else [] for given in self._method.inputs]
