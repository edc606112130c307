"""The structure of a region as a value: the same for regions that a library treats alike."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
from torch.fx import Node

from delegate.backends.region import Region
from delegate.edge.node import SYMBOLIC, tensors
from delegate.edge.program import META_VALUE


def the_very(constant: torch.Tensor) -> Hashable:
    """A constant told by where it lies."""
    return (id(constant), constant.data_ptr())


def structure(
    region: Region, constant: Callable[[torch.Tensor], Hashable] = the_very, *, names: bool = True
) -> Hashable:
    """Operators, arguments, shapes, dtypes, ranges of sizes, borders, patterns and constants of a region; not its name.

    Args:
        region: to tell from others.
        constant: what tells constants apart.
        names: whether the names of nodes count, since refusals speak of them.
    """
    place: dict[Node, int] = {}
    flat: list[Hashable] = []
    for node in region.graph.nodes:
        place[node] = len(place)
        value = region.constants.get(node)
        flat.append((node.op, node.name if names else None, node.target if node.op == "call_function" else None))
        flat.append((_plain(node.args, place), _plain(tuple(sorted(node.kwargs.items())), place)))
        flat.append(_shapes(node) if value is None else constant(value))
    patterns = tuple((p.name, tuple(place[n] for n in p.nodes)) for p in region.patterns)
    borders = (tuple(place[n] for n in nodes) for nodes in (region.inputs, region.outputs))
    ranges = tuple(sorted((str(symbol), str(known)) for symbol, known in region.range_constraints.items()))
    return (tuple(flat), *borders, patterns, ranges)


def _shapes(node: Node) -> Hashable:
    return tuple((t.dtype, tuple(map(str, t.shape))) for t in tensors(node)) if META_VALUE in node.meta else None


def _plain(value: Any, place: Mapping[Node, int]) -> Hashable:
    if isinstance(value, Node):
        return ("node", place[value])
    if isinstance(value, list | tuple):
        return tuple(_plain(item, place) for item in value)
    if isinstance(value, SYMBOLIC):
        return ("size", str(value))
    return (type(value), repr(value))
