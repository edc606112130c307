"""The key of a region: what its blob depends on, as text that is the same in every process."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from delegate.backends.aot import PreprocessResult
from delegate.backends.region import Region
from delegate.backends.structure import structure
from delegate.edge.keys import NotCacheable, digests_of, known_of_sizes
from delegate.edge.node import tensors


def region_key(region: Region) -> str | None:
    """A digest of a region: structure, names, dtypes, shapes, what is known of sizes, the bytes of constants.

    None where a constant's bytes cannot be read, as those of a sparse tensor.
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
    """Options with those within, whatever of them their own text leaves out."""
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
    """All sizes of a region, and the numbers among its arguments."""
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
