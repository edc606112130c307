"""The structure of a region as a value, and its key.

The key holds everything that the blob of a region depends on, as text that is the same in every process.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import torch
from pydantic import BaseModel
from torch.fx import Node

from delegate.backends.aot import PreprocessResult
from delegate.backends.region import Region
from delegate.edge.keys import NotCacheable, digests_of, known_of_sizes
from delegate.edge.node import SYMBOLIC, tensors
from delegate.edge.program import META_VALUE


def the_very(constant: torch.Tensor) -> Hashable:
    """Return the address of a constant, which identifies it in this process."""
    return (id(constant), constant.data_ptr())


def structure(
    region: Region, constant: Callable[[torch.Tensor], Hashable] = the_very, *, names: bool = True
) -> Hashable:
    """Return operators, arguments, shapes, dtypes, size ranges, borders, patterns and constants of a region.

    The name of the region is not part of it.

    Args:
        region: the region.
        constant: returns a value that identifies a constant.
        names: true if the names of nodes count, because refusals contain them.
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


def region_key(region: Region) -> str | None:
    """Return a digest of a region: structure, names, dtypes, shapes, facts about sizes, the bytes of constants.

    Returns None if the bytes of a constant cannot be read, such as those of a sparse tensor.
    """
    try:
        digests = digests_of(region.constants.values())
    except NotCacheable:
        return None
    made = structure(region, lambda constant: digests[id(constant)])
    return hashlib.sha256(repr((made, sorted(set(known_of_sizes(_sizes(region)))))).encode()).hexdigest()


def require_specs(artifact: PreprocessResult, expected: Mapping[str, Any]) -> None:
    """Raise ValueError or KeyError unless the compile specs of an artifact have these values, of the same types."""
    found = {name: artifact.compile_specs[name] for name in expected}
    if json.dumps(found, sort_keys=True) != json.dumps(dict(expected), sort_keys=True):
        raise ValueError("its compile specs are not those of its region and its options")


def plain(options: Any) -> Any:
    """Return options as nested tuples, including the fields that their own text omits."""
    if isinstance(options, BaseModel):
        return (
            type(options).__qualname__,
            tuple((name, plain(value)) for name, value in sorted(vars(options).items())),
        )
    if isinstance(options, Mapping):
        return tuple(sorted((repr(name), plain(value)) for name, value in options.items()))
    if isinstance(options, list | tuple):
        return tuple(map(plain, options))
    return repr(options)


def _sizes(region: Region) -> Iterator[Any]:
    """Yield all sizes of a region, and the numbers among its arguments."""
    yield from (size for node in region.graph.nodes for t in tensors(node) for size in t.shape)
    yield from (arg for node in region.calls for arg in _leaves((node.args, node.kwargs)))


def _leaves(argument: Any) -> Iterator[Any]:
    if isinstance(argument, Mapping):
        argument = tuple(argument.values())
    if isinstance(argument, list | tuple):
        for item in argument:
            yield from _leaves(item)
    else:
        yield argument
