"""Memory planned once for all sizes of a method, at their bounds, so that a new size needs no planning.

Sizes within their ranges need at most the planned memory. But a view at the bounds may be none at other sizes: a slice
that covers its whole tensor can be reshaped in place, a smaller one cannot. So the views are tried when a combination
of sizes is bound. If one fails, that combination gets its own plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from delegate.errors import InputError, KernelError
from delegate.kernels.selection import Kernels, base_of, place
from delegate.memory.storage import assign_storage, call_view, check_view, concrete
from delegate.program.bounds import ExpressionBounds
from delegate.program.expr import Number, SymbolValues, evaluate
from delegate.program.instructions import block_bases
from delegate.program.model import (
    Block,
    Instruction,
    KernelCall,
    MethodDefinition,
    Program,
    StorageKind,
    StructuredCall,
    Symbol,
)
from delegate.program.raw import Array, shadow
from delegate.program.segments import align
from delegate.program.stages import used_symbols

LARGEST_ARENA = 1 << 30  # bytes; more is not reserved for sizes that may never occur


def plan_at_bounds(program: Program, method: MethodDefinition, kernels: Kernels) -> MethodDefinition:
    """Return the method with its memory planned for all its sizes; unchanged if that is impossible.

    It is impossible if a value has no bound, or if the arena would exceed `LARGEST_ARENA`. It is also impossible if the
    largest sizes conflict, as two parts of a tensor do. Lifetimes and views are those at the largest sizes.
    """
    bounds = ExpressionBounds(method.symbols)
    counts = [bounds.largest_count(v.shape) for v in method.values]
    sizes = [(count or 0) * v.dtype.itemsize for count, v in zip(counts, method.values, strict=True)]
    example = SymbolValues((i, _example(method.symbols[i])) for i in used_symbols(method))
    try:
        plan = assign_storage(program, method, kernels, example, sizes)
    except (InputError, KernelError, ValueError, IndexError):  # of a view of sizes that do not go together
        return method
    unbounded = any(c is None and s.kind is StorageKind.ARENA for c, s in zip(counts, plan.storages, strict=True))
    if unbounded or sum(map(align, plan.arenas)) > LARGEST_ARENA:
        return method
    values = tuple(v._replace(storage=s) for v, s in zip(method.values, plan.storages, strict=True))
    return method._replace(values=values, arenas=plan.arenas)


def _example(symbol: Symbol) -> int:
    """Return the largest number that a symbol may have, or a small one without a maximum."""
    return max(symbol.minimum, 2) if symbol.maximum is None else symbol.maximum


def views_hold(program: Program, method: MethodDefinition, kernels: Kernels, symbols: Mapping[int, Number]) -> bool:
    """Return True if all planned views of a method are views at these sizes.

    Raises:
        InputError: a view has another shape than in the program: the sizes break an assumption of the model.
    """
    return _Views(program, method, kernels, symbols).hold(method.instructions)


class _Views:
    """Computes the views of a method on arrays without memory."""

    def __init__(
        self, program: Program, method: MethodDefinition, kernels: Kernels, symbols: Mapping[int, Number]
    ) -> None:
        self._program, self._method, self._kernels, self._symbols = program, method, kernels, symbols
        self._views: dict[int, Array] = {}

    def hold(self, calls: Iterable[Instruction]) -> bool:
        """Return True if these instructions give the planned views."""
        return all(self._holds(call) for call in calls)

    def _holds(self, call: Instruction) -> bool:
        if isinstance(call, StructuredCall):
            return all(self._block_holds(call, block) for block in call.blocks)
        return not isinstance(call, KernelCall) or not self._is_alias(call.outputs) or self._call_holds(call)

    def _is_alias(self, values: Iterable[int]) -> bool:
        return any(self._method.values[i].storage.kind is StorageKind.ALIAS for i in values)

    def _block_holds(self, call: StructuredCall, block: Block) -> bool:
        for index, base in block_bases(call, block):
            if self._is_alias((index,)):
                self._views[index] = self._array(base)
        return self.hold(block.instructions)

    def _call_holds(self, call: KernelCall) -> bool:
        base = base_of(self._method, call)
        args = [self._array(base), *(concrete(a, self._symbols) for a in call.args[1:])]
        views = call_view(self._kernels.of(self._program, self._method, call), args, self._method, call)
        if views is None:
            return False
        for output, view in zip(call.outputs, views, strict=True):
            check_view(view, self._shadow(output), place(self._method, call))
            self._views[output] = view
        return True

    def _array(self, index: int) -> Array:
        view = self._views.get(index)
        return self._shadow(index) if view is None else view

    def _shadow(self, index: int) -> Array:
        value = self._method.values[index]
        return shadow([evaluate(d, self._symbols) for d in value.shape], value.dtype.numpy)
