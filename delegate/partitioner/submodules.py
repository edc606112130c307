"""The graphs of control flow (torch.cond, while_loop, ...) as programs of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.fx import GraphModule, Node

from delegate.edge.node import op_name
from delegate.edge.program import EdgeProgram


def subprograms(program: EdgeProgram) -> dict[str, EdgeProgram]:
    """Per get_attr target that is a graph: that graph as a program.

    A constant of the outer graph that every call hands in is a constant of the inner one too, so that a backend can
    take the weights of a branch.
    """
    found: dict[str, EdgeProgram] = {}
    for node in program.graph.nodes:
        if node.op == "get_attr":
            module = program.graph_module.get_submodule(str(node.target))
            if isinstance(module, GraphModule):
                found[str(node.target)] = _subprogram(program, str(node.target), module, node)
    return found


def _subprogram(program: EdgeProgram, name: str, module: GraphModule, attribute: Node) -> EdgeProgram:
    placeholders = [n.name for n in module.graph.nodes if n.op == "placeholder"]
    calls = [_operands(call) for call in attribute.users]
    constants: dict[str, torch.Tensor] = {}
    constant_names: dict[str, str] = {}
    for position, placeholder in enumerate(placeholders):
        given = {call[position] if position < len(call) else None for call in calls}
        source = given.pop() if len(given) == 1 else None
        if source is not None and program.is_constant(source):
            constants[placeholder] = program.constants[source.name]
            constant_names[placeholder] = program.constant_names.get(source.name, source.name)
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
    """What a control-flow operator hands to the placeholders of its graphs; None where that changes."""
    find = _OPERANDS.get(op_name(call))
    return [a if isinstance(a, Node) else None for a in find(call)] if find else ()


def _of_cond(call: Node) -> Sequence[object]:
    operands = call.args[3]
    return operands if isinstance(operands, tuple | list) else ()


def _of_while_loop(call: Node) -> Sequence[object]:
    carried, fixed = call.args[2], call.args[3]
    assert isinstance(carried, tuple | list)
    assert isinstance(fixed, tuple | list)
    return [*(None for _ in carried), *fixed]


_OPERANDS: dict[str, Callable[[Node], Sequence[object]]] = {"cond": _of_cond, "while_loop": _of_while_loop}
