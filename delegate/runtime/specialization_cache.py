"""A cache of the execution plans of one method, one per combination of sizes, in bounded memory."""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from delegate.memory.size_bounds import is_planned, views_hold
from delegate.program.bounds import Bounds
from delegate.program.expr import Number
from delegate.program.model import Method
from delegate.program.stages import used_symbols
from delegate.runtime.arrays import Arena, make_arenas
from delegate.runtime.backend import Array
from delegate.runtime.execution_plan import ExecutionPlan
from delegate.runtime.inputs import check_guards
from delegate.runtime.resources import Resources
from delegate.runtime.translate_errors import translate_binding_errors

_MAX_PLANS = 8  # the least recently used plan is evicted first


class SpecializationCache:
    """The execution plans of a method, one per combination of the numbers that it uses.

    If the memory is planned for all sizes together, all plans share one arena; else each has its own. Not thread-safe.
    """

    def __init__(self, resources: Resources, method: Method) -> None:
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
        program, kernels = self._resources.program, self._resources.kernels
        with translate_binding_errors(self._method.name):
            if self._arenas and views_hold(program, self._method, kernels, symbols):
                return ExecutionPlan(self._resources, self._method, symbols, self._arenas)
            return ExecutionPlan(self._resources, self._method._replace(arenas=(-1,)), symbols)


def _key(number: Number) -> Number | bytes:
    """Return a key that equals no other number's: a float by its bits, because 0.0 equals -0.0, and NaN not itself."""
    return struct.pack("d", number) if isinstance(number, float) else number


def _arenas(resources: Resources, method: Method) -> Sequence[Arena]:
    """Return the memory of a method with a saved memory plan, for all its sizes."""
    bounds = Bounds(method.symbols)

    def size_of(index: int) -> int:
        value = method.values[index]
        return value.dtype.itemsize * (bounds.largest_count(value.shape) or 0)

    return make_arenas(resources, method, [v.storage for v in method.values], method.arenas, size_of)
