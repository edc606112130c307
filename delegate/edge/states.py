"""The states of a program: a buffer that one method writes is a state of every method that reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from delegate.edge.node import META_CONSTANT
from delegate.edge.program import EdgeProgram
from delegate.errors import ExportError


def with_shared_states(methods: Mapping[str, EdgeProgram]) -> dict[str, EdgeProgram]:
    """Return the methods of a program; the buffers that others of them write are states, not constants.

    Methods share a buffer by its name, if it is one tensor or has equal content.

    Raises:
        ExportError: a method writes a buffer that another one has under another name.
    """
    by_name: dict[str, list[_Written]] = {}
    by_memory: dict[int, list[_Written]] = {}
    for name, edge in methods.items():
        holders = {state: placeholder for placeholder, state in edge.states.items()}
        for state in edge.mutated:
            written = _Written(name, state, edge.constants[holders[state]])
            by_name.setdefault(state, []).append(written)
            by_memory.setdefault(_memory(written.value), []).append(written)
    return {name: _sharing(edge, by_name, by_memory) for name, edge in methods.items()} if by_name else dict(methods)


@dataclass(frozen=True, slots=True)
class _Written:
    """A buffer that a method writes, with its value at the start."""

    method: str
    state: str
    value: torch.Tensor


def _sharing(
    edge: EdgeProgram, by_name: Mapping[str, list[_Written]], by_memory: Mapping[int, list[_Written]]
) -> EdgeProgram:
    read: dict[str, str] = {}
    used = [node.name for node in edge.graph.find_nodes(op="placeholder") if node.users and node.name in edge.constants]
    for placeholder in used:
        value = edge.constants[placeholder]
        name, memory = edge.constant_names.get(placeholder, placeholder), _memory(value)
        for written in by_memory.get(memory, ()) if memory else ():
            if written.method != edge.name and written.state != name:
                raise ExportError(
                    f"method {written.method!r} writes the buffer {written.state!r}, which is {name!r} in method "
                    f"{edge.name!r}",
                    remedy="export both from modules where the buffer has one path",
                )
        for written in by_name.get(name, ()):
            if written.method != edge.name and (_memory(written.value) == memory or _is_equal(value, written.value)):
                read[placeholder] = name
    if not read.keys() - edge.states.keys():
        return edge
    shared = replace(edge, states={**edge.states, **read})
    for placeholder_node in edge.graph.find_nodes(op="placeholder"):
        placeholder_node.meta[META_CONSTANT] = shared.is_constant(placeholder_node)
    return shared


def _memory(value: torch.Tensor) -> int:
    """Return the address of a tensor's storage; 0 for none."""
    return value.untyped_storage().data_ptr() if value.layout == torch.strided else 0


def _is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
