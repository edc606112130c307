"""Stretches: a method cut at narrow places, where one tensor passes and a module ends."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import Node
from torch.fx.node import map_arg

from delegate.edge.identity import identity
from delegate.edge.node import is_compute, module_path, nbytes, op_name, shape_text, tensors
from delegate.edge.program import EdgeProgram
from delegate.partitioner.cost import work
from delegate.partitioner.numbers import is_number
from delegate.partitioner.submodules import subprograms
from delegate.placement.costs import Stretch

MOST = 12  # stretches of a method
_WIDEST = 4  # tensors that may pass where a cut is


@dataclass(frozen=True, slots=True)
class _Place:
    """Between two nodes.

    Args:
        position: of the node behind it.
        passing: tensors that are made before it and used behind it.
        depth: of the module that both nodes are in.
        nbytes: of what passes.
        done: the share of the work before it.
    """

    position: int
    passing: int
    depth: int
    nbytes: int
    done: float


def stretches(program: EdgeProgram, most: int = MOST) -> list[Stretch]:
    """A method in stretches, in the order of its graph; each holds nodes that compute. One where it is narrow nowhere.

    Args:
        program: the method. It is not changed.
        most: how many at most.
    """
    nodes = [n for n in program.graph.nodes if n.op in ("call_function", "get_attr")]
    cuts = [place.position for place in _chosen(_places(nodes), most)]
    borders = [0, *cuts, len(nodes)]
    parts = [nodes[a:b] for a, b in itertools.pairwise(borders)]
    return _described(program, [p for p in parts if any(map(is_compute, p))])


def digest(program: EdgeProgram, stretch: Stretch) -> str:
    """What a stretch computes: operators, arguments, shapes and dtypes, those of weights too; no names, no numbers in
    weights. Stretches of other models with the same digest cost the same."""
    nodes = {n.name: n for n in program.graph.nodes}
    place: dict[Node, str] = {}
    known = hashlib.sha256()
    for name in stretch.names:
        node = nodes[name]
        place[node] = f"#{len(place)}"
        told: Any = map_arg((node.args, node.kwargs), lambda n: place.get(n) or _given(program, n))
        inner = node.op == "get_attr"
        what = str(program.graph_module.get_submodule(str(node.target)).graph) if inner else op_name(node)
        known.update(repr((what, told, _shapes(node))).encode())
    return known.hexdigest()


def _given(program: EdgeProgram, node: Node) -> str:
    return f"{'weight' if program.is_constant(node) else 'value'} {_shapes(node)}"


def _shapes(node: Node) -> list[str]:
    return [shape_text(t) for t in tensors(node)]


def _places(nodes: Sequence[Node]) -> list[_Place]:
    """Where tensors alone pass, and not more than `_WIDEST` of them."""
    index = {node: i for i, node in enumerate(nodes)}
    last = {node: max((index.get(user, len(nodes)) for user in node.users), default=-1) for node in nodes}
    total = sum(map(work, nodes)) or 1
    alive: dict[Node, int] = {}
    ending: dict[int, list[Node]] = {}
    found: list[_Place] = []
    done = 0
    for i, node in enumerate(nodes):
        if i and len(alive) <= _WIDEST and all(len(tensors(n)) == 1 and n.op != "get_attr" for n in alive):
            before, behind = (module_path(n).split(".") for n in (nodes[i - 1], node))
            found.append(_Place(i, len(alive), _shared(before, behind), sum(alive.values()), done / total))
        done += work(node)
        if not is_number(node) and last[node] > i:
            alive[node] = nbytes(node)
            ending.setdefault(last[node], []).append(node)
        for ended in ending.get(i, ()):
            del alive[ended]
    return found


def _shared(before: Sequence[str], behind: Sequence[str]) -> int:
    """How deep the module is that both are in."""
    count = 0
    for a, b in zip(before, behind, strict=False):
        if a != b:
            break
        count += 1
    return count


def _chosen(places: Sequence[_Place], most: int) -> list[_Place]:
    """Cuts that part the work evenly: the narrowest place around each of these shares."""
    found: dict[int, _Place] = {}
    for share in range(1, most):
        near = [p for p in places if abs(p.done - share / most) <= 0.5 / most]
        if near:
            best = min(near, key=lambda p: (p.passing, p.depth, p.nbytes, abs(p.done - share / most)))
            found[best.position] = best
    return [found[position] for position in sorted(found)]


def _described(program: EdgeProgram, parts: Sequence[Sequence[Node]]) -> list[Stretch]:
    home = {node: number for number, part in enumerate(parts) for node in part}
    nested = subprograms(program)
    made = []
    for number, part in enumerate(parts):
        sources = dict.fromkeys(s for n in part for s in n.all_input_nodes if home.get(s, number) != number)
        graphs = (nested[str(n.target)].name for n in part if n.op == "get_attr" and str(n.target) in nested)
        paths = [path for n in part if is_compute(n) and (path := module_path(n))]
        ends = dict.fromkeys((paths[0], paths[-1])) if paths else {f"stretch {number}": None}
        made.append(
            Stretch(
                graph=program.name,
                name=" to ".join(ends),
                nodes=tuple(identity(n) for n in part if is_compute(n)),
                names=tuple(n.name for n in part),
                graphs=tuple(graphs),
                bytes_in=sum(nbytes(s) for s in sources if not is_number(s)),
                after=tuple(sorted({home[s] for s in sources})),
            )
        )
    return made
