"""Execution of a method with symbols: a plan per combination of sizes; stages, if sizes depend on data.

Imported only by programs with symbols.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from delegate.errors import DelegateError, KernelError
from delegate.kernels.half_precision import from_bfloat16
from delegate.kernels.selection import place
from delegate.memory.storage import check_shape, concrete, is_planned, plan_at_bounds
from delegate.plugins import one_line
from delegate.program.dtypes import DType
from delegate.program.expr import ExpressionBounds, Number, SymbolValues, evaluate
from delegate.program.model import Arg, KernelCall, MethodDefinition, Ref, StorageKind
from delegate.program.stages import Stage, depends_on_data, split, used_symbols
from delegate.runtime.arrays import Arena, Resources, make_arenas
from delegate.runtime.backend import Array
from delegate.runtime.execution_plan import ExecutionPlan, ViewError
from delegate.runtime.inputs import check_guards, check_range
from delegate.runtime.platform import translate_binding_errors

_MAX_PLANS = 8  # the least recently used plan is evicted first


class DynamicExecutor:
    """Runs a method with symbols. Not thread-safe.

    Args:
        resources: The context's resources.
        method: the method to run.
        symbols: returns the number of each symbol in the inputs.
    """

    def __init__(
        self, resources: Resources, method: MethodDefinition, symbols: Callable[[Sequence[Array | None]], SymbolValues]
    ) -> None:
        self._symbols = symbols
        self._executor = (StagedExecutor if depends_on_data(method) else SpecializationCache)(resources, method)

    def run(self, inputs: Sequence[Array | None]) -> list[Any]:
        """Run the method; see `ExecutionPlan.run`. Raises InputError for sizes that do not fit together."""
        return self._executor.run(inputs, self._symbols(inputs))


class SpecializationCache:
    """The execution plans of a method, one per combination of the numbers that it uses.

    If the memory is planned for all sizes together, all plans share one arena; else each has its own. Not thread-safe.
    """

    def __init__(self, resources: Resources, method: MethodDefinition) -> None:
        self._resources, self._method = resources, method
        self._uses = used_symbols(method)
        self._arenas = _arenas(resources, method) if is_planned(method) else []
        self._plans: OrderedDict[tuple[Number | bytes, ...], ExecutionPlan] = OrderedDict()

    def run(self, inputs: Sequence[Array | None], symbols: Mapping[int, Number]) -> list[Any]:
        """Run the method if symbol i has the number `symbols[i]`; see `ExecutionPlan.run`."""
        key = tuple([_key(symbols[i]) for i in self._uses])
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._bind(symbols)
            if len(self._plans) > _MAX_PLANS:
                self._plans.popitem(last=False)
        else:
            self._plans.move_to_end(key)
        return plan.run(inputs)

    def _bind(self, symbols: Mapping[int, Number]) -> ExecutionPlan:
        check_guards(self._method, symbols)
        with translate_binding_errors(self._method.name):
            if self._arenas:
                with suppress(ViewError):
                    return ExecutionPlan(self._resources, self._method, symbols, self._arenas)
            return ExecutionPlan(self._resources, self._method._replace(arenas=(-1,)), symbols)


def _key(number: Number) -> Number | bytes:
    """Return a key that equals no other number's: a float by its bits, because 0.0 equals -0.0, and NaN not itself."""
    return struct.pack("d", number) if isinstance(number, float) else number


def _arenas(resources: Resources, method: MethodDefinition) -> Sequence[Arena]:
    """Return the memory of a method with a saved memory plan, for all its sizes."""
    bounds = ExpressionBounds(method.symbols)

    def size_of(index: int) -> int:
        value = method.values[index]
        return value.dtype.itemsize * (bounds.largest_count(value.shape) or 0)

    return make_arenas(resources, method, [v.storage for v in method.values], method.arenas, size_of)


class StagedExecutor:
    """Runs a method as a chain of stages, see `delegate.program.stages`. Not thread-safe."""

    def __init__(self, resources: Resources, method: MethodDefinition) -> None:
        self._resources, self._method = resources, method
        self._stages = [(stage, self._bindings(stage)) for stage in split(method)]

    def _bindings(self, stage: Stage) -> SpecializationCache:
        planned = plan_at_bounds(self._resources.program, stage.method, self._resources.kernels)
        return SpecializationCache(self._resources, planned)

    def run(self, inputs: Sequence[Array | None], symbols: Mapping[int, Number]) -> list[Any]:
        """Run if symbol i has the number `symbols[i]`, for the symbols that the inputs determine.

        Raises:
            InputError: a size or number from the data is outside of its range.
        """
        known = SymbolValues(symbols)
        values = {i.value: a for i, a in zip(self._method.inputs, inputs, strict=True) if a is not None}
        results: list[Any] = []
        for stage, bindings in self._stages:
            results = bindings.run([values[i] for i in stage.takes], known)
            values.update((i, np.asarray(a, order="C")) for i, a in zip(stage.gives, results, strict=False))
            if stage.call is not None:
                values.update(zip(stage.call.outputs, self._allocate(stage.call, values, known), strict=True))
            for index in stage.learns:
                known[index] = self._read(index, values)
            if stage.call is not None:
                self._check(stage.call, values, known)
            for index in stage.drops:
                del values[index]
        return results

    def _array(self, index: int, values: Mapping[int, Array]) -> Array:
        storage = self._method.values[index].storage
        if storage.kind is StorageKind.CONSTANT:
            return self._resources.constants[storage.index]
        return self._resources.states[storage.index] if storage.kind is StorageKind.STATE else values[index]

    def _allocate(self, call: KernelCall, values: Mapping[int, Array], known: Mapping[int, Number]) -> list[Array]:
        """Return the results of a kernel that allocates them itself."""
        resources = self._resources
        kernel = resources.kernels.of(resources.program, self._method, call, allocates=True)
        args = [self._argument(a, values, known) for a in call.args]
        try:
            with np.errstate(all="ignore"):
                results = self._watch(call, kernel.function)(*args)
        except DelegateError:
            raise
        except Exception as error:  # a third party's kernel may raise anything
            raise KernelError(f"the kernel failed: {one_line(error)}", where=place(self._method, call)) from error
        arrays = [np.asarray(array, order="C") for array in (results if isinstance(results, tuple) else (results,))]
        outputs = [self._method.values[i] for i in call.outputs]
        types = [(v.dtype.numpy, len(v.shape)) for v in outputs]
        if [(a.dtype, a.ndim) for a in arrays] != types:
            actual, expected = (
                ", ".join(f"{d} of rank {n}" for d, n in t) for t in ([(a.dtype, a.ndim) for a in arrays], types)
            )
            raise KernelError(
                f"the kernel returned {actual}, but the program has {expected}", where=place(self._method, call)
            )
        return arrays

    def _watch(self, call: KernelCall, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, observed if there is a watch."""
        watch = self._resources.watch
        if watch is None:
            return function
        return partial(watch.run, self._resources.program, self._method, call, function)

    def _argument(self, arg: Arg, values: Mapping[int, Array], known: Mapping[int, Number]) -> Any:
        if isinstance(arg, tuple):
            return [self._argument(a, values, known) for a in arg]
        return self._array(arg.index, values) if isinstance(arg, Ref) else concrete(arg, known)

    def _read(self, index: int, values: Mapping[int, Array]) -> Number:
        """Return the number of a symbol, read from its value."""
        symbol = self._method.symbols[index]
        value = self._method.values[symbol.value]
        array = self._array(symbol.value, values)
        if symbol.dim >= 0:
            number: Number = array.shape[symbol.dim]
        else:
            if array.size != 1 or array.dtype.kind == "c":
                what = f"{value.name!r} must be a number, but is {array.dtype}{list(array.shape)}"
                raise KernelError(what, where=f"method {self._method.name}, symbol {symbol.name}")
            element = (from_bfloat16(array) if value.dtype is DType.bfloat16 else array).item()
            number = element if isinstance(element, float) else int(element)
        check_range(symbol, number, f"{value.name!r} is the number {number}")
        return number

    def _check(self, call: KernelCall, values: Mapping[int, Array], known: Mapping[int, Number]) -> None:
        for index in call.outputs:
            expected = [evaluate(d, known) for d in self._method.values[index].shape]
            check_shape(values[index], expected, place(self._method, call))
