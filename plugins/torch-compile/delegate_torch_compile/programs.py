"""Conversion of captured graphs to exported programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymIntArgument,
    TensorArgument,
)
from torch.fx import Graph, GraphModule, Node

from delegate.edge.program import META_VALUE
from delegate.edge.torch_private import pytree
from delegate.errors import ExportError
from delegate.plugins import one_line
from delegate_torch_compile.torch_private import SpecViolationError, drop_guards


def to_exported_program(
    module: GraphModule, constants: Mapping[int, torch.Tensor], samples: Sequence[Any] | None = None
) -> ExportedProgram:
    """Convert a graph to an exported program, whose results are the graph's results that are nodes, in order.

    Args:
        module: the graph; its nodes have fake values.
        constants: position of an input -> its constant value; the program does not have this input.
        samples: example inputs of the program, in order; None if unknown.

    Raises:
        ExportError: the graph has operators that exported programs cannot have.
    """
    graph, state = Graph(), dict[str, torch.Tensor]()
    placeholders = module.graph.find_nodes(op="placeholder")
    lifted = [n for n in module.graph.find_nodes(op="get_attr") if isinstance(_attribute(n), torch.Tensor)]
    buffers = {**{placeholders[i]: value for i, value in constants.items()}, **{n: _attribute(n) for n in lifted}}
    user_inputs = [n for n in placeholders if n not in buffers]
    copies: dict[Node, Node] = {}
    for node in (*buffers, *user_inputs):
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
        if node in buffers:
            name = copies[node].name
            state[name] = buffers[node].detach()
            copies[node].meta.setdefault(META_VALUE, buffers[node])
    for node in module.graph.nodes:
        if node not in copies and node.op != "output":
            copies[node] = graph.node_copy(node, copies.__getitem__)
            copies[node].meta["nn_module_stack"] = dict(_paths(node))
    results = [copies[r] for r in results_of(module) if isinstance(r, Node)]
    graph.output(tuple(results))
    inputs = [InputSpec(InputKind.BUFFER, _argument(copies[n]), copies[n].name, persistent=True) for n in buffers]
    inputs += [InputSpec(InputKind.USER_INPUT, _argument(copies[n]), None) for n in user_inputs]
    signature = ExportGraphSignature(inputs, [OutputSpec(OutputKind.USER_OUTPUT, _argument(n), None) for n in results])
    _, in_spec = pytree.tree_flatten((tuple(range(len(user_inputs))), {}))
    _, out_spec = pytree.tree_flatten(tuple(range(len(results))))
    call = ModuleCallSignature([], [], in_spec, out_spec, [copies[n].name for n in user_inputs])
    try:
        program = ExportedProgram(
            root=GraphModule(module, graph),
            graph=graph,
            graph_signature=signature,
            state_dict=state,
            range_constraints=_ranges([copies[n] for n in user_inputs]),
            module_call_graph=[ModuleCallEntry("", call)],
            example_inputs=None if samples is None else (tuple(samples), {}),
        )
    except SpecViolationError as error:  # e.g. of checkpoints that save the state of random numbers
        remedy = "let torch run it, or change the model"
        raise ExportError(f"the graph is not a valid exported program: {one_line(error)}", remedy=remedy) from error
    drop_guards(program)  # torch's compiler checks its own guards before every call
    return program


def results_of(module: GraphModule) -> Sequence[Any]:
    """Return the results of a graph: nodes for computed results, otherwise None or known numbers."""
    results = module.graph.output_node().args[0]
    return results if isinstance(results, list | tuple) else (results,)


def insert_known(results: Sequence[Any], computed: Sequence[Any]) -> list[Any]:
    """Return all results of a graph: the computed results, with the known ones inserted."""
    remaining = iter(computed)
    return [next(remaining) if isinstance(r, Node) else r for r in results]


def _attribute(node: Node) -> Any:
    value: Any = node.graph.owning_module
    for name in str(node.target).split("."):
        value = getattr(value, name)
    return value


def _argument(node: Node) -> Any:
    return (TensorArgument if isinstance(node.meta[META_VALUE], torch.Tensor) else SymIntArgument)(node.name)


def _paths(node: Node) -> Iterator[tuple[str, tuple[str, Any]]]:
    """Yield a node's modules with paths in the form of torch.export; torch.compile writes access expressions."""
    for key, (path, kind) in (node.meta.get("nn_module_stack") or {}).items():
        yield key, (path.partition("]")[2].lstrip(".") if path.startswith("L[") else path, kind)


def _ranges(inputs: Sequence[Node]) -> dict[Any, Any]:
    ranges: dict[Any, Any] = {}
    for node in inputs:
        value = node.meta[META_VALUE]
        for size in value.shape if isinstance(value, torch.Tensor) else (value,):
            if isinstance(size, torch.SymInt):
                known = size.node.shape_env.var_to_range
                ranges.update((symbol, known[symbol]) for symbol in size.node.expr.free_symbols if symbol in known)
    return ranges
