"""Conversion of the quantized nodes of a region, for which OpenVINO's frontend has no rules that keep integers.

These nodes are cut out of the region before the frontend converts it. Each leaves an input in its place, and its
operands become results. Then the operators of each are inserted into the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import openvino
from delegate_vendor_kit import run_time_ranges
from delegate_vendor_kit.quantized_layers import (
    EMBEDDING,
    LAYERS,
    Layer,
    coded_value,
    decode_value,
    find_layer,
    known_value,
    match_integers,
    match_table,
)
from openvino import opset13 as opset
from torch.fx import Node

from delegate.backend.aot import Region, RegionRefused
from delegate.backend.lowering import LoweringTable
from delegate.backend.qdq import CHOOSES, DECODES, DECODES_BY, DEQUANTIZE, QUANTIZE, is_known
from delegate.edge.node import arguments, op_name, tensor
from delegate.edge.program import META_VALUE
from delegate_openvino.compressed import compressed, storage_bits, with_scales_of_rows
from delegate_openvino.elements import ELEMENTS
from delegate_openvino.patterns import group_of_layer, match_layer
from delegate_openvino.schemes import INTEGERS

Build = Callable[..., Any]  # outputs of operators -> the output of an operator
DECODED = "decoded integers of "  # the start of the names of operators that decode activations


@dataclass(frozen=True, slots=True)
class Hole:
    """A node that was cut out of a region.

    Args:
        place: the input in its place.
        operands: nodes of the region without holes.
        build: inserts its operators.
    """

    place: Node
    operands: tuple[Node, ...]
    build: Build


class CutRegion:
    """A copy of a region without its quantized nodes.

    Args:
        region: the region; it is not changed.

    Raises:
        RegionRefused: a part of a refused pattern is left.
    """

    def __init__(self, region: Region) -> None:
        self._region = region.copy()
        self.holes: list[Hole] = []
        self.notes: list[str] = []
        for pattern in self._region.patterns:
            PATTERNS.pattern(pattern.name).lower(self, pattern.nodes[-1])
        for node in self._region.calls:
            if op_name(node) == QUANTIZE:
                self._round(node)
                if node.users:
                    self.cut(node, (node.args[0],), _quantize(node))
            elif op_name(node) in DECODES and is_known(node) and node.users:
                self.cut(node, (), partial(_same, self._constant_of(node)))
            elif (rounded := run_time_ranges.lower_to_floats(node)) is not None:
                self._replace(node, rounded)
            elif op_name(node) in DECODES and node.users:
                self.cut(node, (node.args[0],), _decode(node))

    def _round(self, node: Node) -> None:
        """Cut out the nodes that decode what a node quantizes: one FakeQuantize is in place of both.

        From FakeQuantize, Convert, Convert, Subtract and Multiply next to a concatenation, OpenVINO forms a convolution
        of uint8 that reads negative integers as 0. Results of the region stay exact: the values of FakeQuantize may
        differ in the last bit.
        """
        for user in tuple(node.users):
            is_pair = op_name(user) == DEQUANTIZE and _parameters(user) == _parameters(node)
            if is_pair and user not in self._region.outputs:
                self.cut(user, (node.args[0],), partial(_fake_quantize, user))

    @property
    def constants(self) -> Mapping[Node, Any]:
        """Return the constants of the region."""
        return self._region.constants

    def cut(self, node: Node, operands: Sequence[Any], build: Build) -> None:
        """Cut a node out."""
        graph = self._region.graph
        with graph.inserting_before(next(iter(graph.nodes))):
            place = graph.placeholder(f"{node.name}_in_integers")
        place.meta = {META_VALUE: node.meta[META_VALUE]}
        self._replace(node, place)
        self.holes.append(Hole(place, tuple(operands), build))

    def _replace(self, node: Node, other: Node) -> None:
        """Let another node take the place of a node."""
        node.replace_all_uses_with(other)
        outputs = tuple(other if n is node else n for n in self._region.outputs)
        self._region = replace(self._region, outputs=outputs)
        self._region.graph.erase_node(node)
        self.holes = [replace(h, operands=tuple(other if n is node else n for n in h.operands)) for h in self.holes]

    def cut_layer(self, node: Node, layer: Layer) -> None:
        """Cut a linear layer out."""
        weights = self._weights_of(layer)
        operands, bias = [layer.source], None
        if layer.bias is not None and is_known(layer.bias):
            bias = opset.constant(known_value(layer.bias, self.constants).numpy())
        elif layer.bias is not None:
            operands.append(layer.bias)

        def build(source: Any, *biases: Any) -> Any:
            product = opset.matmul(source, weights, False, True)
            added = [*biases, *(() if bias is None else (bias,))]
            return (opset.add(product, added[0]) if added else product).output(0)

        self.cut(node, operands, build)

    def _weights_of(self, layer: Layer) -> Any:
        held = layer.weights(self.constants)
        if isinstance(held, str):
            return self._in_floats(layer.weight, f"it has {held}")
        held = with_scales_of_rows(held)
        assert held.scale is not None
        block = held.shape[1] // held.scale.shape[1]
        bits = storage_bits(held.shape[1], block, held.bits, held.symmetric)
        if bits is None:
            return self._in_floats(layer.weight, f"OpenVINO decodes weights in blocks of {block}")
        return compressed(replace(held, bits=bits))

    def _constant_of(self, node: Node) -> Any:
        """Return the output of an operator with the constant that a node decodes for any reader."""
        held = coded_value(node, self.constants)
        if isinstance(held, str):
            return self._in_floats(node, f"it has {held}")
        if all(op_name(user) == EMBEDDING for user in node.users):
            return compressed(held)
        if not held.is_plain:
            return self._in_floats(node, "it has scales for blocks, and another reader than linear layers and lookups")
        return compressed(replace(held, bits=8))

    def _in_floats(self, node: Node, why: str) -> Any:
        self.notes.append(f"stored in floats, not in integers: {node.name}, because {why}")
        return opset.constant(decode_value(node, self.constants)).output(0)

    def finish(self) -> Region:
        """Return the region for the frontend.

        Inputs in the place of holes come after the inputs of the whole region, and operands of holes after its results.
        """
        region, graph = self._region, self._region.graph
        operands = dict.fromkeys(n for hole in self.holes for n in hole.operands)
        results = [*region.outputs, *operands]
        output = next(n for n in graph.nodes if n.op == "output")
        output.args = (tuple(results),)
        for node in reversed(region.calls):
            if not node.users:
                graph.erase_node(node)
        left = next((n for n in region.calls if op_name(n) in CHOOSES), None)
        if left is not None:
            raise RegionRefused({left.name: "parameters chosen at run time, for a layer that is refused"})
        constants = {n: value for n, value in region.constants.items() if n.users}
        for node in [n for n in region.constants if not n.users]:
            graph.erase_node(node)
        places = (hole.place for hole in self.holes)
        inputs, outputs = (*region.inputs, *places), tuple(results)
        return replace(region, inputs=inputs, outputs=outputs, constants=constants, patterns=())

    def fill(self, model: openvino.Model, region: Region) -> openvino.Model:
        """Return a model with the operators of all holes.

        Args:
            model: the model of the region that `finish` returned.
            region: that region.
        """
        count = len(self._region.outputs)
        parameters, results = model.get_parameters(), model.get_results()
        places = dict(zip(region.inputs, parameters, strict=True))
        operands = dict(zip(region.outputs[count:], results[count:], strict=True))
        for hole in self.holes:
            built = hole.build(*(operands[n].input_value(0) for n in hole.operands))
            places[hole.place].output(0).replace(built)
        return openvino.Model(results[:count], parameters[: len(self._region.inputs)])


def _same(output: Any) -> Any:
    return output


def _parameters(node: Node) -> tuple[Any, ...]:
    named = arguments(node)
    return tuple(named[name] for name in ("scale", "zero_point", "quant_min", "quant_max", "dtype"))


def _ends(node: Node) -> tuple[Any, Any]:
    """Return the least and the largest value that a node which quantizes, or decodes, can represent."""
    scale, zero, *ends, _ = _parameters(node)
    low, high = (np.float32((end - zero) * scale) for end in ends)
    return low, high


def _levels(node: Node) -> int:
    _, _, low, high, _ = _parameters(node)
    return int(high - low + 1)


def _fake_quantize(node: Node, value: Any) -> Any:
    """Return the operator that rounds a value, named like one that decodes: notes on floats are about its readers."""
    rounded = opset.fake_quantize(value, *_ends(node), *_ends(node), _levels(node))
    rounded.set_friendly_name(f"{DECODED}{node.name}")
    return rounded.output(0)


def _quantize(node: Node) -> Build:
    """Return the operators that quantize a value: OpenVINO fuses FakeQuantize with the operator before it."""
    named = arguments(node)
    low, high = named["quant_min"], named["quant_max"]
    element = ELEMENTS[tensor(node).dtype]

    def build(value: Any) -> Any:
        numbers = opset.fake_quantize(value, *_ends(node), np.float32(low), np.float32(high), _levels(node))
        return opset.convert(numbers, element).output(0)

    return build


def _decode(node: Node) -> Build:
    """Return the operators that decode integers, which OpenVINO fuses with the operator after them."""
    named = arguments(node)

    def build(numbers: Any) -> Any:
        value = opset.convert(numbers, "f32")
        if named["zero_point"]:
            value = opset.subtract(value, opset.constant(np.float32(named["zero_point"])))
        value = opset.multiply(value, opset.constant(np.float32(named["scale"])))
        value.set_friendly_name(f"{DECODED}{node.name}")
        return value.output(0)

    return build


def operators_on_integers(model: openvino.Model) -> Iterator[str]:
    """Yield the names of a model's operators that read decoded activations."""
    for op in model.get_ops():
        if op.get_friendly_name().startswith(DECODED):
            for reader in op.output(0).get_target_inputs():
                yield reader.get_node().get_friendly_name()


def group_of_region(region: Region) -> int:
    """Return the number of activations that share a range in the layers of a region; 0 to compute them all in floats.

    OpenVINO has one number for a model, so it would also quantize the activations of layers with only their weights in
    integers.
    """
    layers = (find_layer(p.nodes[-1]) for p in region.patterns if p.name == _LAYER)
    groups = (group_of_layer(layer) for layer in layers if isinstance(layer, Layer))
    return min((group for group in groups if group is not None), default=0)


PATTERNS: LoweringTable[Any] = LoweringTable()
IN_INTEGERS, _LAYER = "in integers", "linear layer of integers"


@PATTERNS.lowers_pattern(_LAYER, *LAYERS, match=match_layer)
def _cut_layer(region: CutRegion, node: Node) -> None:
    layer = find_layer(node)
    assert isinstance(layer, Layer), f"{node.name} was claimed"
    region.cut_layer(node, layer)


def _leave(region: CutRegion, node: Node) -> None:
    """Leave a pattern to the conversion of its single nodes, which OpenVINO fuses."""


PATTERNS.lowers_pattern("lookup", EMBEDDING, match=match_table)(_leave)
PATTERNS.lowers_pattern(run_time_ranges.PATTERN, *DECODES_BY, match=run_time_ranges.match)(_leave)
PATTERNS.lowers_pattern(IN_INTEGERS, QUANTIZE, match=partial(match_integers, integers=INTEGERS))(_leave)
