"""The bindings of one method, made when a combination of sizes first occurs; in bounded memory."""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from delegate.program.bounds import Bounds
from delegate.program.expr import Number
from delegate.program.model import Method
from delegate.program.stages import used_symbols
from delegate.runtime.backend import Array
from delegate.runtime.bounds import is_planned, views_hold
from delegate.runtime.execution_plan import ExecutionPlan
from delegate.runtime.inputs import check_guards
from delegate.runtime.resources import Resources
from delegate.runtime.translate_errors import binding

if TYPE_CHECKING:
    from delegate.runtime.arenas import Arena

_KEPT = 8  # combinations of sizes whose bindings are kept; the least recently used goes first


class SpecializationCache:
    """A method that is bound per combination of the numbers that it uses.

    Where its memory is planned for all sizes at once, all bindings lie in one arena; else each has a plan and an arena
    of its own. Not thread-safe.
    """

    def __init__(self, resources: Resources, method: Method) -> None:
        self._resources, self._method = resources, method
        self._uses = used_symbols(method)
        self._arenas = _arenas(resources, method) if is_planned(method) else []
        self._kept: OrderedDict[tuple[Number | bytes, ...], ExecutionPlan] = OrderedDict()

    def run(self, inputs: Sequence[Array | None], symbols: Mapping[int, Number]) -> list[Any]:
        """Run the method where symbol i has the number `symbols[i]`; see `ExecutionPlan.run`."""
        key = tuple([_key(symbols[i]) for i in self._uses])
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = self._bind(symbols)
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(key)
        return found.run(inputs)

    def _bind(self, symbols: Mapping[int, Number]) -> ExecutionPlan:
        check_guards(self._method, symbols)
        program, kernels = self._resources.program, self._resources.kernels
        with binding(self._method.name):
            if self._arenas and views_hold(program, self._method, kernels, symbols):
                return ExecutionPlan(self._resources, self._method, symbols, self._arenas)
            return ExecutionPlan(self._resources, self._method._replace(arenas=(-1,)), symbols)


def _key(number: Number) -> Number | bytes:
    """What tells a number from all others: a float by its bits, for 0.0 equals -0.0, and NaN not even itself."""
    return struct.pack("d", number) if isinstance(number, float) else number


def _arenas(resources: Resources, method: Method) -> Sequence[Arena]:
    """The memory of a method that holds its plan, for all its sizes."""
    if len(method.arenas) == 1:
        return [resources.platform.memory(method.arenas[0])]
    from delegate.runtime.arenas import make_arenas  # most programs do without it

    bounds = Bounds(method.symbols)
    sizes = [v.dtype.itemsize * (bounds.largest_count(v.shape) or 0) for v in method.values]
    return make_arenas(resources, method, [v.storage for v in method.values], method.arenas, sizes)
