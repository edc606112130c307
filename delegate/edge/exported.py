"""Exported programs before they are converted: what they may not do, and rewrites to plain tensors and plain strides.

When torch decomposes a program, it orders operators with effects by tokens. A program of ours runs the operators in
their order, so it needs no tokens.

torch.export unpacks a subclass of Tensor, e.g. a quantized weight of torchao's `quantize_`, once, by one operator for
each of its inner tensors. These operators become inputs, so that the program is not traced again.

In edge programs strides have no meaning: as_strided counts the elements of its argument in row-major order. Torch keeps
the results of many operators in the layout of their inputs, for example transposed or channels_last, so as_strided of
such a result is refused.
"""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec, TensorArgument
from torch.fx import Graph, GraphModule, Node

from delegate.common.user_warnings import warn_user
from delegate.edge.decompose import Table
from delegate.edge.functional import hidden_writes, memory_chain
from delegate.edge.graphs import CHECKS, graph_modules
from delegate.edge.node import arguments, describe, op_name, overload, tensor, written_arguments
from delegate.edge.torch_private import (
    WITHOUT_TOKENS,
    HigherOrderOperator,
    OpOverload,
    effect_of,
    forget_export_constants,
    is_traceable_wrapper_subclass,
    schema_of,
)
from delegate.errors import ExportError

aten = torch.ops.aten

_FROM_TORCH_ITSELF = ".*LeafSpec.*is deprecated"  # it copies its own deprecated pytree specs


def refuse_effects(ep: ExportedProgram) -> None:
    """Raise ExportError for an operator that only has an effect, such as printing, also in a body of control flow.

    A check is not such an operator, and neither is a custom operator with an effect that returns tensors.
    """
    for module in graph_modules(ep.graph_module):
        for node in module.graph.nodes:
            if _only_has_effect(node.target):
                raise ExportError(
                    f"the operator {node.target} has side effects",
                    where=describe(node),
                    remedy="remove operators with side effects, such as printing, from forward",
                )


def _only_has_effect(target: Any) -> bool:
    if not isinstance(target, OpOverload | HigherOrderOperator) or effect_of(target) is None:
        return False
    return not isinstance(target, OpOverload) or (not schema_of(target).returns and str(target) not in CHECKS)


def run_decompositions(ep: ExportedProgram, table: Table) -> ExportedProgram:
    """Return torch's decomposition of a program, without tokens: torch fails on those in bodies of control flow."""
    with WITHOUT_TOKENS, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_FROM_TORCH_ITSELF, category=FutureWarning)
        decomposed: ExportedProgram = ep.run_decompositions(dict(table))
    forget_export_constants()
    return decomposed


def writers(ep: ExportedProgram) -> dict[str, Node]:
    """Return the first node that writes to each parameter, buffer or constant, by its name in the user's module."""
    names = {spec.arg.name: spec.target for spec in ep.graph_signature.input_specs if spec.target is not None}
    first: dict[str, Node] = {}
    for node in ep.graph.nodes:
        for written in _find_written(node):
            *_, owner = memory_chain(written)
            if owner.op == "placeholder" and owner.name in names:
                first.setdefault(names[owner.name], node)
    return first


def refuse_written_parameters(ep: ExportedProgram, written: dict[str, Node]) -> None:
    """Raise ExportError if a node writes to a parameter, which is not a state of a program."""
    for spec in ep.graph_signature.input_specs:
        if spec.kind is InputKind.PARAMETER and spec.target in written:
            raise ExportError(
                f"the program changes the parameter {spec.target} in place",
                where=describe(written[spec.target]),
                remedy="make it a buffer (register_buffer)",
            )


def _find_written(node: Node) -> list[Node]:
    operator = overload(node)
    if operator is None:
        return []
    values = [arguments(node)[name] for name in written_arguments(operator)]
    return [value for value in (*values, *hidden_writes(node)) if isinstance(value, Node)]


_FLAGS = ("train", "training")
_RECURRENT = frozenset(getattr(aten, name).input for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"))


def warn_of_training(graph: Graph, name: str) -> None:
    """Warn about operators of a method that were exported in training mode, by name.

    Raises:
        ExportError: a recurrent operator has dropout between its layers, which torch's decomposition omits.
    """
    for node in graph.nodes:
        if node.target in _RECURRENT and trains(node) and arguments(node)["num_layers"] > 1:
            what = f"{op_name(node)} has dropout between its layers"
            raise ExportError(what, where=describe(node), remedy="call model.eval() before torch.export.export")
    counts = Counter(op_name(node).split(".")[1] for node in graph.nodes if trains(node))
    if counts:
        what = ", ".join(op if count == 1 else f"{op} ({count} times)" for op, count in counts.items())
        warn_user(
            f"method {name} was exported in training mode: {what} will run as in training; for inference, call "
            "model.eval() before torch.export.export",
            UserWarning,
        )


def trains(node: Node) -> bool:
    """Return true if the operator is in training mode: it drops elements at random, or uses statistics of its batch."""
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return False
    args = arguments(node)
    if "dropout_p" in args:
        return bool(args["dropout_p"])
    if "running_mean" in args and args["running_mean"] is None:
        return False  # a norm that keeps no statistics takes those of its batch in eval mode too
    rate = args.get("p", args.get("dropout", 1))
    return rate != 0 and any(args.get(flag) is True for flag in _FLAGS)


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
