"""The graphs of control flow (torch.cond, while_loop, ...) as programs of their own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx import GraphModule, Node

from delegate.edge.control_flow import control_flow
from delegate.edge.node import META_CONSTANT
from delegate.edge.program import EdgeProgram


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
