"""Plain tensors in place of Tensor subclasses, e.g. the quantized weights of torchao's `quantize_`.

torch.export unpacks a subclass once, by one operator for each of its inner tensors. These operators become inputs, so
that the program is not traced again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.fx import Graph, Node

from delegate.edge.build import copy_module, with_inputs
from delegate.edge.effects import run_decompositions
from delegate.edge.torch_private import is_traceable_wrapper_subclass

UNPACK = torch.ops.export.access_subclass_inner_tensor.default


def with_plain_tensors(ep: ExportedProgram) -> ExportedProgram:
    """Return a program that has only plain tensors as parameters, buffers and constants; `ep` is not changed.

    The inner tensor `qdata` of the parameter `layer.weight` becomes the parameter `layer.weight.qdata`.
    """
    values = {**ep.state_dict, **ep.constants}
    packed = {name: value for name, value in values.items() if is_traceable_wrapper_subclass(value)}
    if not packed:
        return ep
    by_node = {spec.arg.name: packed[spec.target] for spec in ep.graph_signature.input_specs if spec.target in packed}
    if not all(_is_unpacked(node) for node in ep.graph.find_nodes(op="placeholder") if node.name in by_node):
        return run_decompositions(ep, {})
    module = copy_module(ep)
    specs: list[InputSpec] = []
    plain: dict[str, Tensor] = {}
    placeholders = list(module.graph.find_nodes(op="placeholder"))
    for placeholder, spec in zip(placeholders, ep.graph_signature.input_specs, strict=True):
        if spec.target not in packed:
            specs.append(spec)
            continue
        for path, nodes in _inner_nodes(placeholder).items():
            value: Any = by_node[placeholder.name]
            for attribute in path:
                value = getattr(value, attribute)
            target = ".".join((spec.target, *path))
            plain[target] = nn.Parameter(value, False) if spec.kind is InputKind.PARAMETER else value
            name = _replace(module.graph, placeholder, f"{placeholder.name}_{'_'.join(path)}", nodes)
            specs.append(replace(spec, arg=TensorArgument(name), target=target))
        module.graph.erase_node(placeholder)
    return with_inputs(ep, module, specs, plain, packed.keys())


def _is_unpacked(node: Node) -> bool:
    """Return if only unpacking reads a subclass, and what is unpacked is not a subclass that others read."""
    return all(
        user.target is UNPACK and (not is_traceable_wrapper_subclass(user.meta["val"]) or _is_unpacked(user))
        for user in node.users
    )


def _inner_nodes(node: Node, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], list[Node]]:
    """Return the nodes that are inner plain tensors: their path of attributes -> the nodes."""
    found: dict[tuple[str, ...], list[Node]] = {}
    for user in node.users:
        inner = (*path, str(user.args[1]))
        if is_traceable_wrapper_subclass(user.meta["val"]):
            for deeper, nodes in _inner_nodes(user, inner).items():
                found.setdefault(deeper, []).extend(nodes)
        else:
            found.setdefault(inner, []).append(user)
    return found


def _replace(graph: Graph, packed: Node, name: str, nodes: list[Node]) -> str:
    """Replace nodes that are the same inner tensor by a new placeholder before `packed`; return its name."""
    with graph.inserting_before(packed):
        placeholder = graph.placeholder(name)
    placeholder.meta["val"] = nodes[0].meta["val"]
    for node in nodes:
        node.replace_all_uses_with(placeholder)
        _erase(graph, node, packed)
    return placeholder.name


def _erase(graph: Graph, node: Node, packed: Node) -> None:
    """Erase an unused node, and the nodes that unpack its own subclass if nothing else reads them."""
    if node is not packed and not node.users:
        (source,) = node.all_input_nodes
        graph.erase_node(node)
        _erase(graph, source, packed)
