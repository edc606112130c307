"""Rewrites of exported programs before they are converted: plain tensors, buffers, row-major strides.

torch.export unpacks a subclass of Tensor, e.g. a quantized weight of torchao's `quantize_`, once, by one operator for
each of its inner tensors. These operators become inputs, so that the program is not traced again.

In edge programs strides have no meaning: as_strided counts the elements of its argument in row-major order. Torch keeps
the results of many operators in the layout of their inputs, for example transposed or channels_last, so as_strided of
such a result is refused.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec, TensorArgument
from torch.fx import Graph, GraphModule, Node

from delegate.edge.effects import run_decompositions
from delegate.edge.functional import memory_chain
from delegate.edge.graphs import graph_modules
from delegate.edge.node import arguments, describe, op_name, tensor
from delegate.edge.torch_private import is_traceable_wrapper_subclass
from delegate.errors import ExportError

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


_READS = frozenset({"aten.as_strided.default", "aten.as_strided_copy.default"})
_SCATTER = "aten.as_strided_scatter.default"


def with_row_major_strides(ep: ExportedProgram) -> ExportedProgram:
    """Return a program whose as_strided operators read the tensors that own the memory; `ep` is not changed.

    Raises:
        ExportError: an as_strided reads memory that is not in row-major order.
    """
    if not any(op_name(n) in (*_READS, _SCATTER) for part in graph_modules(ep.graph_module) for n in part.graph.nodes):
        return ep
    module = copy_module(ep)
    for part in graph_modules(module):
        for node in list(part.graph.nodes):
            if op_name(node) in (*_READS, _SCATTER):
                _read_owner(node)
    return with_inputs(ep, module, ep.graph_signature.input_specs, {})


def _read_owner(node: Node) -> None:
    """Let a node read the tensor that owns the memory, or write to a copy of its argument."""
    named = arguments(node)
    owner = named["self"]
    if op_name(node) in _READS:
        dtype = tensor(owner).dtype
        *_, owner = takewhile(lambda source: tensor(source).dtype is dtype, memory_chain(owner))
    _require_row_major(owner, node)
    node.args = tuple({**named, "self": owner, "storage_offset": _offset(owner, named)}.values())
    node.kwargs = {}


def _offset(owner: Node, named: dict[str, Any]) -> Any:
    """Return the offset from the owner's first element. None among the arguments stands for the view's offset."""
    offset, begin = named["storage_offset"], tensor(owner).storage_offset()
    if offset is None:
        offset = tensor(named["self"]).storage_offset()
    return offset - begin if begin else offset


def _require_row_major(owner: Node, node: Node) -> None:
    """Raise ExportError unless the memory of a tensor is in row-major order, without gaps."""
    value, expected = tensor(owner), 1
    texts = [str(size) for size in value.shape]  # symbolic sizes are compared as text, which adds no guard
    for text, size, stride in reversed(list(zip(texts, value.shape, value.stride(), strict=True))):
        if text != "1" and str(stride) != str(expected) and "0" not in texts:
            raise ExportError(
                f"as_strided reads {owner.name}, whose memory is not in row-major order",
                where=describe(node),
                remedy="call .contiguous() before it in the model, or export with inputs that are contiguous",
            )
        expected = expected * size


def with_buffers(ep: ExportedProgram) -> ExportedProgram:
    """Return a program whose constants, such as tensors that are plain attributes, are buffers, which it may write."""
    specs = [
        replace(spec, kind=InputKind.BUFFER, persistent=False) if spec.kind is InputKind.CONSTANT_TENSOR else spec
        for spec in ep.graph_signature.input_specs
    ]
    return with_inputs(ep, ep.graph_module, specs, {})


def copy_module(ep: ExportedProgram) -> GraphModule:
    """Return a copy of a program's graph and its bodies, whose placeholders have the same names."""
    module: GraphModule = copy.deepcopy(ep.graph_module)
    placeholders = (part.graph.find_nodes(op="placeholder") for part in (module, ep.graph_module))
    for placeholder, original in zip(*placeholders, strict=True):
        placeholder.name = original.name  # a copy renames those with names of Python's own functions
    return module


def with_inputs(
    ep: ExportedProgram,
    module: GraphModule,
    specs: Sequence[InputSpec],
    added: Mapping[str, torch.Tensor],
    removed: Collection[str] = (),
) -> ExportedProgram:
    """Return a program with other parameters, buffers and constants; `ep` is not changed.

    Args:
        ep: the original program, of the same outputs.
        module: its new graph.
        specs: Specs of the new graph's placeholders, in order.
        added: name of a parameter, buffer or constant -> its tensor.
        removed: names of those that the program has no more.
    """
    states = {name: value for name, value in ep.state_dict.items() if name not in removed}
    constants = {name: value for name, value in ep.constants.items() if name not in removed}
    for spec in specs:
        if spec.target is not None and spec.target in added:
            is_saved = spec.kind is InputKind.PARAMETER or spec.persistent
            (states if is_saved else constants)[spec.target] = added[spec.target]
    return ExportedProgram(
        root=module,
        graph=module.graph,
        graph_signature=ExportGraphSignature(list(specs), list(ep.graph_signature.output_specs)),
        state_dict=states,
        range_constraints=ep.range_constraints,
        module_call_graph=ep.module_call_graph,
        example_inputs=ep.example_inputs,
        constants=constants,
        verifiers=ep.verifiers,
    )
