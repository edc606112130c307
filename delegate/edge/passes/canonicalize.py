"""Canonical forms: one operator for each meaning, one way to write its arguments, and operands as torch rounds them.

Quantized layers have one form on all machines, and each layer its own operands. On a CPU with VNNI, torchao exports
`x @ w` in int8 as `(x + 128 in uint8) @ w - 128 * sum(w)`, which becomes a signed product. A decoded constant with
several users is decoded by one node per layer, and one for the other users. Otherwise a table of embeddings that is
also the last layer's weight would have to leave the layer's backend. And the two calls of one layer would be one
pattern of a backend, without the nodes between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch.fx import Graph, Node

from delegate.edge.build import make_like
from delegate.edge.node import arguments, is_constant, op_name, tensor, tensors
from delegate.edge.passes import in_each_graph
from delegate.edge.passes.redundancy import same_shape
from delegate.edge.torch_private import ELEMENTWISE_TYPE_PROMOTION_KIND, OpOverload, elementwise_dtypes, schema_of

aten = torch.ops.aten


@in_each_graph
def canonicalize(graph: Graph) -> None:
    """Write transpositions as permute, static reshapes as view, and copies without their targets.

    Arguments become positional, without defaults, and numbers are rounded to 16-bit floats if torch rounds them.
    """
    for node in graph.nodes:
        if node.op == "call_function" and isinstance(node.target, OpOverload):
            _make_positional(node, node.target)
            if (canonical := _canonical_form(node)) is not None:
                node.target, node.args = canonical
            _round_numbers(node)


def _make_positional(node: Node, target: OpOverload) -> None:
    """Make arguments positional, and remove defaults at the end."""
    schema = [a for a in schema_of(target).arguments if not a.kwarg_only]
    args, kwargs = list(node.args), dict(node.kwargs)
    for argument in schema[len(args) :]:
        if argument.name not in kwargs and not (
            argument.has_default_value() and kwargs.keys() & {a.name for a in schema}
        ):
            break
        args.append(kwargs.pop(argument.name, argument.default_value))
    while args and _is_default(schema[len(args) - 1], args[-1]):
        args.pop()
    kwargs = {a.name: kwargs[a.name] for a in schema_of(target).arguments if a.name in kwargs}
    if len(args) != len(node.args) or list(kwargs) != list(node.kwargs):
        node.args, node.kwargs = tuple(args), kwargs


def _is_default(argument: Any, value: Any) -> bool:
    if not argument.has_default_value() or isinstance(value, Node):
        return False
    default = argument.default_value
    if isinstance(value, list | tuple):
        return isinstance(default, list | tuple) and repr(list(value)) == repr(list(default))
    return type(value) is type(default) and bool(value == default)


def _canonical_form(node: Node) -> tuple[OpOverload[..., Any], tuple[Any, ...]] | None:
    """Return the canonical operator and arguments of a node; None if the node may stay as it is."""
    name, value = op_name(node), node.args[:1]
    if name in _PERMUTATIONS:
        return aten.permute.default, (*value, _PERMUTATIONS[name](tensor(node).dim(), node))
    if name in _RESHAPES and all(isinstance(s, int) for s in tensor(node).shape):
        return aten.view.default, (*value, list(tensor(node).shape))
    if name == "aten.clamp.default" and tensor(node).dtype.is_floating_point:
        return aten.clamp.default, (*value, *(float(b) if type(b) is int else b for b in node.args[1:]))
    if name == "aten.copy.default":
        return _without_target(node)
    if name == "aten.permute.default":
        order = node.args[1]
        assert isinstance(order, list | tuple)
        return aten.permute.default, (*value, [int(d) % len(order) for d in order])  # type: ignore[arg-type]
    return None


def _round_numbers(node: Node) -> None:
    """Round the numbers among the operands of an operator on 16-bit floats.

    Torch rounds them for these operators, but for products and quotients it computes with the number itself.
    """
    if op_name(node) not in _ROUND_NUMBERS:
        return
    dtypes = {tensor(n).dtype for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.Tensor)}
    if len(dtypes) == 1 and dtypes <= _HALVES:
        (dtype,) = dtypes
        node.args = tuple(_round(a, dtype) for a in node.args)
        node.kwargs = {name: _round(a, dtype) for name, a in node.kwargs.items()}


def _round(number: Any, dtype: torch.dtype) -> Any:
    if type(number) not in (int, float):
        return number
    rounded = torch.tensor(float(number), dtype=torch.float64).to(dtype).item()
    return number if rounded == number or math.isnan(number) else rounded


def _without_target(node: Node) -> tuple[OpOverload[..., Any], tuple[Any, ...]] | None:
    """Return the call that replaces a copy into a tensor: its source, cloned or expanded; None if it converts.

    An expanded source shares memory, so it is only used if all users write it to parts of other tensors.
    """
    source = node.args[1]
    assert isinstance(source, Node)
    old, new = tensor(source), tensor(node)
    if old.dtype != new.dtype:
        return None
    if same_shape(old, new):
        return aten.clone.default, (source,)
    to_a_part = all(op_name(user) in _PART_WRITERS and user.args[1] is node for user in node.users)
    static = all(isinstance(s, int) for s in new.shape)
    return (aten.expand.default, (source, list(new.shape))) if to_a_part and static else None


def _swap(rank: int, node: Node) -> list[int]:
    order = list(range(rank))
    first, second = int(node.args[1]), int(node.args[2])  # type: ignore[arg-type]
    if rank:
        order[first], order[second] = order[second], order[first]
    return order


def _reverse(rank: int, node: Node) -> list[int]:
    return list(range(rank))[::-1]


_PERMUTATIONS: dict[str, Callable[[int, Node], list[int]]] = {
    "aten.transpose.int": _swap,
    "aten.t.default": _reverse,
}
_HALVES = frozenset({torch.float16, torch.bfloat16})
_ROUND_NUMBERS = frozenset(
    f"aten.{name}"
    for form in ("Tensor", "Scalar")
    for name in (*(f"{n}.{form}" for n in ("add", "sub", "rsub")), "clamp.default", "pow.Scalar", "pow.Tensor_Scalar")
) | {f"aten.{name}.Scalar" for name in ("fmod", "remainder", "eq", "ne", "lt", "le", "gt", "ge")}
_ROUND_NUMBERS |= {"aten.remainder.Scalar_Tensor"}
_PART_WRITERS = frozenset({"aten.slice_scatter.default", "aten.select_scatter.default"})
_RESHAPES = frozenset(
    f"aten.{name}"
    for name in ("view.default", "reshape.default", "_unsafe_view.default", "flatten.using_ints", "unflatten.int")
)


_KIND = ELEMENTWISE_TYPE_PROMOTION_KIND.NO_OPMATH
_MASK = {"aten.where.self": 0, "aten.masked_fill.Scalar": 1, "aten.masked_fill.Tensor": 1}  # position of the mask
# Torch computes with the second operand itself if it has one element.
_EXACT_SECOND = frozenset(
    f"aten.{name}"
    for name in ("mul.Tensor", "div.Tensor", "div.Tensor_mode", "true_divide.Tensor", "floor_divide.default")
)


@in_each_graph
def round_operands(graph: Graph) -> None:
    """Convert operands in other dtypes to an elementwise operator's 16-bit float, as torch does before it computes.

    Kernels and libraries compute 16-bit floats in float32. An operand that they convert themselves would have digits
    that torch drops: the integer 257, as an operand with bfloat16, is 256 in torch. Exceptions are the masks of
    selections, and the second operands that torch does not round.
    """
    for node in list(graph.nodes):
        if isinstance(node.target, OpOverload) and torch.Tag.pointwise in node.target.tags:
            _round_tensors(node)


def _round_tensors(node: Node) -> None:
    name = op_name(node)
    operands = [
        (position, arg)
        for position, arg in enumerate(node.args)
        if isinstance(arg, Node) and isinstance(arg.meta.get("val"), torch.Tensor) and position != _MASK.get(name)
    ]
    if len({tensor(arg).dtype for _, arg in operands}) < 2:
        return
    _, dtype = elementwise_dtypes(*(tensor(arg) for _, arg in operands), type_promotion_kind=_KIND)
    if dtype not in _HALVES or not isinstance(node.meta.get("val"), torch.Tensor):
        return
    if tensor(node).dtype not in (dtype, torch.bool):  # such as float_power, which computes in float64
        return
    for position, arg in operands:
        if tensor(arg).dtype is dtype or (position == 1 and name in _EXACT_SECOND and _has_one_element(arg)):
            continue
        with node.graph.inserting_before(node):
            converted = make_like(node, aten._to_copy.default, (arg,), {"dtype": dtype})
        node.update_arg(position, converted)


def _has_one_element(node: Node) -> bool:
    return all(isinstance(s, int) and s == 1 for s in tensor(node).shape)


aten = torch.ops.aten
_OFFSET = 128


@in_each_graph
def sign_products(graph: Graph) -> None:
    """Rewrite unsigned products as signed ones, in place, before constants are folded."""
    for sub in graph.find_nodes(op="call_function", target=aten.sub.Tensor):
        product, correction = sub.args[:2]
        if not _calls(product, "aten._int_mm.default") or arguments(sub)["alpha"] != 1:
            continue
        left, right = product.args
        signed = _to_signed(left)
        if signed is not None and _is_correction(correction, right):
            with graph.inserting_before(sub):
                sub.replace_all_uses_with(make_like(product, aten._int_mm.default, (signed, right), {}))
            graph.erase_node(sub)


def _to_signed(left: Any) -> Node | None:
    """Return the int8 tensor x if the value is (x in int32 + 128) in uint8, else None."""
    moved = _copy_source(left, torch.uint8)
    if not _calls(moved, "aten.add.Tensor") or moved.args[1] != _OFFSET or arguments(moved)["alpha"] != 1:
        return None
    signed = _copy_source(moved.args[0], torch.int32)
    return signed if signed is not None and tensor(signed).dtype is torch.int8 else None


def _copy_source(node: Any, dtype: torch.dtype) -> Node | None:
    """Return the operand of a conversion to this dtype; None for another node."""
    if not _calls(node, "aten._to_copy.default") or tensor(node).dtype is not dtype:
        return None
    source = node.args[0]
    return source if isinstance(source, Node) else None


def _is_correction(node: Any, right: Any) -> bool:
    """Return true if the node is 128 * sum(right) over the rows, in int32."""
    if not _calls(node, "aten.mul.Tensor") or node.args[1] != _OFFSET:
        return False
    total = node.args[0]
    if not _calls(total, "aten.sum.dim_IntList") or total.args[0] is not right:
        return False
    return list(arguments(total)["dim"]) in ([0], [-2]) and tensor(total).dtype is torch.int32


def _calls(node: Any, name: str) -> TypeGuard[Node]:
    return isinstance(node, Node) and node.op == "call_function" and op_name(node) == name


_SMALL = frozenset({torch.int8, torch.uint8})
_LAYERS = frozenset(f"aten.{name}.default" for name in ("linear", "convolution", "mm", "addmm", "bmm", "matmul"))
_DECODES = ("quantized_decomposed.dequantize_per_", "torchao.dequantize_affine.")


@in_each_graph
def split_decodings(graph: Graph) -> None:
    """Add a separate decoding node for each layer that reads a decoded constant with other users."""
    for node in list(graph.nodes):
        if node.op == "call_function" and _decodes_constant(node):
            layers = [user for user in node.users if _is_layer(user)]
            keeps_own = len(layers) == len(node.users)
            for layer in layers[keeps_own:]:
                with graph.inserting_after(node):
                    own = make_like(node, node.target, node.args, node.kwargs)
                layer.replace_input_with(node, own)


def _decodes_constant(node: Node) -> bool:
    if len(node.users) < 2 or not op_name(node).startswith(_DECODES):
        return False
    held = node.all_input_nodes
    return all(map(is_constant, held)) and tensors(held[0])[0].dtype in _SMALL


def _is_layer(user: Node) -> bool:
    return user.op == "call_function" and op_name(user) in _LAYERS
