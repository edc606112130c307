"""The states of a program: a buffer that one method writes is a state of every method that reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from delegate.edge.build import memory_place, storage_address
from delegate.edge.node import META_CONSTANT
from delegate.edge.program import EdgeProgram
from delegate.errors import ExportError


def with_shared_states(methods: Mapping[str, EdgeProgram]) -> dict[str, EdgeProgram]:
    """Return the methods of a program; the buffers that others of them write are states, not constants.

    Methods share a buffer if it is one tensor, under any name, or has one name and equal content.

    Raises:
        ExportError: a method writes a buffer that shares only a part of its memory with another one.
    """
    written: list[_Written] = []
    for name, edge in methods.items():
        holders = {state: placeholder for placeholder, state in edge.states.items()}
        written += [_Written(name, state, edge.constants[holders[state]]) for state in edge.mutated]
    if not written:
        return dict(methods)
    by_name = {w.state: w for w in reversed(written)}
    by_memory = {storage_address(w.value): w for w in reversed(written) if storage_address(w.value)}
    return {name: _sharing(edge, by_name, by_memory) for name, edge in methods.items()}


def buffers_of_states(method: EdgeProgram) -> dict[str, str]:
    """Return the states of a method: name of the buffer in the method's module -> name of the state."""
    return {method.constant_names[placeholder]: state for placeholder, state in method.states.items()}


@dataclass(frozen=True, slots=True)
class _Written:
    """A buffer that a method writes, with its value at the start."""

    method: str
    state: str
    value: torch.Tensor


def _sharing(edge: EdgeProgram, by_name: Mapping[str, _Written], by_memory: Mapping[int, _Written]) -> EdgeProgram:
    states, renamed = dict(edge.states), dict[str, str]()
    used = {node.name for node in edge.graph.find_nodes(op="placeholder") if node.users} | states.keys()
    for placeholder, value in edge.constants.items():
        if placeholder not in used:
            continue
        name = edge.constant_names.get(placeholder, placeholder)
        same = by_memory.get(storage_address(value))
        if same is not None and same.method != edge.name:
            if memory_place(value) != memory_place(same.value):
                raise ExportError(
                    f"method {same.method!r} writes the buffer {same.state!r}, which shares a part of its memory with "
                    f"{name!r} of method {edge.name!r}",
                    remedy="register only one of them and create the views in forward, or clone them",
                )
            renamed[states.get(placeholder, name)] = states[placeholder] = same.state
        elif name in by_name and by_name[name].method != edge.name and _is_equal(value, by_name[name].value):
            states[placeholder] = name
    if states == edge.states:
        return edge
    shared = replace(edge, states=states, mutated=tuple(renamed.get(name, name) for name in edge.mutated))
    for placeholder_node in edge.graph.find_nodes(op="placeholder"):
        placeholder_node.meta[META_CONSTANT] = shared.is_constant(placeholder_node)
    return shared


def _is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
