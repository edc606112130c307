"""Decomposition of compound nodes of a method, in rounds that plans record, and the same rounds again.

After each round the passes run, so names of nodes and folded constants depend on which nodes are decomposed together.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace

from torch.fx import Node

from delegate.backend.decomposition import DecompositionPolicy, is_compound
from delegate.edge.control_flow import subprograms
from delegate.edge.decompose import compound_operators
from delegate.edge.graphs import identify, identity
from delegate.edge.passes.pipeline import optimize
from delegate.edge.program import DecompositionRound, EdgeProgram


def decompose(program: EdgeProgram, nodes: Mapping[str, Sequence[Node]], preserve_ops: Set[str]) -> EdgeProgram:
    """Decompose compound nodes of a method in one round, in place, and run the passes.

    Args:
        program: the method, which records the round.
        nodes: name of the graph, the method's or one of its control flow -> its nodes to decompose.
        preserve_ops: operators of decompositions that are preserved.

    Raises:
        LoweringError: torch cannot decompose an operator.
    """
    done = {graph: tuple(map(identity, own)) for graph, own in nodes.items()}
    program = DecompositionPolicy(preserve_ops).decompose(program, itertools.chain.from_iterable(nodes.values()))
    preserved = program.preserved | (compound_operators(program.graph_module) & preserve_ops)
    recorded = replace(program, preserved=preserved, decompositions=(*program.decompositions, done))
    return identify(optimize(recorded))


def repeat_rounds(program: EdgeProgram, rounds: Iterable[DecompositionRound], preserve_ops: Set[str]) -> EdgeProgram:
    """Decompose the nodes of earlier rounds that are in a method; rounds of other methods are skipped.

    Args:
        program: the method.
        rounds: as `EdgeProgram.decompositions`.
        preserve_ops: see `decompose`.
    """
    for each in rounds:
        nodes: dict[str, list[Node]] = {}
        for graph in _graphs(program):
            if graph.name in each:
                compounds = {identity(n): n for n in graph.graph.nodes if is_compound(n)}
                nodes[graph.name] = [compounds[name] for name in each[graph.name] if name in compounds]
        if any(nodes.values()):
            program = decompose(program, nodes, preserve_ops)
    return program


def _graphs(program: EdgeProgram) -> Iterator[EdgeProgram]:
    yield program
    for body in subprograms(program).values():
        yield from _graphs(body)
