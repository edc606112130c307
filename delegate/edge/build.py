"""Construction of nodes, constants and inputs: new nodes inherit metadata and get their own fake value."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from delegate.edge.graphs import META_IDENTITY, PRESERVED_METADATA, acts
from delegate.edge.node import META_CONSTANT, draws, is_static, new_symbols, tensors
from delegate.edge.program import META_VALUE, EdgeProgram
from delegate.edge.torch_private import (
    FakeTensor,
    FakeTensorMode,
    HigherOrderOperator,
    OpOverload,
    enable_python_dispatcher,
    is_zero_tensor,
)


def fake_mode(nodes: Iterable[Node]) -> FakeTensorMode | None:
    """Return the mode of the nodes' fake tensors; None if they have none."""
    return next((t.fake_mode for n in nodes for t in tensors(n) if isinstance(t, FakeTensor)), None)


def inherit_meta(node: Node) -> dict[str, Any]:
    """Return the metadata that a node made from this one inherits: all but its value and identity."""
    return {
        key: node.meta[key] for key in PRESERVED_METADATA if key in node.meta and key not in (META_VALUE, META_IDENTITY)
    }


def fake_result(node: Node) -> Any:
    """Return the result of the node's operator on the fake values of its inputs.

    Composites run in Python: some C++ implementations, such as bilinear resizing, would fix symbolic sizes.
    """
    args, kwargs = map_arg((node.args, node.kwargs), lambda n: n.meta[META_VALUE])
    assert callable(node.target)
    mode = fake_mode((*node.all_input_nodes, node))  # sizes alone have no mode
    with mode or contextlib.nullcontext(), _unbound(mode), torch.no_grad(), enable_python_dispatcher():
        return node.target(*args, **kwargs)


def _unbound(mode: FakeTensorMode | None) -> contextlib.AbstractContextManager[Any]:
    """Return a context that ignores new symbols of data-dependent sizes: no trace binds them, which is an error."""
    known = None if mode is None else mode.shape_env
    return contextlib.nullcontext() if known is None else known.ignore_fresh_unbacked_symbols()


def make_like(like: Node, target: Any, args: Iterable[Any], kwargs: Mapping[str, Any]) -> Node:
    """Insert a node at the graph's insertion point, with the metadata of another node and its own fake value."""
    graph: Graph = like.graph
    node = graph.call_function(target)  # whose arguments are set afterwards, see `copy_node`
    node.args, node.kwargs = tuple(args), dict(kwargs)
    node.meta = inherit_meta(like)
    node.meta[META_VALUE] = fake_result(node)
    return node


class Constants:
    """Constants to add to a program: placeholders after the existing constants, before the user's inputs."""

    def __init__(self, program: EdgeProgram) -> None:
        self._program = program
        self._mode = fake_mode(program.graph.nodes)
        self.tensors = dict(program.constants)
        self.names = dict(program.constant_names)
        placeholders = program.graph.find_nodes(op="placeholder")
        held = [p for p in placeholders if p.name in self.tensors]
        self._after: Node | None = held[-1] if held else None

    def add(self, name: str, value: torch.Tensor, source: str) -> Node:
        """Add a constant; return its placeholder.

        Args:
            name: preferred name of the placeholder.
            value: the tensor; stored contiguous.
            source: the name in the user's module, or of the node that was folded.
        """
        value = plain(value.detach()).contiguous()
        graph = self._program.graph
        with self._place():
            node = graph.placeholder(name)
        node.target = node.name
        with self._mode or contextlib.nullcontext():
            fake = self._mode.from_tensor(value, static_shapes=True) if self._mode else value
        node.meta[META_VALUE] = fake
        node.meta[META_CONSTANT] = True
        self.tensors[node.name], self.names[node.name] = value, source
        self._after = node
        return node

    def _place(self) -> Any:
        graph = self._program.graph
        return graph.inserting_after(self._after) if self._after else graph.inserting_before(next(iter(graph.nodes)))

    def done(self) -> EdgeProgram:
        """Return the program with the new constants."""
        return replace(self._program, constants=self.tensors, constant_names=self.names)


def plain(value: torch.Tensor) -> torch.Tensor:
    """Return the tensor with its conjugation and negation applied: torch may store these as bits of a view."""
    return value.resolve_conj().resolve_neg()


def is_pure(node: Node) -> bool:
    """Return true if equal arguments always have equal results, and the node has no other effect.

    An operator whose sizes may depend on data is pure if its sizes are known: index with integers, not with a mask. Two
    of them with equal arguments have sizes of different names.
    """
    target = node.target
    if not isinstance(target, OpOverload):
        return node.op == "call_function" and not isinstance(target, HigherOrderOperator)
    if acts(target) or draws(node):
        return False
    if torch.Tag.data_dependent_output in target.tags:
        return False
    return is_static(node) or not new_symbols(node)


def leaves(value: Any) -> Iterator[Any]:
    """Yield the plain values and nodes in nested argument lists."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def raw_bytes(value: torch.Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the row-major bytes of a tensor in any dtype, without a copy if its memory is row-major."""
    if is_zero_tensor(value):
        value = torch.zeros_like(value)
    flat = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if not value.numel():
        return np.empty(0, np.uint8)
    if value.numel() == 1:  # it may have been expanded: its stride is still 0
        flat = flat.reshape(()).reshape(1)
    raw: np.ndarray[Any, np.dtype[np.uint8]] = flat.view(torch.uint8).numpy()
    return raw


MemoryPlace = tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype]


def memory_place(value: torch.Tensor) -> MemoryPlace:
    """Return what is equal for two tensors if they are one: address, shape, strides and dtype."""
    return (value.data_ptr(), tuple(value.shape), tuple(value.stride()), value.dtype)


def storage_address(value: torch.Tensor) -> int:
    """Return the address of a tensor's storage, which its views share; 0 for a tensor without elements or strides."""
    return value.untyped_storage().data_ptr() if value.layout == torch.strided and value.numel() else 0
