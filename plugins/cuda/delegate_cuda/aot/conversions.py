"""Conversions that TVM's importer lacks or gets wrong: ATen operator -> a function of the importer and the node.

In TVM 0.27, the importer's conversions have these faults:

- `take` reads beyond a tensor if an index is negative.
- baddbmm sums up in the dtype of the operands, and attention drops `scale` and rejects boolean masks.
- Fills with a number, and slices of dynamic sizes counted from the last dimension, do not compile.
- Maxima and bounds lose NaN, and LLVM's `!=` of NaN is false.
- A cast to bfloat16 within one function does not round.
- The weight of a linear layer is transposed at every call, which moves as many bytes as the product reads. So weights
  of linear layers are stored in the order in which products read them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from delegate.backend.aot import Region
from delegate.edge.node import arguments, op_name, tensor
from delegate.edge.program import META_VALUE
from delegate_cuda.aot import rounding

Conversion = Callable[[Any, Node], Any]


def _take(importer: Any, data: Any, index: Any, axis: int) -> Any:
    from tvm import relax

    return importer.block_builder.emit(relax.op.take(data, index, axis=axis, mode="wrap"))


def _index(importer: Any, node: Node) -> Any:
    args = arguments(node)
    axis, index = next((i, n) for i, n in enumerate(args["indices"]) if n is not None)
    return _take(importer, importer.env[args["self"]], importer.env[index], axis)


def _index_select(importer: Any, node: Node) -> Any:
    args = arguments(node)
    data = importer.env[args["self"]]
    return _take(importer, data, importer.env[args["index"]], args["dim"] % len(data.ty.shape))


def _embedding(importer: Any, node: Node) -> Any:
    args = arguments(node)
    return _take(importer, importer.env[args["weight"]], importer.env[args["indices"]], 0)


def _select(importer: Any, node: Node) -> Any:
    from tvm import relax

    args = arguments(node)
    data = importer.env[args["self"]]
    return _take(importer, data, relax.const(args["index"], "int64"), args["dim"] % len(data.ty.shape))


def _reduce(importer: Any, node: Node, name: str) -> Any:
    from tvm import relax

    args = arguments(node)
    operator_ = getattr(relax.op, name)
    axes = list(args["dim"]) or None
    return importer.block_builder.emit(operator_(importer.env[args["self"]], axes, args["keepdim"]))


def _amax(importer: Any, node: Node) -> Any:
    return _reduce(importer, node, "max")


def _amin(importer: Any, node: Node) -> Any:
    return _reduce(importer, node, "min")


def _linear(importer: Any, node: Node) -> Any:
    """Multiply by the weight, which `with_transposed_weights` may have transposed."""
    from tvm import relax

    args, env, emit = arguments(node), importer.env, importer.block_builder.emit
    weight = env[args["weight"]]
    if not node.meta.get(META_TRANSPOSED):
        weight = emit(relax.op.permute_dims(weight))
    product = emit(relax.op.matmul(env[args["input"]], weight, "float32"))
    return product if args["bias"] is None else emit(relax.op.add(product, env[args["bias"]]))


def _baddbmm(importer: Any, node: Node) -> Any:
    """Sum the product up in float32, like the importer's other products."""
    from tvm import relax

    args, env, emit = arguments(node), importer.env, importer.block_builder.emit
    product = emit(relax.op.matmul(env[args["batch1"]], env[args["batch2"]], "float32"))
    parts = ((product, args["alpha"]), (env[args["self"]], args["beta"]))
    product, bias = (emit(relax.op.multiply(x, relax.const(float(factor), "float32"))) for x, factor in parts)
    return emit(relax.op.add(bias, product))


def _attention(importer: Any, node: Node) -> Any:
    """Compute attention on (batch, heads, length, channels) in several operators: each product gets a schedule."""
    from tvm import relax

    args, emit = arguments(node), importer.block_builder.emit
    query, key, value = (importer.env[args[name]] for name in ("query", "key", "value"))
    scale = int(query.ty.shape[3]) ** -0.5 if args["scale"] is None else args["scale"]
    scores = emit(relax.op.matmul(query, emit(relax.op.permute_dims(key, [0, 1, 3, 2])), "float32"))
    scores = emit(relax.op.multiply(scores, relax.const(scale, "float32")))
    never = relax.const(float("-inf"), "float32")
    if args["is_causal"]:
        lengths = [query.ty.shape[2], key.ty.shape[2]]
        scores = emit(relax.op.add(scores, emit(relax.op.triu(emit(relax.op.broadcast_to(never, lengths)), 1))))
    elif args["attn_mask"] is not None:
        mask = importer.env[args["attn_mask"]]
        if str(mask.ty.dtype) == "bool":
            mask = emit(relax.op.where(mask, relax.const(0.0, "float32"), never))
        scores = emit(relax.op.add(scores, mask))
    weights = emit(relax.op.nn.softmax(scores, -1))
    if args["attn_mask"] is not None:  # a row that is masked in full has weights of 0 in torch, not NaN
        is_open = emit(relax.op.astype(emit(relax.op.logical_not(emit(relax.op.equal(scores, never)))), "float32"))
        has_open = emit(relax.op.greater(emit(relax.op.max(is_open, -1, True)), relax.const(0.0, "float32")))
        weights = emit(relax.op.where(has_open, weights, relax.const(0.0, "float32")))
    weights = rounding.cast(importer, weights, rounding.of(importer, value))
    return emit(relax.op.matmul(weights, value, "float32"))


def _slice(importer: Any, node: Node) -> Any:
    args = arguments(node)
    node.args = (args["self"], args["dim"] % len(importer.env[args["self"]].ty.shape), *node.args[2:])
    return importer._slice(node)


def _to_copy(importer: Any, node: Node) -> Any:
    if node.meta["val"].dtype is not torch.bfloat16:
        return importer._to_copy(node)
    return rounding.cast(importer, importer.env[arguments(node)["self"]], "bfloat16")


def _fill_where(importer: Any, node: Node) -> Any:
    from tvm import relax

    args = arguments(node)
    data, mask = importer.env[args["self"]], importer.env[args["mask"]]
    return importer.block_builder.emit(relax.op.where(mask, relax.const(args["value"], str(data.ty.dtype)), data))


def _const(number: float) -> Any:
    """Return a number in float32, the dtype to which the importing guard has raised the operands."""
    from tvm import tirx

    return tirx.const(float(number), "float32")


def _bound_in_block(importer: Any, x: Any, low: float | None, high: float | None, then: Any = lambda y: y) -> Any:
    """Bound x in one block, which TVM fuses with the operator before it. Comparisons with NaN are false: NaN stays."""
    from tvm import tirx

    def clamp(value: Any) -> Any:
        if low is not None:
            value = tirx.Select(value < _const(low), _const(low), value)
        if high is not None:
            value = tirx.Select(value > _const(high), _const(high), value)
        return value

    return rounding.elementwise(importer, x, lambda value: then(clamp(value)), "bounded")


def _relu(importer: Any, node: Node) -> Any:
    return _bound_in_block(importer, importer.env[arguments(node)["self"]], 0.0, None)


def _hardtanh(importer: Any, node: Node) -> Any:
    args = arguments(node)
    return _bound_in_block(importer, importer.env[args["self"]], args["min_val"], args["max_val"])


def _clamp(importer: Any, node: Node) -> Any:
    args = arguments(node)
    return _bound_in_block(importer, importer.env[args["self"]], args["min"], args["max"])


def _hardsigmoid(importer: Any, node: Node) -> Any:
    from tvm import relax

    x = importer.env[arguments(node)["self"]]
    raised = importer.block_builder.emit(relax.op.add(x, relax.const(3.0, str(x.ty.dtype))))
    return _bound_in_block(importer, raised, 0.0, 6.0, lambda y: y / _const(6))


def _elu(importer: Any, node: Node) -> Any:
    from tvm import tirx

    args = arguments(node)

    def value(x: Any) -> Any:
        return tirx.Select(x > _const(0), x, (tirx.exp(x) - _const(1)) * _const(args["alpha"]))

    return rounding.elementwise(importer, importer.env[args["self"]], value, "elu")


def _extreme(importer: Any, x: Any, y: Any, compare: str) -> Any:
    """Return the larger or smaller one, or the one that is NaN."""
    from tvm import relax

    emit = importer.block_builder.emit
    if "float" not in str(x.ty.dtype):
        return emit({"greater": relax.op.maximum, "less": relax.op.minimum}[compare](x, y))
    first = emit(relax.op.logical_or(emit(getattr(relax.op, compare)(x, y)), emit(relax.op.isnan(x))))
    return emit(relax.op.where(first, x, y))


def _maximum(importer: Any, node: Node) -> Any:
    x, y = (importer.env[n] for n in node.args)
    return _extreme(importer, x, y, "greater")


def _minimum(importer: Any, node: Node) -> Any:
    x, y = (importer.env[n] for n in node.args)
    return _extreme(importer, x, y, "less")


def _clamp_by_tensors(importer: Any, node: Node) -> Any:
    args = arguments(node)
    value = importer.env[args["self"]]
    for bound, compare in ((args["min"], "greater"), (args["max"], "less")):
        if bound is not None:
            value = _extreme(importer, value, importer.env[bound], compare)
    return value


def _different(importer: Any, node: Node) -> Any:
    """Return x != y as not equal, because LLVM's comparison is false if one is NaN."""
    from tvm import relax

    args, emit = arguments(node), importer.block_builder.emit
    x, other = importer.env[args["self"]], args["other"]
    y = importer.env[other] if isinstance(other, Node) else relax.const(other, str(x.ty.dtype))
    return emit(relax.op.logical_not(emit(relax.op.equal(x, y))))


def _power(importer: Any, node: Node) -> Any:
    """Compute roots by their own operators: C's pow(-inf, 0.5) is inf, but torch's is NaN."""
    from tvm import relax

    args = arguments(node)
    x, exponent = importer.env[args["self"]], args["exponent"]
    if abs(exponent) == 0.5:
        return importer.block_builder.emit((relax.op.sqrt if exponent > 0 else relax.op.rsqrt)(x))
    return importer.block_builder.emit(relax.op.power(x, relax.const(exponent, str(x.ty.dtype))))


CONVERSIONS: Mapping[str, Conversion] = {
    "index.Tensor": _index,
    "index_select.default": _index_select,
    "embedding.default": _embedding,
    "select.int": _select,
    "slice.Tensor": _slice,
    "amax.default": _amax,
    "amin.default": _amin,
    "_to_copy.default": _to_copy,
    "masked_fill.Scalar": _fill_where,
    "relu.default": _relu,
    "hardtanh.default": _hardtanh,
    "hardsigmoid.default": _hardsigmoid,
    "elu.default": _elu,
    "clamp.default": _clamp,
    "clamp.Tensor": _clamp_by_tensors,
    "maximum.default": _maximum,
    "minimum.default": _minimum,
    "ne.Tensor": _different,
    "ne.Scalar": _different,
    "pow.Tensor_Scalar": _power,
    "linear.default": _linear,
    "baddbmm.default": _baddbmm,
    "scaled_dot_product_attention.default": _attention,
}


META_TRANSPOSED = "transposed"  # node.meta key of linear layers: True if the weight is (inputs, outputs) already


def with_transposed_weights(region: Region) -> Region:
    """Return a copy of the region with transposed weights of linear layers, if no other node reads these weights."""
    result = region.copy()
    constants = dict(result.constants)
    for weight, value in result.constants.items():
        if weight.users and all(_multiplies_by(user, weight) for user in weight.users):
            constants[weight] = value.t().contiguous()
            weight.meta[META_VALUE] = tensor(weight).t()
            for user in weight.users:
                user.meta[META_TRANSPOSED] = True
    return replace(result, constants=constants)


def _multiplies_by(node: Node, weight: Node) -> bool:
    """Return true if a node is a linear layer that reads a constant only as its weight."""
    return op_name(node) == "aten.linear.default" and [k for k, v in arguments(node).items() if v is weight] == [
        "weight"
    ]
