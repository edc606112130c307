"""The key of a region: what its blob depends on, as text that is the same in every process."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from pydantic import BaseModel
from torch.fx import Node

from delegate.backends.region import Region
from delegate.backends.structure import structure
from delegate.edge.constants import raw_bytes
from delegate.edge.node import tensors
from delegate.program.segments import checksums


def region_key(region: Region) -> str | None:
    """A digest of a region: structure, names, dtypes, shapes, what is known of sizes, the bytes of constants.

    None where a constant's bytes cannot be read, as those of a sparse tensor.
    """
    try:
        digests = _digests(region.constants)
    except (RuntimeError, TypeError, NotImplementedError):
        return None
    made = structure(region, lambda constant: digests[id(constant)])
    return hashlib.sha256(repr((made, sorted(set(_sizes(region))))).encode()).hexdigest()


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


def _digests(constants: Mapping[Node, torch.Tensor]) -> dict[int, tuple[Any, ...]]:
    """The identity of a constant -> what it holds."""
    found = {id(value): value for value in constants.values()}
    digests = checksums([raw_bytes(value).data for value in found.values()])
    return {
        key: (str(value.dtype), tuple(value.shape), digest)
        for (key, value), digest in zip(found.items(), digests, strict=True)
    }


def _sizes(region: Region) -> Iterator[str]:
    """What torch knows of the symbolic sizes of a region: a compiler may make use of it."""
    given = (size for node in region.graph.nodes for t in tensors(node) for size in t.shape)
    told = (arg for node in region.calls for arg in _leaves((node.args, node.kwargs)))
    environments = {}
    for size in (*given, *told):
        if isinstance(size, torch.SymInt | torch.SymFloat | torch.SymBool):
            environment = size.node.shape_env
            environments[id(environment)] = environment
            for symbol in size.node.expr.free_symbols:
                known = environment.var_to_range.get(symbol), environment.backed_var_to_val.get(symbol)
                yield f"{symbol}: {known}"
    for environment in environments.values():
        yield from (f"guard {guard.expr}" for guard in environment.guards)
        yield from (f"divides {expr}" for expr in environment.divisible)
        yield from (f"axiom {expr}" for expr in environment.axioms)


def _leaves(argument: Any) -> Iterator[Any]:
    if isinstance(argument, Mapping):
        argument = tuple(argument.values())
    if isinstance(argument, list | tuple):
        for item in argument:
            yield from _leaves(item)
    else:
        yield argument
