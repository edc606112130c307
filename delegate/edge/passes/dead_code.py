"""Dead code elimination: removal of nodes and constants without users."""

from __future__ import annotations

from dataclasses import dataclass, replace

from delegate.edge.graphs import drop_unused, graph_modules
from delegate.edge.passes.result import PassResult
from delegate.edge.program import EdgeProgram


@dataclass(frozen=True, slots=True)
class DeadCodeElimination:
    """A pass that erases nodes and constants without users, also in bodies of control flow. States stay."""

    def __call__(self, program: EdgeProgram) -> PassResult:
        dropped = sum(drop_unused(module.graph) for module in graph_modules(program.graph_module))
        unused = [n for n in program.graph.find_nodes(op="placeholder") if not n.users and program.is_constant(n)]
        for node in unused:
            program.graph.erase_node(node)
        gone = {node.name for node in unused}
        pruned = replace(
            program,
            constants={k: v for k, v in program.constants.items() if k not in gone},
            constant_names={k: v for k, v in program.constant_names.items() if k not in gone},
        )
        return PassResult(pruned, dropped > 0 or bool(gone))
