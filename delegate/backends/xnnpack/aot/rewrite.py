"""Rewrites of a region before it is lowered: factors and terms per channel move into adjacent weights.

A rule changes the region's results by rounding only: products of constants are computed in float64 and rounded once.
A weight that several nodes share is not changed, because copies of it would cost more than they save.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Graph, Node

from delegate.backend.aot import Region
from delegate.backends.xnnpack.aot.lowerings.shape import same_shape
from delegate.backends.xnnpack.aot.operand import shape_of
from delegate.edge.node import META_CONSTANT, arguments, op_name, tensor

_LINEAR, _CONVOLUTION = "aten.linear.default", "aten.convolution.default"
_PERMUTE = "aten.permute.default"
_MOVES = (_PERMUTE, "aten.view.default")  # operators that a single factor for all elements may move through

_SMALLEST = 2.0**-102  # of the largest weight of a row: weights 2^-24 of it are normal numbers in float32


class Rewriter:
    """The graph of a region during its rewrite.

    Attributes:
        graph: the graph, changed in place.
        constants: placeholder -> tensor; new ones are added.
    """

    def __init__(self, region: Region) -> None:
        self.graph: Graph = region.graph
        self.constants = dict(region.constants)
        self._outputs = frozenset(region.outputs)
        self._first = next(iter(region.graph.nodes))

    def exact(self, value: Any) -> torch.Tensor | None:
        """Return a number or a float32 constant in float64; None for other values."""
        if isinstance(value, int | float):
            return torch.tensor(float(value), dtype=torch.float64)
        constant = self.constants.get(value)
        return None if constant is None or constant.dtype is not torch.float32 else constant.detach().to(torch.float64)

    def linears(self, node: Node) -> list[Node]:
        """Return the linear layers that read a node's value, if no other node does and they do not share weights."""
        layers = list(node.users)
        fit = [n for n in layers if op_name(n) == _LINEAR and n.args[0] is node and self._own_weight(n)]
        return layers if len(fit) == len(layers) and node not in self._outputs else []

    def layer(self, value: Any, axis: int | None) -> Node | None:
        """Return the linear layer or convolution that computes a value, followed by permutes only; else None.

        Args:
            value: a node or a number.
            axis: dimension that must hold the layer's channels; None: any, and reshapes may follow, too.
        """
        while isinstance(value, Node) and len(value.users) == 1 and value not in self._outputs:
            name = op_name(value)
            if name in (_LINEAR, _CONVOLUTION):
                channels = len(shape_of(value)) - 1 if name == _LINEAR else 1
                plain = name == _LINEAR or not arguments(value)["transposed"]
                return value if plain and axis in (None, channels) and self._own_weight(value) else None
            if name not in _MOVES or (axis is not None and name != _PERMUTE):
                return None
            axis = None if axis is None else arguments(value)["dims"][axis] % len(shape_of(value))
            value = value.args[0]
        return None

    def _own_weight(self, layer: Node) -> bool:
        weight, bias = (*layer.args, None)[1:3]
        fits = isinstance(weight, Node) and len(weight.users) == 1 and self.exact(weight) is not None
        return fits and (bias is None or self.exact(bias) is not None)

    def scale_inputs(self, layers: Sequence[Node], factor: torch.Tensor | None, term: torch.Tensor | None) -> bool:
        """Change linear layers of x to layers of x * factor + term; either may be None.

        Returns:
            False, and nothing is changed, if the weights would lose digits.
        """
        changed = []
        for layer in layers:
            weight, bias = self._parameters(layer)
            if term is not None:
                bias = weight @ term + (0 if bias is None else bias)
            scaled = weight if factor is None else weight * factor
            if not _keeps_digits(weight, scaled):
                return False
            changed.append((layer, scaled, bias))
        for layer, weight, bias in changed:
            self._set(layer, weight, bias)
        return True

    def scale_outputs(self, layer: Node, factor: torch.Tensor | None, term: torch.Tensor | None) -> bool:
        """Change a layer of result y to y * factor + term: vectors of its channels, or one number for all.

        Returns:
            False, and nothing is changed, if the weights would lose digits, or the result the sign of a zero.
        """
        weight, bias = self._parameters(layer)
        if factor is not None:
            scaled = weight * factor.reshape(-1, *(1,) * (weight.dim() - 1))
            if not (factor != 0).all() or not _keeps_digits(weight, scaled):
                return False
            weight, bias = scaled, None if bias is None else bias * factor
        if term is not None:
            bias = (torch.zeros(weight.shape[0], dtype=torch.float64) if bias is None else bias) + term
        self._set(layer, weight, bias)
        return True

    def _parameters(self, layer: Node) -> tuple[torch.Tensor, torch.Tensor | None]:
        weight, bias = (*layer.args, None)[1:3]
        exact_weight = self.exact(weight)
        assert exact_weight is not None
        return exact_weight, None if bias is None else self.exact(bias)

    def _set(self, layer: Node, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        new = [None if t is None else self._constant(f"{layer.name}_{n}", t) for n, t in (("w", weight), ("b", bias))]
        layer.args = (layer.args[0], *new, *layer.args[3:])

    def _constant(self, name: str, value: torch.Tensor) -> Node:
        with self.graph.inserting_before(self._first):
            node = self.graph.placeholder(name)
        self.constants[node] = value.to(torch.float32)
        node.meta.update({"val": torch.empty_like(self.constants[node], device="meta"), META_CONSTANT: True})
        return node

    def drop(self, node: Node, value: Any) -> None:
        """Replace a node, which is not an output of the region, by one of its operands."""
        node.replace_all_uses_with(value)
        self.graph.erase_node(node)

    def is_output(self, node: Node) -> bool:
        """Return true if the node's value is an output of the region."""
        return node in self._outputs


def rewrite(region: Region) -> Region:
    """Apply all rules to a copy of the region; nodes keep their names."""
    region = region.copy()
    rewriter = Rewriter(region)
    for node in list(region.graph.nodes):
        for rule in RULES.get(op_name(node), ()) if node.op == "call_function" else ():
            if rule(rewriter, node):
                break
    region.graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output"))
    return replace(region, constants=rewriter.constants)


def _keeps_digits(weight: torch.Tensor, scaled: torch.Tensor) -> bool:
    """Return true if scaled weights are finite in float32, and no row of them becomes too small for its digits."""
    before, after = (w.abs().reshape(len(w), -1).amax(1) for w in (weight, scaled))
    fits = (after >= _SMALLEST) | (before < _SMALLEST)
    return bool(((after <= torch.finfo(torch.float32).max) & fits).all())


# -- rules: they return true if the node was rewritten -----------------------------------------------------------------


def _fold_norm_into_linears(rewriter: Rewriter, node: Node) -> bool:
    """Move weight and bias of a norm along the last dimension into the linear layers that read it."""
    named = arguments(node)
    parameters = {name: named[name] for name in ("weight", "bias") if named.get(name) is not None}
    vectors = {name: rewriter.exact(value) for name, value in parameters.items()}
    layers = rewriter.linears(node)
    if not vectors or not layers or None in vectors.values() or len(named["normalized_shape"]) != 1:
        return False
    if not rewriter.scale_inputs(layers, vectors.get("weight"), vectors.get("bias")):
        return False
    node.args, node.kwargs = tuple({**named, **dict.fromkeys(parameters)}.values()), {}
    return True


def _fold_into_layer(rewriter: Rewriter, node: Node) -> bool:
    """Move a product or sum with a constant per channel into the layer before, or the linear layers after it."""
    if rewriter.is_output(node) or node.kwargs.get("alpha", 1) != 1:
        return False
    for value, other in (node.args[:2], node.args[1::-1]):
        constant = rewriter.exact(other)
        if constant is not None and isinstance(value, Node) and same_shape(shape_of(value), shape_of(node)):
            return _move_constant(rewriter, node, value, constant)
    return False


def _move_constant(rewriter: Rewriter, node: Node, value: Node, constant: torch.Tensor) -> bool:
    is_product = op_name(node).startswith("aten.mul")
    axis = _axis(constant.shape, len(shape_of(node)))
    if constant.numel() == 1 and not is_product:
        return False
    if constant.numel() > 1 and axis is None:
        return False
    vector = constant.reshape(-1)
    factor_and_term = (vector, None) if is_product else (None, vector)
    layer = rewriter.layer(value, axis)
    if layer is not None:
        moved = rewriter.scale_outputs(layer, *factor_and_term)
    elif axis == len(shape_of(node)) - 1 and (layers := rewriter.linears(node)):
        moved = rewriter.scale_inputs(layers, *factor_and_term)
    else:
        return False
    if moved:
        rewriter.drop(node, value)
    return moved


def _axis(shape: Sequence[int], rank: int) -> int | None:
    """Return the one dimension, of `rank`, along which a broadcast constant varies; None if there is not one."""
    long = [d + rank - len(shape) for d, size in enumerate(shape) if size != 1]
    return long[0] if len(long) == 1 else None


def _fold_attention_scale(rewriter: Rewriter, node: Node) -> bool:
    """Move the scale of scores into the layer that computes the queries."""
    named = arguments(node)
    query, channels = named["query"], shape_of(named["query"])[-1]
    layer = rewriter.layer(query, None)
    if layer is None or query in (named["key"], named["value"]) or not isinstance(channels, int):
        return False
    scale = 1 / math.sqrt(channels) if named["scale"] is None else named["scale"]
    if not rewriter.scale_outputs(layer, rewriter.exact(scale), None):
        return False
    node.kwargs = {**node.kwargs, "scale": 1.0}
    return True


def _group_heads(rewriter: Rewriter, node: Node) -> bool:
    """Pass keys and values that were repeated for each query head of their group once."""
    named = arguments(node)
    if named["enable_gqa"] or len(shape_of(named["query"])) != 4:
        return False
    sources = [_source_of_repeat(named[name]) for name in ("key", "value")]
    if None in sources or not same_shape(shape_of(sources[0])[:2], shape_of(sources[1])[:2]):  # type: ignore[arg-type]
        return False
    node.args = (node.args[0], *sources, *node.args[3:])
    node.kwargs = {**node.kwargs, "enable_gqa": True}
    return False  # the next rule may still apply


def _source_of_repeat(node: Node) -> Node | None:
    """Return x of x.unsqueeze(2).expand(batch, heads, n, length, channels).view(batch, heads * n, length, channels)."""
    names = []
    value: Any = node
    for _ in range(3):
        names.append(op_name(value) if isinstance(value, Node) and value.op == "call_function" else "")
        value = value.args[0] if names[-1] else value
    if names != ["aten.view.default", "aten.expand.default", "aten.unsqueeze.default"]:
        return None
    expanded = node.args[0]
    assert isinstance(expanded, Node)
    assert isinstance(expanded.args[0], Node)
    shape, wide = shape_of(value), shape_of(expanded)
    if len(shape) != 4 or expanded.args[0].args[1] not in (2, -3):
        return None
    repeats = wide[2]
    same = same_shape((*shape[:2], *shape[2:]), (*wide[:2], *wide[3:]))
    return value if same and same_shape(shape_of(node), (shape[0], shape[1] * repeats, *shape[2:])) else None


def _form_rms_norm(rewriter: Rewriter, node: Node) -> bool:
    """Replace x * rsqrt(mean(x ** 2) + eps) by one rms_norm. eps > 0 prevents a division by zero."""
    for x, root in (node.args[:2], node.args[1::-1]):
        total = _argument(root, "aten.rsqrt.default")
        mean = _argument(total, "aten.add.Tensor")
        square = _argument(mean, "aten.mean.dim")
        if not isinstance(x, Node) or _argument(square, "aten.pow.Tensor_Scalar") is not x or square.args[1] != 2:
            continue
        eps, last = total.args[1], len(shape_of(x)) - 1
        along = [d % (last + 1) for d in mean.args[1]]
        channels = tensor(x).shape[-1]
        known = isinstance(eps, float) and eps > 0 and total.kwargs.get("alpha", 1) == 1 and isinstance(channels, int)
        if known and along == [last] and arguments(mean)["keepdim"]:
            node.target = torch.ops.aten.rms_norm.default
            node.args = (x, [channels], None, eps)
            return True
    return False


def _argument(node: Any, name: str) -> Any:
    """Return the first argument of an operator's call; None for other nodes."""
    return node.args[0] if isinstance(node, Node) and node.op == "call_function" and op_name(node) == name else None


Rule = Callable[[Rewriter, Node], bool]

RULES: dict[str, tuple[Rule, ...]] = {
    "aten.layer_norm.default": (_fold_norm_into_linears,),
    "aten.rms_norm.default": (_fold_norm_into_linears,),
    "aten.mul.Tensor": (_form_rms_norm, _fold_into_layer),
    "aten.mul.Scalar": (_fold_into_layer,),
    "aten.add.Tensor": (_fold_into_layer,),
    "aten.scaled_dot_product_attention.default": (_group_heads, _fold_attention_scale),
}
