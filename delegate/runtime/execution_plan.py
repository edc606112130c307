"""The execution plan of a method: every instruction a step over NumPy arrays, for one combination of input shapes.

Neither inputs nor outputs are copied: see `arrays`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from delegate.errors import KernelError
from delegate.kernels.selection import base_of, place
from delegate.memory.storage import call_view, check_view
from delegate.program.expr import Expr, Number
from delegate.program.instructions import refs
from delegate.program.model import (
    Arg,
    DelegateCall,
    Instruction,
    KernelCall,
    MethodDefinition,
    Ref,
    StorageKind,
)
from delegate.runtime.arrays import Arena, Arrays, Resources, Slot, lazy_constants_of
from delegate.runtime.backend import Array, DeviceTensor
from delegate.runtime.platform import no_memory
from delegate.runtime.steps import CompactStep, DelegateStep, SingleDelegateFastPath, Step, kernel_step, run_steps

if TYPE_CHECKING:
    from delegate.kernels.table import Kernel


class _CallView:
    """A view that is created in every call, because its base differs between calls.

    It was tried during binding, on an array of the same strides.
    """

    __slots__ = ("args", "function", "slots")

    def __init__(self, kernel: Kernel, args: list[Any], slots: list[list[Slot]]) -> None:
        self.function, self.args, self.slots = kernel.function, args, slots

    def __call__(self) -> None:
        results = self.function(*self.args)
        for slots, view in zip(self.slots, (results,) if isinstance(results, np.ndarray) else results, strict=True):
            for entries, i in slots:
                entries[i] = view


class ViewError(KernelError):
    """A planned view is not a view at these sizes: a slice that covers its tensor at the bounds may be smaller."""


class ExecutionPlan:
    """The steps of a method for one combination of shapes.

    Args:
        resources: shared with other plans.
        method: the method to bind.
        symbols: the numbers of the symbols that it uses.
        arenas: memory for a method with a saved memory plan; its own if None.

    Not thread-safe: the steps share one arena, and `Method` holds the lock of its context during a call.

    Raises:
        ViewError: the memory plan has a view that is impossible at these sizes.
    """

    def __init__(
        self,
        resources: Resources,
        method: MethodDefinition,
        symbols: Mapping[int, Number],
        arenas: Sequence[Arena] | None = None,
    ) -> None:
        self._resources, self._method, self._symbols = resources, method, symbols
        self._arrays = Arrays(resources, method, symbols, arenas)
        self._empty = resources.platform.empty
        self._call_views: list[_CallView] = []
        self.steps: list[Step] = []
        self._lazy = lazy_constants_of(resources, method, self._arrays.storage)
        self._lazy_steps: list[Step] = []
        for position, instruction in enumerate(method.instructions):
            if position in self._lazy.calls:
                self._bind_lazy(instruction)
            else:
                self._bind(instruction)
        self._only_delegates = all(isinstance(step, DelegateStep) for step in self.steps)
        self.direct = self._fast_path()
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
                fresh = self._empty(shape, dtype)
                for entries, i in slots:
                    entries[i] = fresh
        except (MemoryError, ValueError) as error:
            raise no_memory([shape for shape, _, _ in self._fresh], error) from error
        try:
            for view in self._call_views:
                view()
            if self._only_delegates and not self._lazy_steps:
                run_steps(self.steps)
            else:
                with np.errstate(all="ignore"):  # torch does not warn of infinities and NaN either
                    self._compute()
                    run_steps(self.steps)
            results = list(self._results)
            for number, array in self._copies:
                results[number] = copy = self._empty(array.shape, array.dtype)
                np.copyto(copy, array)
            return results
        finally:
            for entries, i in self._call_slots:  # do not keep the caller's arrays alive
                entries[i] = None

    def _compute(self) -> None:
        """Compute in the first call the values that depend on constants alone."""
        if self._lazy_steps:
            self._lazy.compute(self._lazy_steps)
            self._lazy_steps = []

    def _fast_path(self) -> SingleDelegateFastPath | None:
        """Return the fast path if the method only passes its inputs to one delegate and returns its outputs."""
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
        return SingleDelegateFastPath(
            step, [(self._arrays.shapes[o], self._arrays.dtype(o)) for o in outputs], self._empty
        )

    def _bind(self, instruction: Instruction) -> None:
        first, watch = len(self.steps), self._resources.watch
        self._bind_unwatched(instruction)
        if watch is not None:
            steps = self.steps[first:]
            self.steps[first:] = watch.wrap(
                self._resources.program, self._method, instruction, steps, self._arrays.shapes
            )

    def _bind_lazy(self, instruction: Instruction) -> None:
        """Bind an instruction that depends on constants alone: it runs in the first call. Values that others read get
        their own memory.
        """
        for index in instruction.outputs:
            if index in self._lazy.stored:
                self._arrays.set_array(index, self._lazy.array(index, partial(self._arrays.allocate, index)))
        self._lazy_steps += self._steps_of((instruction,))

    def _steps_of(self, instructions: Iterable[Instruction]) -> list[Step]:
        """Return the steps of a block."""
        outside, self.steps = self.steps, []
        for instruction in instructions:
            self._bind(instruction)
        inside, self.steps = self.steps, outside
        return inside

    def _bind_unwatched(self, instruction: Instruction) -> None:
        if isinstance(instruction, KernelCall):
            self._bind_kernel(instruction)
        elif isinstance(instruction, DelegateCall):
            self._bind_delegate(instruction)
        else:
            from delegate.runtime.control_flow import make_structured_step  # not needed by most programs

            self.steps.append(make_structured_step(self._arrays, instruction, self._steps_of, self._method.name))

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
        if not kernel.is_view and not self._can_write_in_place(kernel, call):
            for i, out in enumerate(outs):
                if out is not None:
                    outs[i] = self._empty(out.shape, out.dtype)
                    copies.append(CompactStep(outs[i], out))
        self.steps.append(kernel_step(kernel, args, outs, place(self._method, call)))
        self.steps.extend(copies)

    def _can_write_in_place(self, kernel: Kernel, call: KernelCall) -> bool:
        """Return True unless the kernel writes memory that it reads, without support for running in place.

        The installed kernel library may differ from the one at compile time.
        """
        written = {i for o in call.outputs if (i := self._state_of(o)) >= 0}
        if not written:
            return True
        first = call.args[0] if call.args else None
        is_state = isinstance(first, Ref) and self._arrays.storage[first.index].kind is StorageKind.STATE
        others = call.args[1:] if kernel.in_place and is_state else call.args
        return all(self._state_of(i) not in written for i in refs(others))

    def _state_of(self, index: int) -> int:
        """Return the state that contains a value, or -1."""
        storage = self._arrays.storage[self._arrays.owner(index)]
        return storage.index if storage.kind is StorageKind.STATE else -1

    def _bind_view(self, kernel: Kernel, call: KernelCall, args: list[Any]) -> None:
        base = base_of(self._method, call)
        if any(self._arrays.storage[o].index != base for o in call.outputs):
            what = f"{kernel.op} returns views of its first argument, but the program has views of another value"
            raise KernelError(what, where=place(self._method, call))
        per_call = self._arrays.per_call(call.outputs[0])
        views = call_view(kernel, [self._arrays.example(base), *args[1:]] if per_call else args, self._method, call)
        if views is None:
            raise ViewError(
                f"{kernel.op} cannot create a view of an array with these strides", where=place(self._method, call)
            )
        for output, view in zip(call.outputs, views, strict=True):
            check_view(view, self._arrays.shadow(output), place(self._method, call))
            if per_call:
                self._arrays.set_example(output, view)
            else:
                self._arrays.set_array(output, view)
        if per_call:
            self._call_views.append(_CallView(kernel, args, [self._arrays.slots[o] for o in call.outputs]))

    def _bind_delegate(self, call: DelegateCall) -> None:
        types = self._arrays.types(call.outputs)
        if types and not any(math.prod(tensor_type.shape) for tensor_type in types):
            return  # there is nothing to compute, and many libraries reject empty tensors
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
            *self._resources.delegate(call.delegate),
            inputs,
            self._arrays.entries(call.outputs),
            program.delegates[call.delegate],
        )
        step.prepare(self._arrays.types(call.inputs), types)
        self.steps.append(step)

    def _delegate_step(self, inputs: Iterable[Any]) -> type[DelegateStep]:
        if not self._resources.spaces or not any(isinstance(i, DeviceTensor) for i in inputs):
            return DelegateStep
        from delegate.runtime.devices import DeviceStep

        return DeviceStep

    def _bind_fetch(self, call: KernelCall, source: DeviceTensor, outs: list[Any]) -> None:
        """Bind a copy of a tensor from a device: its backend copies it, not a kernel."""
        from delegate.runtime.devices import FetchStep, partition_of

        (index,) = refs(call.args)
        self.steps.append(FetchStep(source, outs, partition_of(self._resources.program, self._method, index)))

    def _bind_upload(self, call: KernelCall, args: list[Any], target: DeviceTensor) -> None:
        """Bind a copy of a tensor to a device, where several partitions read it."""
        from delegate.runtime.devices import UploadStep, partition_of

        (index,) = call.outputs
        space = self._resources.spaces[self._arrays.storage[index].index - 1]
        spec = partition_of(self._resources.program, self._method, index)
        self.steps.append(UploadStep(args, target, space, spec))

    def _compact_per_call(self, index: int, inputs: list[Any], i: int) -> None:
        """Give the delegate a row-major copy of a view on the caller's array, which may be strided."""
        slots = self._arrays.slots[self._arrays.same(index)]
        slots[:] = [slot for slot in slots if slot[0] is not inputs or slot[1] != i]  # arrays are not compared
        inputs[i] = self._arrays.allocate(index)
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
        """Return the slots to fill per input of the method, in order."""
        return [self._arrays.slots[leaf.value] if leaf.value >= 0 else [] for leaf in self._method.inputs]
