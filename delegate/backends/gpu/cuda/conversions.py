"""Conversions that TVM's importer lacks, or has wrong: ATen operator -> a function on the importer and the node.

The importer's `take` reads beyond a tensor where an index is negative, and its attention drops `scale` and takes no
boolean mask; what it fills with a number, and slices of dynamic sizes counted from the last dimension, do not compile
(0.27).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.fx import Node

from delegate.edge.node import arguments

Conversion = Callable[[Any, Node], Any]


def _take(importer: Any, data: Any, index: Any, axis: int) -> Any:
    from tvm import relax

    return importer.block_builder.emit(relax.op.take(data, index, axis=axis, mode="wrap"))


def _index(importer: Any, node: Node) -> Any:
    given = arguments(node)
    axis, index = next((i, n) for i, n in enumerate(given["indices"]) if n is not None)
    return _take(importer, importer.env[given["self"]], importer.env[index], axis)


def _index_select(importer: Any, node: Node) -> Any:
    given = arguments(node)
    data = importer.env[given["self"]]
    return _take(importer, data, importer.env[given["index"]], given["dim"] % len(data.ty.shape))


def _embedding(importer: Any, node: Node) -> Any:
    given = arguments(node)
    return _take(importer, importer.env[given["weight"]], importer.env[given["indices"]], 0)


def _select(importer: Any, node: Node) -> Any:
    from tvm import relax

    given = arguments(node)
    data = importer.env[given["self"]]
    return _take(importer, data, relax.const(given["index"], "int64"), given["dim"] % len(data.ty.shape))


def _reduced(importer: Any, node: Node, name: str) -> Any:
    from tvm import relax

    given = arguments(node)
    operator_ = getattr(relax.op, name)
    axes = list(given["dim"]) or None
    return importer.block_builder.emit(operator_(importer.env[given["self"]], axes, given["keepdim"]))


def _amax(importer: Any, node: Node) -> Any:
    return _reduced(importer, node, "max")


def _amin(importer: Any, node: Node) -> Any:
    return _reduced(importer, node, "min")


def _attention(importer: Any, node: Node) -> Any:
    """In float32, on (batch, heads, length, channels); TVM's own wants heads and lengths the other way round."""
    from tvm import relax

    given, emit = arguments(node), importer.block_builder.emit
    query, key, value = (
        emit(relax.op.permute_dims(importer.env[given[name]], [0, 2, 1, 3])) for name in ("query", "key", "value")
    )
    mask, bias = given["attn_mask"] and importer.env[given["attn_mask"]], None
    if mask is not None:
        length = [query.ty.shape[1], key.ty.shape[1]]
        bias = mask
        if str(mask.ty.dtype) == "bool":
            bias = emit(relax.op.where(mask, relax.const(0.0, "float32"), relax.const(float("-inf"), "float32")))
        bias = emit(relax.op.broadcast_to(bias, [query.ty.shape[0], query.ty.shape[2], *length]))
    causal = "TopLeft" if given["is_causal"] else None
    made = emit(relax.op.nn.attention(query, key, value, bias, given["scale"], causal))
    return emit(relax.op.permute_dims(made, [0, 2, 1, 3]))


def _slice(importer: Any, node: Node) -> Any:
    given = arguments(node)
    node.args = (given["self"], given["dim"] % len(importer.env[given["self"]].ty.shape), *node.args[2:])
    return importer._slice(node)


def _masked_fill(importer: Any, node: Node) -> Any:
    from tvm import relax

    given = arguments(node)
    data, mask = importer.env[given["self"]], importer.env[given["mask"]]
    return importer.block_builder.emit(relax.op.where(mask, relax.const(given["value"], str(data.ty.dtype)), data))


CONVERSIONS: Mapping[str, Conversion] = {
    "index.Tensor": _index,
    "index_select.default": _index_select,
    "embedding.default": _embedding,
    "select.int": _select,
    "slice.Tensor": _slice,
    "amax.default": _amax,
    "amin.default": _amin,
    "masked_fill.Scalar": _masked_fill,
    "scaled_dot_product_attention.default": _attention,
}
