"""Region -> ExportedProgram, which torch's ONNX exporter and importers of other libraries take."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Set
from functools import reduce
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import Graph, GraphModule, Node, Proxy
from torch.fx.node import map_aggregate

from delegate.backend.aot import Region, RegionRefused
from delegate.edge.graphs import extract_graph
from delegate.edge.node import SYMBOLIC
from delegate.edge.program import META_VALUE
from delegate.edge.torch_private import PythonReferenceAnalysis, pytree, sympy_interp
from delegate.edge.torch_private import sympy_functions as F

_OPERATORS: Mapping[Any, Callable[..., Any]] = {
    sympy.Add: operator.add,
    sympy.Mul: operator.mul,
    F.FloorDiv: operator.floordiv,
    F.CleanDiv: operator.floordiv,
    F.Mod: operator.mod,
    F.PythonMod: operator.mod,
}

# Strides mean nothing in an edge program, so that a view may have to copy.
_FREE_OF_STRIDES: Mapping[Any, Any] = {torch.ops.aten.view.default: torch.ops.aten.reshape.default}


def exported_program(
    region: Region, parameters: Set[Node] = frozenset(), *, keep_views: bool = False
) -> ExportedProgram:
    """Return a region as a program of its own. Constants are buffers; inputs and outputs keep their order and names.

    It has the nodes that were checked, with the sizes that they are told computed from the shapes of the inputs.

    Args:
        region: is not changed.
        parameters: the constants that are parameters instead, for an importer that tells them apart.
        keep_views: leave `view` as it is, for an importer that knows no `reshape`, since strides mean nothing in an
            edge program, so that such a view may have to copy: torch itself may not run the program then.

    Raises:
        RegionRefused: an argument is a size that is not a sum, product or quotient of the inputs' sizes. Or it is
            computed from these sizes and is not an integer.
    """
    graph, copies = plain_graph(region, keep_views=keep_views)
    module, values = torch.nn.Module(), dict[str, torch.Tensor]()
    for node, value in region.constants.items():
        name, plain = copies[node].name, value.contiguous()
        if node in parameters:
            values[name] = parameter = torch.nn.Parameter(plain, requires_grad=False)
            module.register_parameter(name, parameter)
        else:
            values[name] = plain
            module.register_buffer(name, plain)
    return ExportedProgram(
        root=GraphModule(module, graph),
        graph=graph,
        graph_signature=_signature(region, copies, parameters),
        state_dict=values,
        range_constraints=dict(region.range_constraints),
        module_call_graph=[_call(region, copies)],
    )


def plain_graph(
    region: Region, *, keep_views: bool = False, any_number: bool = False
) -> tuple[Graph, dict[Node, Node]]:
    """Return a copy of a region's graph that torch can run, constants before inputs, and the copies of its nodes.

    Args:
        region: is not changed.
        keep_views: see `exported_program`.
        any_number: whether the graph is for torch alone, which computes any number of sizes.

    Raises:
        RegionRefused: an argument is a size that is not a sum, product or quotient of the inputs' sizes. Or it is
            computed from these sizes and is not an integer. With `any_number`: it does not follow from them at all.
    """
    graph, copies = extract_graph((*region.constants, *region.inputs), region.calls, region.outputs)
    sizes = _Sizes(graph, {n: copies[n] for n in region.inputs}, any_number)
    for node in region.calls:
        copied = copies[node]
        if not keep_views:
            copied.target = _FREE_OF_STRIDES.get(node.target, node.target)
        try:
            with graph.inserting_before(copied):
                copied.args = map_aggregate(copied.args, sizes.of)
                copied.kwargs = map_aggregate(copied.kwargs, sizes.of)
        except _UnknownSize as unknown:
            raise RegionRefused({node.name: str(unknown)}) from None
    return graph, copies


def _signature(region: Region, copies: Mapping[Node, Node], parameters: Set[Node]) -> ExportGraphSignature:
    def constant(node: Node) -> InputSpec:
        if node in parameters:
            return InputSpec(InputKind.PARAMETER, names[node], names[node].name)
        return InputSpec(InputKind.BUFFER, names[node], names[node].name, persistent=True)

    names = {n: TensorArgument(copies[n].name) for n in (*region.constants, *region.inputs, *region.outputs)}
    return ExportGraphSignature(
        [
            *(constant(n) for n in region.constants),
            *(InputSpec(InputKind.USER_INPUT, names[n], None) for n in region.inputs),
        ],
        [OutputSpec(OutputKind.USER_OUTPUT, names[n], None) for n in region.outputs],
    )


def _call(region: Region, copies: Mapping[Node, Node]) -> ModuleCallEntry:
    """Return the call of the program: all inputs by position, all outputs in a tuple."""
    _, in_spec = pytree.tree_flatten((tuple(range(len(region.inputs))), {}))
    _, out_spec = pytree.tree_flatten(tuple(range(len(region.outputs))))
    names = [copies[n].name for n in region.inputs]
    return ModuleCallEntry("", ModuleCallSignature([], [], in_spec, out_spec, names))


class _UnknownSize(Exception):
    """A size that no inputs tell."""


class _Sizes:
    """Symbolic numbers among arguments as nodes that compute them from the shapes of the inputs."""

    def __init__(self, graph: Graph, inputs: Mapping[Node, Node], any_number: bool) -> None:
        self._graph, self._any_number = graph, any_number
        self._homes: dict[Any, tuple[Node, int]] = {}
        self._multiples: dict[Any, tuple[Any, int]] = {}  # symbol -> a size that is so many times as much
        for node in inputs.values():
            for dim, size in enumerate(node.meta[META_VALUE].shape):
                if isinstance(size, torch.SymInt):
                    expr = size.node.expr
                    self._homes.setdefault(expr, (node, dim))
                    factor, symbol = expr.as_coeff_Mul()
                    if symbol.is_Symbol and factor.is_Integer and factor > 1:
                        self._multiples.setdefault(symbol, (expr, int(factor)))

    def of(self, argument: Any) -> Any:
        """Return a node that computes a symbolic number; any other argument unchanged."""
        if not isinstance(argument, SYMBOLIC):
            return argument
        if self._any_number:
            return self._compute_number(argument)
        if not isinstance(argument, torch.SymInt):
            raise _UnknownSize(f"the number {argument.node.expr} is computed from sizes, and is not a size itself")
        return self._of(argument.node.expr)

    def _compute_number(self, number: Any) -> Any:
        """Return a node that computes a number as torch does in an export."""
        expr = number.node.expr
        sizes = {symbol: self._of(symbol) for symbol in expr.free_symbols}
        proxies = {symbol: Proxy(node) for symbol, node in sizes.items()}
        made = sympy_interp(PythonReferenceAnalysis, proxies, expr)
        return made.node if isinstance(made, Proxy) else made

    def _of(self, expr: Any) -> Any:
        if expr.is_Integer:
            return int(expr)
        if expr in self._homes:
            return self._make(torch.ops.aten.sym_size.int, self._homes[expr], home=True)
        if expr in self._multiples:
            whole, factor = self._multiples[expr]
            return self._make(operator.floordiv, (self._of(whole), factor))
        if type(expr) not in _OPERATORS:
            raise _UnknownSize(f"the size {expr} does not follow from the sizes of a partition's inputs")
        combine = _OPERATORS[type(expr)]
        parts = [self._of(part) for part in expr.args]
        return reduce(lambda left, right: self._make(combine, (left, right)), parts)

    def _make(self, target: Callable[..., Any], args: tuple[Any, ...], *, home: bool = False) -> Node:
        node = self._graph.call_function(target, args)
        given = [a.meta[META_VALUE] if isinstance(a, Node) else a for a in args]
        node.meta[META_VALUE] = given[0].shape[args[1]] if home else target(*given)
        return node
