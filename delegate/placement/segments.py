"""Segments: a method split at narrow places, where one tensor passes and a module ends, and plans composed of them."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import Node
from torch.fx.node import map_arg

from delegate.costs.work import work
from delegate.edge.control_flow import subprograms
from delegate.edge.graphs import identity
from delegate.edge.node import is_compute, is_number, module_path, nbytes, op_name, shape_text, tensors
from delegate.edge.program import EdgeProgram
from delegate.partitioner.saved import SavedPartition, SavedPlan
from delegate.placement.runtime.costs import Segment

MAX_SEGMENTS = 12
_MAX_PASSING = 4  # tensors that may pass a cut


@dataclass(frozen=True, slots=True)
class _CutPoint:
    """A place between two nodes.

    Args:
        position: index of the node after it.
        passing: number of tensors that are computed before it and used after it.
        depth: depth of the module that both nodes are in.
        nbytes: bytes of the passing tensors.
        done: the share of the work before it.
    """

    position: int
    passing: int
    depth: int
    nbytes: int
    done: float


def split_into_segments(program: EdgeProgram, most: int = MAX_SEGMENTS) -> list[Segment]:
    """Split a method into segments, in graph order. Each segment has compute nodes.

    Args:
        program: the method. It is not changed.
        most: the maximum number of segments.

    Returns:
        One segment if the method is narrow nowhere.
    """
    nodes = [n for n in program.graph.nodes if n.op in ("call_function", "get_attr")]
    cuts = [point.position for point in _select_cuts(_cut_points(nodes), most)]
    borders = [0, *cuts, len(nodes)]
    parts = [nodes[a:b] for a, b in itertools.pairwise(borders)]
    return _describe(program, [p for p in parts if any(map(is_compute, p))])


def segment_digest(program: EdgeProgram, segment: Segment) -> str:
    """Return a digest of the computation of a segment.

    It covers operators, arguments, shapes and dtypes, also those of weights, but neither names nor weight values.
    Segments of other models with the same digest cost the same.
    """
    nodes = {n.name: n for n in program.graph.nodes}
    index_of: dict[Node, str] = {}
    digest = hashlib.sha256()
    for name in segment.names:
        node = nodes[name]
        index_of[node] = f"#{len(index_of)}"
        arguments: Any = map_arg((node.args, node.kwargs), lambda n: index_of.get(n) or _describe_input(program, n))
        inner = node.op == "get_attr"
        what = str(program.graph_module.get_submodule(str(node.target)).graph) if inner else op_name(node)
        digest.update(repr((what, arguments, _shapes(node))).encode())
    return digest.hexdigest()


def _describe_input(program: EdgeProgram, node: Node) -> str:
    return f"{'weight' if program.is_constant(node) else 'value'} {_shapes(node)}"


def _shapes(node: Node) -> list[str]:
    return [shape_text(t) for t in tensors(node)]


def _cut_points(nodes: Sequence[Node]) -> list[_CutPoint]:
    """Return the places that at most `_MAX_PASSING` tensors pass, and nothing else."""
    index = {node: i for i, node in enumerate(nodes)}
    last = {node: max((index.get(user, len(nodes)) for user in node.users), default=-1) for node in nodes}
    total = sum(map(work, nodes)) or 1
    alive: dict[Node, int] = {}
    ending: dict[int, list[Node]] = {}
    points: list[_CutPoint] = []
    done = 0
    for i, node in enumerate(nodes):
        if i and len(alive) <= _MAX_PASSING and all(len(tensors(n)) == 1 and n.op != "get_attr" for n in alive):
            before, after = (module_path(n).split(".") for n in (nodes[i - 1], node))
            points.append(_CutPoint(i, len(alive), _shared_depth(before, after), sum(alive.values()), done / total))
        done += work(node)
        if not is_number(node) and last[node] > i:
            alive[node] = nbytes(node)
            ending.setdefault(last[node], []).append(node)
        for ended in ending.get(i, ()):
            del alive[ended]
    return points


def _shared_depth(before: Sequence[str], after: Sequence[str]) -> int:
    """Return the depth of the module that both paths share."""
    count = 0
    for a, b in zip(before, after, strict=False):
        if a != b:
            break
        count += 1
    return count


def _select_cuts(points: Sequence[_CutPoint], most: int) -> list[_CutPoint]:
    """Select cuts that divide the work evenly: the narrowest place near each share."""
    selected: dict[int, _CutPoint] = {}
    for share in range(1, most):
        nearby = [p for p in points if abs(p.done - share / most) <= 0.5 / most]
        if nearby:
            best = min(nearby, key=lambda p: (p.passing, p.depth, p.nbytes, abs(p.done - share / most)))
            selected[best.position] = best
    return [selected[position] for position in sorted(selected)]


def _describe(program: EdgeProgram, parts: Sequence[Sequence[Node]]) -> list[Segment]:
    segment_of = {node: number for number, part in enumerate(parts) for node in part}
    nested = subprograms(program)
    segments = []
    for number, part in enumerate(parts):
        sources = dict.fromkeys(s for n in part for s in n.all_input_nodes if segment_of.get(s, number) != number)
        graphs = (nested[str(n.target)].name for n in part if n.op == "get_attr" and str(n.target) in nested)
        paths = [path for n in part if is_compute(n) and (path := module_path(n))]
        ends = dict.fromkeys((paths[0], paths[-1])) if paths else {f"segment {number}": None}
        segments.append(
            Segment(
                graph=program.name,
                name=" to ".join(ends),
                nodes=tuple(identity(n) for n in part if is_compute(n)),
                names=tuple(n.name for n in part),
                graphs=tuple(graphs),
                bytes_in=sum(nbytes(s) for s in sources if not is_number(s)),
                after=tuple(sorted({segment_of[s] for s in sources})),
            )
        )
    return segments


def compose_segments(
    plans: Mapping[str, SavedPlan],
    segments: Sequence[Segment],
    choice: Sequence[str],
    *,
    separate: Collection[int] = (),
) -> SavedPlan:
    """Return the plan of a choice. Consecutive segments of one candidate share partitions.

    Args:
        plans: candidate -> its plan of the method, all of the same graph.
        segments: of the method.
        choice: a candidate for each segment.
        separate: numbers of segments with partitions of their own.
    """
    runs: list[tuple[str, list[Segment]]] = []
    for number, (segment, candidate) in enumerate(zip(segments, choice, strict=True)):
        if runs and runs[-1][0] == candidate and not {number - 1, number}.intersection(separate):
            runs[-1][1].append(segment)
        else:
            runs.append((candidate, [segment]))
    partitions = [
        part
        for number, (candidate, members) in enumerate(runs)
        for part in _restrict(plans[candidate], members, number)
    ]
    preserved = {op for candidate in choice for op in plans[candidate].whole or ()}
    return SavedPlan(tuple(partitions), tuple(sorted(preserved)))


def _restrict(plan: SavedPlan, segments: Sequence[Segment], number: int) -> list[SavedPartition]:
    """Return the partitions of a plan in some segments. `number` makes their names unique."""
    own = {(s.graph, node) for s in segments for node in s.nodes}
    inner = tuple(name for s in segments for name in s.graphs)
    partitions = []
    for partition in plan.partitions:
        within = any(partition.graph == name or partition.graph.startswith(f"{name}.") for name in inner)
        nodes = tuple(n for n in partition.nodes if within or (partition.graph, n) in own)
        if nodes:
            name = f"{partition.name}_of_{number}"
            partitions.append(SavedPartition(partition.graph, name, partition.backend, nodes))
    return partitions
