"""Rewrites of quantized patterns in a region to the operators of ONNX Runtime's own domain, com.microsoft.

- DynamicQuantizeMatMul: activations in uint8 with one range for the tensor, weights in int8.
- MatMulInteger, of ONNX, between operators that quantize each row and correct its zero point.
- MatMulNBits: weights in 4 or 8 bits, in blocks of 16 to 256 inputs. It computes in floats, or quantizes each block of
  activations to int8 (accuracy level 4).
- GatherBlockQuantized: a lookup in a table of 4 or 8 bits, with blocks of any power of two from 16.

Documentation: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from delegate_vendor_kit import run_time_ranges
from delegate_vendor_kit.quantized_layers import (
    EMBEDDING,
    LAYERS,
    Layer,
    Ranges,
    coded_value,
    find_layer,
    known_value,
    match_integers,
)
from delegate_vendor_kit.run_time_ranges import RunTimeRange
from torch.fx import Node
from torch.onnx.ops import _symbolic_impl  # the operators that torch.onnx.ops.symbolic adds to a graph

from delegate.backend.aot import Region, RegionRefused
from delegate.backend.lowering import LoweringTable
from delegate.backend.qdq import CHOOSES, DECODES, DECODES_BY, DEQUANTIZE, QUANTIZE, Array, Coded, is_known
from delegate.edge.node import META_CONSTANT, arguments, op_name, tensor
from delegate.edge.program import META_VALUE
from delegate_onnxruntime.providers.aot.patterns import (
    INTEGERS,
    LEAST_BLOCK,
    check_blocks,
    match_layer,
    match_table,
)

aten = torch.ops.aten
_MOST_BLOCK = 256  # of MatMulNBits
_IN_FLOATS, _IN_INT8 = 1, 4  # accuracy levels of MatMulNBits
_CODES = {torch.float32: 1, torch.int32: 6}  # of element types in ONNX
_OF_ONNX = frozenset({"MatMulInteger", "Sigmoid"})
_LEAST_SCALE = 1e-30  # of a row of zeros
_SIGMOID, _SILU = "aten.sigmoid.default", "aten.silu.default"
_CONVOLUTION, _PRODUCT = "aten.convolution.default", "aten.mul.Tensor"


class RegionRewriter:
    """A copy of a region, in which patterns become single nodes.

    Args:
        region: the region; it is not changed.
    """

    def __init__(self, region: Region) -> None:
        self.region = region.copy()
        self._constants = dict(self.region.constants)

    def drop_unused(self) -> None:
        """Remove the nodes without users."""
        for node in reversed(self.region.calls):
            if not node.users:
                self.region.graph.erase_node(node)

    def finish(self) -> Region:
        """Return the rewritten region.

        Raises:
            RegionRefused: a part of a refused pattern is left, which ONNX Runtime does not run alone.
        """
        graph = self.region.graph
        left = next((n for n in self.region.calls if op_name(n) in CHOOSES), None)
        if left is not None:
            raise RegionRefused({left.name: "parameters chosen at run time, for a layer that is refused"})
        for node in [n for n in self._constants if not n.users]:
            graph.erase_node(node)
            del self._constants[node]
        return replace(self.region, constants=self._constants, patterns=())

    def value(self, node: Node) -> Any:
        """Return the value of a constant, or of a node that decodes a constant."""
        return known_value(node, self._constants)

    def coded(self, node: Node) -> Coded | str:
        """Return the constant that a node decodes; the reason if integers of 8 bits do not hold it."""
        return coded_value(node, self._constants)

    def weights(self, node: Node, held: Layer | Node) -> Coded:
        """Return the weights of a layer, or the constant that a node decodes, for a node.

        Raises:
            RegionRefused: integers do not hold it.
        """
        found = held.weights(self._constants) if isinstance(held, Layer) else self.coded(held)
        if isinstance(found, str):
            raise RegionRefused({node.name: f"the weight has {found}"})
        return found

    def constant(self, name: str, value: Array, like: Node) -> Node:
        """Add a constant to the region.

        Args:
            name: the start of its name.
            value: its content.
            like: a node of the graph with one tensor.
        """
        held = torch.from_numpy(np.require(value, requirements=["C", "W"]))
        graph = self.region.graph
        with graph.inserting_before(next(n for n in graph.nodes if n.op != "placeholder")):
            node = graph.placeholder(name)
        mode = tensor(like).fake_mode  # type: ignore[attr-defined]
        node.meta = {META_VALUE: mode.from_tensor(held, static_shapes=True), META_CONSTANT: True}
        self._constants[node] = held
        return node

    def add(self, before: Node, target: Any, *args: Any, result: torch.Tensor, **options: Any) -> Node:
        """Add a call of an operator before a node.

        Args:
            before: the node.
            target: the operator.
            args, options: its arguments.
            result: a tensor without content, of the dtype and the sizes of the result.
        """
        with self.region.graph.inserting_before(before):
            node = self.region.graph.call_function(target, args, options)
        node.meta = {**before.meta, META_VALUE: result}
        return node

    def reshape(self, before: Node, source: Node, shape: Sequence[Any]) -> Node:
        """Return a value in other sizes; add a view before a node if it has others."""
        if tuple(tensor(source).shape) == tuple(shape):
            return source
        return self.add(before, aten.view.default, source, list(shape), result=tensor(source).new_empty(tuple(shape)))

    def add_onnx(
        self, before: Node, operator: str, inputs: Sequence[Node | None], result: torch.Tensor, **attributes: int
    ) -> Node:
        """Add an operator of ONNX Runtime before a node.

        Args:
            before: the node.
            operator: the operator, of the domain com.microsoft if ONNX lacks it.
            inputs: its inputs; None for an optional one that is absent.
            result: a tensor without content, of float32 or int32, with the result's sizes.
            attributes: its attributes.
        """
        encoded = _symbolic_impl.EncodedAttrs.from_dict(dict(attributes))
        options = {name: getattr(encoded, name) for name in encoded.__dataclass_fields__}
        options |= {"metadata_props_keys": [], "metadata_props_values": []}
        if operator not in _OF_ONNX:
            options |= {"domain": "com.microsoft", "version": 1}
        target = torch.ops.onnx_symbolic._symbolic.default
        node = self.add(before, target, list(inputs), operator, _CODES[result.dtype], result=result, **options)
        node.kwargs = {**node.kwargs, "shape": list(result.shape)}  # torch warns of symbolic sizes in new nodes
        return node

    def replace(self, node: Node, operator: str, inputs: Sequence[Node | None], **attributes: int) -> None:
        """Replace a node with one tensor of float32 by an operator of ONNX Runtime, which has its name.

        The operator has at least two dimensions.
        """
        new = self.add_onnx(node, operator, inputs, _as_rows(node), **attributes)
        self.put(node, self.reshape(node, new, tensor(node).shape))
        new.name = node.name

    def put(self, node: Node, new: Node) -> None:
        """Let a new node take the place of a node."""
        node.replace_all_uses_with(new)
        outputs = tuple(new if n is node else n for n in self.region.outputs)
        self.region = replace(self.region, outputs=outputs)
        self.region.graph.erase_node(node)


def rewrite_integers(region: Region) -> Region:
    """Return a region in which each claimed pattern is one operator, and other constants are decoded once.

    Raises:
        RegionRefused: ONNX Runtime does not support the content of a constant.
    """
    if not region.patterns and not any(op_name(n) in DECODES or _keeps_sigmoid(region, n) for n in region.calls):
        return region
    rewriter = RegionRewriter(region)
    for pattern in rewriter.region.patterns:
        PATTERNS.pattern(pattern.name).lower(rewriter, pattern.nodes[-1])
    rewriter.drop_unused()
    for node in rewriter.region.calls:
        if (rounded := run_time_ranges.lower_to_floats(node)) is not None:
            rewriter.put(node, rounded)
        elif _keeps_sigmoid(rewriter.region, node):
            _keep_sigmoid(rewriter, node)
        elif op_name(node) in DECODES and is_known(node) and not any(map(_reads_integers, node.users)):
            decode(rewriter, node, is_required=op_name(node) not in KNOWN)
    rewriter.drop_unused()
    return rewriter.finish()


def _keeps_sigmoid(region: Region, node: Node) -> bool:
    """Return true if ONNX's Sigmoid computes a node, not the exponential that is exact for far negative numbers too.

    Quantized results lose the digits anyway, and between quantized values it is one operator on integers. In a SiLU
    between convolutions, other operators would end the blocked layout of ONNX Runtime, for half as much time again, and
    the next layer adds the results up.
    """
    name = op_name(node)
    if name not in (_SIGMOID, _SILU) or tensor(node).dtype is not torch.float32:
        return False
    (source,) = node.all_input_nodes
    if all(op_name(user) == QUANTIZE for user in node.users):
        return True
    products = [node] if name == _SILU else [n for n in node.users if source in n.all_input_nodes]
    is_silu = name == _SILU or (len(products) == len(node.users) and all(op_name(n) == _PRODUCT for n in products))
    return is_silu and op_name(source) == _CONVOLUTION and not {node, *products} & {*region.outputs}


def _keep_sigmoid(rewriter: RegionRewriter, node: Node) -> None:
    gate = rewriter.add_onnx(node, "Sigmoid", node.all_input_nodes, tensor(node))
    is_silu = op_name(node) == _SILU
    product = rewriter.add(node, aten.mul.Tensor, *node.all_input_nodes, gate, result=tensor(node)) if is_silu else gate
    rewriter.put(node, product)


def _reads_integers(layer: Node) -> bool:
    """Return true if an operand of a layer was decoded from integers of a static quantization."""
    return any(op_name(n) == DEQUANTIZE and not is_known(n) for n in layer.all_input_nodes)


def decode(rewriter: RegionRewriter, node: Node, *, is_required: bool) -> None:
    """Replace a node that decodes a constant by operators that ONNX Runtime computes when it opens the session.

    It computes a DequantizeLinear in every call.

    Args:
        rewriter: the rewriter of the region.
        node: the node.
        is_required: false for a node that may stay if it decodes integers of other types.

    Raises:
        RegionRefused: it is required, but integers of 8 bits do not hold the constant.
    """
    held = rewriter.coded(node)
    if isinstance(held, str):
        if is_required:
            raise RegionRefused({node.name: held})
        return
    assert held.scale is not None
    shape = [size for pair in _pairs(held) for size in pair]
    wide = [size for own, _ in _pairs(held) for size in (own, 1)]
    result = tensor(node).new_empty(shape)
    integers = rewriter.constant(f"{node.name}_integers", held.values.reshape(shape), node)
    value = rewriter.add(node, aten._to_copy.default, integers, dtype=torch.float32, result=result)
    if held.zero_point is not None and held.zero_point.any():
        zeros = rewriter.constant(f"{node.name}_zeros", held.zero_point.astype(np.float32).reshape(wide), node)
        value = rewriter.add(node, aten.sub.Tensor, value, zeros, result=result)
    scales = rewriter.constant(f"{node.name}_scales", held.scale.reshape(wide), node)
    value = rewriter.add(node, aten.mul.Tensor, value, scales, result=result)
    rewriter.put(node, rewriter.reshape(node, value, held.shape))


def _pairs(held: Coded) -> list[tuple[int, int]]:
    """Return, for each dimension, the number of blocks and the size of a block."""
    assert held.scale is not None
    return [(own, size // own) for own, size in zip(held.scale.shape, held.shape, strict=True)]


KNOWN = frozenset(DECODES[:2])  # that the translations have
PATTERNS: LoweringTable[Any] = LoweringTable()
IN_INTEGERS = "in integers"


def _as_rows(node: Node) -> torch.Tensor:
    """Return a tensor without content in the sizes of a result, with at least two dimensions."""
    shape = tuple(tensor(node).shape)
    return tensor(node).new_empty(shape if len(shape) > 1 else (1, *shape))


def _activations(rewriter: RegionRewriter, node: Node, layer: Layer) -> Node:
    """Return the activations (rows, inputs), with the sizes of the result but for the last one."""
    rows = _as_rows(node).shape[:-1]
    return rewriter.reshape(node, layer.source, (*rows, tensor(layer.source).shape[-1]))


def _emit_blocks(rewriter: RegionRewriter, node: Node, layer: Layer, level: int) -> None:
    """Lower a layer to MatMulNBits."""
    held = rewriter.weights(node, layer)
    count, size = held.shape
    block = _block(held, _MOST_BLOCK)
    padded = Coded(np.pad(held.values, ((0, 0), (0, -size % block))), held.scale, held.zero_point, held.bits)
    packed = _pack(padded.values, held.bits).reshape(count, padded.shape[1] // block, -1)
    inputs = [
        _activations(rewriter, node, layer),
        rewriter.constant(f"{node.name}_weights", packed, node),
        rewriter.constant(f"{node.name}_scales", _spread(held, held.scale, block).reshape(-1), node),
        _zero_points(rewriter, node, held, block),
        None,
        layer.bias,
    ]
    attributes = {"K": size, "N": count, "bits": held.bits, "block_size": block, "accuracy_level": level}
    rewriter.replace(node, "MatMulNBits", inputs, **attributes)


def _block(held: Coded, most: int) -> int:
    """Return the number of inputs in a block of an operator: a power of two that fits the blocks of a matrix.

    Args:
        held: the matrix.
        most: the largest number.
    """
    assert held.scale is not None
    blocks, size = held.scale.shape[1], held.shape[1]
    if blocks == 1:
        return max(LEAST_BLOCK, min(most, 1 << (size - 1).bit_length()))
    group = size // blocks
    return min(most, int(group & -group))


def _spread(held: Coded, parameters: Any, block: int) -> Array:
    """Return parameters of a matrix with one for each block: (rows, blocks)."""
    rows, size = held.shape
    blocks, own = -(-size // block), parameters.shape[1]
    repeated = parameters.repeat(blocks // own if own > 1 else blocks, 1)
    return np.ascontiguousarray(np.broadcast_to(repeated, (rows, blocks)))


def _zero_points(rewriter: RegionRewriter, node: Node, held: Coded, block: int) -> Node | None:
    if held.symmetric:
        return None
    zeros = _spread(held, held.zero_point, block)
    even = np.pad(zeros, ((0, 0), (0, zeros.shape[1] % (8 // held.bits))))
    return rewriter.constant(f"{node.name}_zeros", _pack(even, held.bits), node)


def _pack(values: Array, bits: int) -> Array:
    """Return signed numbers in uint8, shifted to start at 0; two of 4 bits in a byte, the first in the low bits."""
    shifted = (values.astype(np.int16) + (1 << (bits - 1))).astype(np.uint8)
    return shifted if bits == 8 else shifted[..., 0::2] | (shifted[..., 1::2] << 4)


@PATTERNS.lowers_pattern("linear layer of integers", *LAYERS, match=match_layer)
def lower_layer(rewriter: RegionRewriter, node: Node) -> None:
    """Lower a linear layer of weights in integers."""
    layer = find_layer(node)
    assert isinstance(layer, Layer), f"{node.name} was claimed"
    if layer.ranges is not Ranges.NONE:
        _emit_dynamic(rewriter, node, layer)
    elif layer.is_small and check_blocks(layer) and rewriter.weights(node, layer).bits == 4:
        _emit_blocks(rewriter, node, layer, _IN_FLOATS)
    elif layer.scales is not None:  # a linear layer stays, and its weights are decoded like other constants
        _emit_decoded(rewriter, node, layer, layer.scales)


def _emit_dynamic(rewriter: RegionRewriter, node: Node, layer: Layer) -> None:
    """Lower a layer of activations that are quantized at run time."""
    held = rewriter.weights(node, layer)
    assert held.scale is not None
    if held.bits == 4 or held.scale.shape[1] > 1 or (layer.ranges is Ranges.ROW and not held.symmetric):
        _emit_blocks(rewriter, node, layer, _IN_INT8)
        return
    if layer.ranges is Ranges.ROW:
        _emit_rows(rewriter, node, layer, held)
        return
    zeros = None
    if not held.symmetric:
        zeros = rewriter.constant(f"{node.name}_zeros", held.zero_point.reshape(-1).astype(np.int8), node)  # type: ignore[union-attr]
    inputs = [
        _activations(rewriter, node, layer),
        rewriter.constant(f"{node.name}_weights", held.values.T, node),
        rewriter.constant(f"{node.name}_scales", held.scale.reshape(-1), node),
        zeros,
        layer.bias,
    ]
    rewriter.replace(node, "DynamicQuantizeMatMul", inputs)


def _emit_rows(rewriter: RegionRewriter, node: Node, layer: Layer, held: Coded) -> None:
    """Lower a layer with a range for each row of activations to MatMulInteger, and correct its zero points."""
    assert held.scale is not None
    x, result = _activations(rewriter, node, layer), _as_rows(node)
    column = result.new_empty((*result.shape[:-1], 1))
    codes, zero, scale = RunTimeRange((result.dim() - 1,), 0, 255, _LEAST_SCALE).quantize(node, x)

    def add(target: Any, *args: Any, like: torch.Tensor, **options: Any) -> Node:
        return rewriter.add(node, target, *args, result=like, **options)

    numbers = add(aten._to_copy.default, codes, dtype=torch.uint8, like=tensor(x).to(torch.uint8))
    integers, whole = result.to(torch.int32), column.to(torch.int32)
    table = rewriter.constant(f"{node.name}_weights", held.values, node)  # in the layout of a tied embedding
    weights = add(aten.permute.default, table, [1, 0], like=tensor(table).mT)
    sums = rewriter.constant(f"{node.name}_sums", held.values.sum(1, dtype=np.int32), node)
    product = rewriter.add_onnx(node, "MatMulInteger", [numbers, weights], integers)
    offset = add(aten.mul.Tensor, add(aten._to_copy.default, zero, dtype=torch.int32, like=whole), sums, like=integers)
    corrected = add(aten.sub.Tensor, product, offset, like=integers)
    factors = add(
        aten.mul.Tensor, scale, rewriter.constant(f"{node.name}_scales", held.scale.reshape(-1), node), like=result
    )
    floats = add(aten._to_copy.default, corrected, dtype=torch.float32, like=result)
    value = add(aten.mul.Tensor, floats, factors, like=result)
    if layer.bias is not None:
        value = add(aten.add.Tensor, value, layer.bias, like=result)
    rewriter.put(node, rewriter.reshape(node, value, tensor(node).shape))


def _emit_decoded(rewriter: RegionRewriter, node: Node, layer: Layer, scales: Node) -> None:
    """Lower a scaled product in floats; ONNX Runtime decodes the weights when the session is opened.

    MatMulNBits of 8 bits in floats takes 50 times as long for one row.
    """
    integers = tensor(layer.weight)
    floats = tensor(scales).new_empty(integers.shape)
    copied = rewriter.add(node, aten._to_copy.default, layer.weight, dtype=torch.float32, result=floats)
    weights = rewriter.add(node, aten.mul.Tensor, copied, scales, result=floats)
    product = rewriter.add(node, aten.matmul.default, _activations(rewriter, node, layer), weights, result=tensor(node))
    rewriter.put(node, product)


@PATTERNS.lowers_pattern("lookup", EMBEDDING, match=match_table)
def lower_lookup(rewriter: RegionRewriter, node: Node) -> None:
    """Lower a lookup to GatherBlockQuantized."""
    named = arguments(node)
    held = rewriter.weights(node, named["weight"])
    if held.shape[1] % 2:  # two numbers of 4 bits lie in a byte
        held = replace(held, bits=8)
    block = _block(held, 1 << 30)
    inputs = [
        rewriter.constant(f"{node.name}_table", _pack(held.values, held.bits), node),
        named["indices"],
        rewriter.constant(f"{node.name}_scales", _spread(held, held.scale, block), node),
        _zero_points(rewriter, node, held, block),
    ]
    attributes = {"gather_axis": 0, "quantize_axis": 1, "block_size": block, "bits": held.bits}
    rewriter.replace(node, "GatherBlockQuantized", inputs, **attributes)


def _leave(rewriter: RegionRewriter, node: Node) -> None:
    """Leave a pattern to ONNX Runtime, which finds it in the model."""


PATTERNS.lowers_pattern(run_time_ranges.PATTERN, *DECODES_BY, match=run_time_ranges.match)(_leave)
PATTERNS.lowers_pattern(
    IN_INTEGERS, "quantized_decomposed.quantize_per_tensor.default", match=partial(match_integers, integers=INTEGERS)
)(_leave)
