"""Control flow (torch.cond, while_loop, scan, map): a common form of its arguments, and its graphs as programs.

What programs cannot run is replaced: flex_attention, and numbers that are indices in loops. A number among arguments of
an operator is fixed when a program is bound to memory. So, for a counter `i` of a loop, `x[i]` becomes index_select,
and `y[i] = ...` becomes index_put.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.fx.node import map_arg

from delegate.edge.build import inherit_meta, make_like
from delegate.edge.decompose import Decomposer
from delegate.edge.graphs import graph_modules
from delegate.edge.node import META_CONSTANT, arguments, op_name, tensor
from delegate.edge.program import META_VALUE, EdgeProgram
from delegate.edge.torch_private import HigherOrderOperator, math_attention
from delegate.program.model import Structure


@dataclass(frozen=True, slots=True)
class ControlFlow:
    """The arguments of a control-flow operator by their roles; each is a node or a number.

    The placeholders of its graphs are carried values, then parts of sequences, then captured values, in this order.

    Args:
        kind: the kind of control flow.
        graphs: get_attr nodes of the bodies, in the order of `Structure`.
        predicate: the condition that selects the branch of IF.
        carried: values that one iteration passes to the next.
        sequences: values that are split along dimension 0, one iteration for each part.
        captured: values that are the same in every iteration or branch.
    """

    kind: Structure
    graphs: tuple[Node, ...]
    predicate: Any = None
    carried: tuple[Any, ...] = ()
    sequences: tuple[Any, ...] = ()
    captured: tuple[Any, ...] = ()


def control_flow(node: Node) -> ControlFlow | None:
    """Return the arguments of a control-flow node; None for another node."""
    if not is_control_flow(node.target):
        return None
    return _READERS[_name(node.target)](*node.args, **node.kwargs)


def is_control_flow(target: Any) -> bool:
    """Return true if the target of a node is control flow that programs support."""
    return isinstance(target, HigherOrderOperator) and _name(target) in _READERS


def _name(target: Any) -> str:
    return str(target.name())


def _cond(predicate: Any, true_graph: Node, false_graph: Node, operands: Any = ()) -> ControlFlow:
    return ControlFlow(Structure.IF, (true_graph, false_graph), predicate, captured=tuple(operands))


def _while_loop(condition: Node, body: Node, carried: Any, captured: Any) -> ControlFlow:
    return ControlFlow(Structure.WHILE, (condition, body), carried=tuple(carried), captured=tuple(captured))


def _scan(body: Node, carried: Any, sequences: Any, captured: Any) -> ControlFlow:
    return ControlFlow(Structure.SCAN, (body,), None, tuple(carried), tuple(sequences), tuple(captured))


def _map(body: Node, sequences: Any, captured: Any) -> ControlFlow:
    return ControlFlow(Structure.MAP, (body,), sequences=tuple(sequences), captured=tuple(captured))


_READERS: dict[str, Callable[..., ControlFlow]] = {
    "cond": _cond,
    "while_loop": _while_loop,
    "scan": _scan,
    "map_impl": _map,
}
CONTROL_FLOW = frozenset(_READERS)  # names of the operators


def subprograms(program: EdgeProgram) -> dict[str, EdgeProgram]:
    """Return the graphs of control flow as programs, by target of their get_attr node.

    A constant that every call passes to a graph is a constant of that graph, too. So a backend can compile the weights
    of a branch. The placeholders of the graph are marked as constants.
    """
    calls: dict[str, list[Sequence[Node | None]]] = {}
    for node in program.graph.find_nodes(op="get_attr"):
        calls.setdefault(str(node.target), []).extend(map(_operands, node.users))
    programs: dict[str, EdgeProgram] = {}
    for name, operands in calls.items():
        module = program.graph_module.get_submodule(name)
        if isinstance(module, GraphModule):
            programs[name] = _subprogram(program, name, module, operands)
    return programs


def _subprogram(
    program: EdgeProgram, name: str, module: GraphModule, calls: Sequence[Sequence[Node | None]]
) -> EdgeProgram:
    constants: dict[str, torch.Tensor] = {}
    constant_names: dict[str, str] = {}
    for position, placeholder in enumerate(module.graph.find_nodes(op="placeholder")):
        sources = {call[position] if position < len(call) else None for call in calls}
        source = sources.pop() if len(sources) == 1 else None
        is_constant = source is not None and program.is_constant(source)
        placeholder.meta[META_CONSTANT] = is_constant
        if source is not None and is_constant:
            constants[placeholder.name] = program.constants[source.name]
            constant_names[placeholder.name] = program.constant_names.get(source.name, source.name)
    return EdgeProgram(
        name=f"{program.name}.{name}",
        graph_module=module,
        inputs=(),
        constants=constants,
        constant_names=constant_names,
        states={},
        mutated=(),
        in_spec=None,
        out_spec=None,
        range_constraints=program.range_constraints,
    )


def _operands(call: Node) -> Sequence[Node | None]:
    """Return the operands of a control-flow operator by placeholder of its graphs; None for values that change."""
    flow = control_flow(call)
    if flow is None:
        return ()
    changing = [None] * (len(flow.carried) + len(flow.sequences))
    return [*changing, *(a if isinstance(a, Node) else None for a in flow.captured)]


aten = torch.ops.aten

_FLEX_ATTENTION = torch.ops.higher_order.flex_attention


def lower_flex_attention(root: GraphModule, decomposer: Decomposer) -> None:
    """Replace every flex_attention, in place, also in bodies of control flow.

    Raises:
        LoweringError: torch cannot trace the modification or the mask of scores.
    """
    for module in graph_modules(root):
        for node in module.graph.find_nodes(op="call_function", target=_FLEX_ATTENTION):
            with module.graph.inserting_before(node):
                dense = _dense(module, node)
            node.replace_all_uses_with(dense)
            module.graph.erase_node(node)
            decomposer.expand([dense])


def _dense(module: GraphModule, node: Node) -> Node:
    """Return a call of torch's dense form whose only arguments are the tensors of the node."""
    nodes: list[Node] = []
    map_arg((node.args, node.kwargs), nodes.append)
    bodies = {n: getattr(module, str(n.target)) for n in nodes if n.op == "get_attr"}
    operands = [n for n in dict.fromkeys(nodes) if n not in bodies]
    arguments = node.args, node.kwargs  # the node itself will be erased

    def attend(*values: Any) -> Any:
        known: dict[Node, Any] = {**bodies, **dict(zip(operands, values, strict=True))}
        filled: Any = map_arg(arguments, known.__getitem__)
        return math_attention(*filled[0], **filled[1])

    dense = module.graph.call_function(attend, tuple(operands))
    dense.meta = {**inherit_meta(node), META_VALUE: node.meta[META_VALUE]}
    return dense


def index_by_tensors(root: GraphModule) -> None:
    """Rewrite the bodies of control flow in a program, in place; its own graph does not change."""
    for module in list(graph_modules(root))[1:]:
        for node in list(module.graph.nodes):
            rewrite = _REWRITES.get(op_name(node)) if node.op == "call_function" else None
            if rewrite is not None and _changes(arguments(node)["index"]):
                with module.graph.inserting_before(node):
                    node.replace_all_uses_with(rewrite(node))
                module.graph.erase_node(node)


def _changes(index: object) -> bool:
    return isinstance(index, Node) and bool(free_unbacked_symbols(index.meta[META_VALUE]))


def _select(node: Node) -> Node:
    args = arguments(node)
    part = make_like(node, aten.index_select.default, (args["self"], args["dim"], _place(node)), {})
    return make_like(node, aten.squeeze.dims, (part, [args["dim"]]), {})


def _select_scatter(node: Node) -> Node:
    args = arguments(node)
    dim = int(args["dim"]) % tensor(node).dim()
    source = make_like(node, aten.unsqueeze.default, (args["src"], dim), {})
    return make_like(node, aten.index_put.default, (args["self"], [*[None] * dim, _place(node)], source), {})


def _place(node: Node) -> Node:
    """Return the index as a tensor of one element."""
    index = node.graph.call_function(aten.full.default, ([1], arguments(node)["index"]), {"dtype": torch.int64})
    index.meta = {**inherit_meta(node), META_VALUE: tensor(node).new_empty([1], dtype=torch.int64)}
    return index


_REWRITES: dict[str, Callable[[Node], Node]] = {
    "aten.select.int": _select,
    "aten.select_copy.int": _select,
    "aten.select_scatter.default": _select_scatter,
}
