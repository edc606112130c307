"""A graph of AOTAutograd as an ExportedProgram: functional ATen, with fake values, its inputs in a row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._export.verifier import SpecViolationError
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
from delegate.errors import ExportError
from delegate.plugins import one_line


def exported(
    module: GraphModule, constants: Mapping[int, torch.Tensor], samples: Sequence[Any] | None = None
) -> ExportedProgram:
    """The program of a graph. Its results are those of the graph's that are nodes, in order.

    Args:
        module: whose nodes know what they give.
        constants: number of an input -> the tensor that it always is; it is no input of the program then.
        samples: example inputs of the program, in order; None if none are known.

    Raises:
        ExportError: the graph has operators that exported programs do not have.
    """
    graph, state = Graph(), dict[str, torch.Tensor]()
    old = module.graph.find_nodes(op="placeholder")
    lifted = [n for n in module.graph.find_nodes(op="get_attr") if isinstance(_attribute(n), torch.Tensor)]
    held = {**{old[i]: value for i, value in constants.items()}, **{n: _attribute(n) for n in lifted}}
    given = [n for n in old if n not in held]
    copies: dict[Node, Node] = {}
    for node in (*held, *given):
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
        if node in held:
            name = copies[node].name
            state[name] = held[node].detach()
            copies[node].meta.setdefault(META_VALUE, held[node])
    for node in module.graph.nodes:
        if node not in copies and node.op != "output":
            copies[node] = graph.node_copy(node, copies.__getitem__)
            copies[node].meta["nn_module_stack"] = dict(_paths(node))
    results = [copies[r] for r in results_of(module) if isinstance(r, Node)]
    graph.output(tuple(results))
    inputs = [InputSpec(InputKind.BUFFER, _argument(copies[n]), copies[n].name, persistent=True) for n in held]
    inputs += [InputSpec(InputKind.USER_INPUT, _argument(copies[n]), None) for n in given]
    signature = ExportGraphSignature(inputs, [OutputSpec(OutputKind.USER_OUTPUT, _argument(n), None) for n in results])
    _, in_spec = pytree.tree_flatten((tuple(range(len(given))), {}))
    _, out_spec = pytree.tree_flatten(tuple(range(len(results))))
    call = ModuleCallSignature([], [], in_spec, out_spec, [copies[n].name for n in given])
    try:
        program = ExportedProgram(
            root=GraphModule(module, graph),
            graph=graph,
            graph_signature=signature,
            state_dict=state,
            range_constraints=_ranges([copies[n] for n in given]),
            module_call_graph=[ModuleCallEntry("", call)],
            example_inputs=None if samples is None else (tuple(samples), {}),
        )
    except SpecViolationError as error:  # e.g. of checkpoints that save the state of random numbers
        remedy = "let torch run it, or change the model"
        raise ExportError(f"the graph is no exported program: {one_line(error)}", remedy=remedy) from error
    program._guards_code = []  # torch's compiler checks before every call what it has assumed
    return program


def results_of(module: GraphModule) -> Sequence[Any]:
    """The results of a graph: nodes, where it computes them, None, and numbers that are known."""
    results = module.graph.output_node().args[0]
    return results if isinstance(results, list | tuple) else (results,)


def with_known(results: Sequence[Any], computed: Sequence[Any]) -> list[Any]:
    """All results of a graph, given those that it computes."""
    left = iter(computed)
    return [next(left) if isinstance(r, Node) else r for r in results]


def _attribute(node: Node) -> Any:
    found: Any = node.graph.owning_module
    for name in str(node.target).split("."):
        found = getattr(found, name)
    return found


def _argument(node: Node) -> Any:
    return (TensorArgument if isinstance(node.meta[META_VALUE], torch.Tensor) else SymIntArgument)(node.name)


def _paths(node: Node) -> Iterator[tuple[str, tuple[str, Any]]]:
    """The modules that a node comes of by their paths, as torch.export has them: torch.compile names the way there."""
    for key, (path, kind) in (node.meta.get("nn_module_stack") or {}).items():
        yield key, (path.partition("]")[2].lstrip(".") if path.startswith("L[") else path, kind)


def _ranges(inputs: Sequence[Node]) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for node in inputs:
        value = node.meta[META_VALUE]
        for size in value.shape if isinstance(value, torch.Tensor) else (value,):
            if isinstance(size, torch.SymInt):
                known = size.node.shape_env.var_to_range
                found.update((symbol, known[symbol]) for symbol in size.node.expr.free_symbols if symbol in known)
    return found
