"""Planted faults: a backend that compiles another operator, weight or range than the program has, at one node."""

from __future__ import annotations

import copy
import dataclasses
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.fx import Graph, Node

from delegate.backend.aot import Region

_AOT = {
    "xnnpack": ("delegate.backends.xnnpack.aot.backend", "XnnpackBackend"),
    "dsp": ("delegate_onnxruntime.dsp.aot.backend", "DspBackend"),
    "webgpu": ("delegate_onnxruntime.webgpu.aot", "WebGpuBackend"),
    "openvino": ("delegate_openvino.aot", "OpenVinoBackend"),
    "onnxruntime": ("delegate_onnxruntime.providers.aot.backend", "OnnxRuntimeBackend"),
}
aten = torch.ops.aten
Change = Callable[[Region, Node], Region]


def in_place_of(target: Any) -> Change:
    """Return a change that calls another operator on the first argument."""

    def change(region: Region, node: Node) -> Region:
        node.target, node.args, node.kwargs = target, node.args[:1], {}
        return region

    return change


def swapped(region: Region, node: Node) -> Region:
    """Swap the operands."""
    node.args = (node.args[1], node.args[0], *node.args[2:])
    return region


def changed_weight(change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    """Return a change of the second argument, which is a constant."""

    def change_region(region: Region, node: Node) -> Region:
        weight = node.args[1]
        assert isinstance(weight, Node)
        constants = {n: change(t).contiguous() if n is weight else t for n, t in region.constants.items()}
        return dataclasses.replace(region, constants=constants)

    return change_region


def followed_by(*calls: tuple[Any, tuple[Any, ...], dict[str, Any]]) -> Change:
    """Return a change that passes the result through further operators: each its target, further arguments, kwargs."""

    def change(region: Region, node: Node) -> Region:
        users, last = list(node.users), node
        for target, args, kwargs in calls:
            last = _after(region.graph, last, target, args, kwargs)
        for user in users:
            user.replace_input_with(node, last)
        return dataclasses.replace(region, outputs=tuple(last if n is node else n for n in region.outputs))

    return change


def _after(graph: Graph, node: Node, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node:
    with graph.inserting_after(node):
        new = graph.call_function(target, (node, *args), kwargs)
    new.meta = copy.copy(node.meta)
    new.meta["val"] = target(node.meta["val"], *args, **kwargs)
    return new


@contextmanager
def planted(backend: str, name: str, change: Change) -> Iterator[None]:
    """Let a backend compile a changed region, wherever it has the node of this name."""
    module, cls = _AOT[backend]
    part = getattr(importlib.import_module(module), cls)
    preprocess = part.preprocess

    def changed(self: Any, region: Region) -> Any:
        own = region.copy()
        for node in [n for n in own.calls if n.name == name]:
            own = change(own, node)
        return preprocess(self, own)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(part, "preprocess", changed)
        yield
