"""Data-dependent sizes of 0 and 1, which the shape function of an operator may exclude.

torch treats sizes of 0 and 1 differently when it traces. So some operators, such as nms of torchvision, return a size
whose minimum is 2: the default of `create_unbacked_symint`. It is not a property of the data, so these sizes start at 0
here. A minimum that the model sets by `torch._check` stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from functools import _lru_cache_wrapper
from typing import Any

import sympy
import torch
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv, free_unbacked_symbols

from delegate.edge.build import fake_result
from delegate.edge.graphs import NUMBER_ASSERTION
from delegate.edge.node import SYMBOLIC, arguments, describe, new_symbols, op_name, symbolic_numbers, tensor
from delegate.edge.program import META_VALUE
from delegate.edge.torch_private import HigherOrderOperator, OpOverload, ValueRanges

_ASSUMED = 2  # the least size that torch never treats differently
_NOTE = (
    "the size of {node} may be 0 or 1 although the shape function of its operator excludes them; where the model "
    "compares it in Python, the export decided for 2 or more"
)

Ranges = Mapping[Any, ValueRanges[Any]]


def open_sizes(graph: Graph, ranges: Ranges) -> tuple[Ranges, tuple[str, ...]]:
    """Let sizes start at 0 if only the shape function of their operator excludes 0 and 1.

    Assertions of the excluded minimum are removed, and sizes that follow are computed again, in place: torch writes 1
    for min(u, 1) if u is 2 or more.

    Args:
        graph: A program's graph.
        ranges: its range constraints.

    Returns:
        The range constraints with the new ranges, and a note for each operator.
    """
    assumed: dict[Any, ShapeEnv] = {}
    notes = []
    for node in graph.nodes:
        if sizes := dict(_find_assumed_sizes(node, ranges, assumed.keys())):
            assumed |= sizes
            notes.append(_NOTE.format(node=describe(node)))
    opened: dict[Any, ValueRanges[Any]] = {}
    for symbol, environment in assumed.items():
        opened[symbol] = environment.var_to_range[symbol] = ValueRanges(0, environment.var_to_range[symbol].upper)
        _forget_conclusions(environment)
    _remove_assertions(graph, opened.keys())
    for environment in dict.fromkeys(assumed.values()):
        with environment.suppress_guards():
            _compute_again(graph, opened.keys())
    return {**ranges, **opened}, tuple(notes)


def _find_assumed_sizes(node: Node, ranges: Ranges, assumed: Set[Any]) -> Iterator[tuple[Any, ShapeEnv]]:
    """Yield the symbols that a node introduces with a minimum that is not the model's, with their shape environment."""
    sizes = [n for n in symbolic_numbers(node.meta.get(META_VALUE)) if _is_unknown(n) and _least(n, ranges) == _ASSUMED]
    if not sizes or new_symbols(node).isdisjoint(size.node.expr for size in sizes):
        return
    if isinstance(node.target, HigherOrderOperator):  # its sizes are those of its bodies
        inputs = symbolic_numbers([source.meta.get(META_VALUE) for source in node.all_input_nodes])
        if any(number.node.expr.free_symbols & assumed for number in inputs):
            yield from ((size.node.expr, size.node.shape_env) for size in sizes)
    elif isinstance(node.target, OpOverload):
        pairs = zip(symbolic_numbers(node.meta[META_VALUE]), symbolic_numbers(fake_result(node)), strict=True)
        for size, own in pairs:
            is_new = _is_unknown(own) and own.node.expr != size.node.expr  # torch may know the size of an input's mask
            if is_new and _least(size, ranges) == _least(own, {}) == _ASSUMED:
                yield size.node.expr, size.node.shape_env


def _is_unknown(number: Any) -> bool:
    """Return True for a number that depends on data and is a symbol by itself."""
    return isinstance(number, SYMBOLIC) and number.node.expr.is_Symbol and bool(free_unbacked_symbols(number))


def _least(number: Any, ranges: Ranges) -> Any:
    symbol = number.node.expr
    return ranges.get(symbol, number.node.shape_env.var_to_range[symbol]).lower


def _forget_conclusions(environment: ShapeEnv) -> None:
    """Clear torch's caches of what follows from ranges, since torch expects that a range only becomes smaller."""
    environment._version_counter += 1
    environment.fake_tensor_cache.clear()
    for method in vars(ShapeEnv).values():
        if isinstance(method, _lru_cache_wrapper):
            method.cache_clear()


def _remove_assertions(graph: Graph, opened: Set[Any]) -> None:
    assumptions = {condition for symbol in opened for condition in (symbol >= _ASSUMED, sympy.Le(_ASSUMED, symbol))}
    for node in list(graph.nodes):
        if op_name(node) == NUMBER_ASSERTION and isinstance(node.args[0], Node):
            condition = node.args[0].meta.get(META_VALUE)
            if isinstance(condition, torch.SymBool) and condition.node.expr in assumptions:
                graph.erase_node(node)


def _compute_again(graph: Graph, opened: Set[Any]) -> None:
    """Compute the values of the nodes that depend on opened sizes, in place."""
    affected: set[Node] = set()
    for node in graph.nodes:
        value = node.meta.get(META_VALUE)
        follows = not affected.isdisjoint(node.all_input_nodes)
        if follows or any(number.node.expr.free_symbols & opened for number in symbolic_numbers(value)):
            affected.add(node)
        if follows and node.op == "call_function" and not isinstance(node.target, HigherOrderOperator):
            with suppress(GuardOnDataDependentSymNode):  # it has a case of its own for 0 and 1, with the same sizes
                computed = fake_result(node)
                if _is_extended(value, computed):
                    node.meta[META_VALUE] = computed


def _is_extended(old: Any, new: Any) -> bool:
    """Return True if a new value has other sizes at 0 or 1, and the old ones at all other sizes."""
    return _at(old, 0, 1) != _at(new, 0, 1) and _at(old, 2, 3, 5, 8) == _at(new, 2, 3, 5, 8)


def _at(value: Any, *numbers: int) -> list[Any]:
    """Return a value's sizes, or the value itself if it is a number, where all symbols have each of these numbers."""
    if isinstance(value, list | tuple):
        return [_at(item, *numbers) for item in value]
    if isinstance(value, torch.Tensor):
        return _at(tuple(value.shape), *numbers)
    expr = sympy.sympify(value.node.expr) if isinstance(value, SYMBOLIC) else value
    return [expr.subs(dict.fromkeys(expr.free_symbols, n)) if isinstance(expr, sympy.Basic) else expr for n in numbers]


_SQUEEZES = frozenset(f"aten.squeeze{copy}.{form}" for copy in ("", "_copy") for form in ("default", "dim", "dims"))


def find_kept_dimensions(graph: Graph) -> Iterator[Any]:
    """Yield a condition for each squeezed dimension of unknown size: a program keeps it, eager drops it at size 1."""
    for node in graph.nodes:
        if op_name(node) in _SQUEEZES:
            sizes, dims = tensor(node.args[0]).shape, arguments(node).get("dim")
            dims = range(len(sizes)) if dims is None else dims if isinstance(dims, list | tuple) else [dims]
            yield from (sizes[dim] != 1 for dim in dims if len(sizes) and free_unbacked_symbols(sizes[dim]))
