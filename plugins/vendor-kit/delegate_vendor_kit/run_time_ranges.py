"""Values that are quantized at run time and decoded again, as operators on floats.

Libraries have integers at run time for linear layers alone. Other readers of such a value get the same rounded floats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.fx import Node

from delegate.backend.aot import Claim, Region
from delegate.backend.qdq import chain
from delegate.edge.build import make_like
from delegate.edge.node import arguments, op_name, tensor
from delegate.verdict import Reason, Verdict, no
from delegate_vendor_kit.quantized_layers import decodes_to_float32

PATTERN = "quantized at run time, in floats"
_ROWS = (  # operators that choose a range for each row, of int8 and around any zero point
    "quantized_decomposed.choose_qparams_per_token_asymmetric.default",
    "quantized_decomposed._choose_qparams_per_token_asymmetric_impl.default",
)
_TENSOR, _AFFINE = "quantized_decomposed.choose_qparams.tensor", "torchao.choose_qparams_affine.default"
aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class RunTimeRange:
    """The choice of parameters by the least and the greatest value, as torch and torchao compute it.

    Args:
        dims: the dimensions of the values that share a range.
        low, high: the ends of the integers.
        least: the smallest scale.
    """

    dims: tuple[int, ...]
    low: int
    high: int
    least: float

    def quantize(self, before: Node, values: Node) -> tuple[Node, Node, Node]:
        """Insert the operators before a node.

        Args:
            before: the node.
            values: the values in float32.

        Returns:
            The integers, the zero points and the scales, all in float32.
        """

        def add(target: Callable[..., object], *args: object) -> Node:
            return make_like(before, target, args, {})

        with before.graph.inserting_before(before):
            smallest = add(aten.clamp.default, add(aten.amin.default, values, list(self.dims), True), None, 0.0)
            largest = add(aten.clamp.default, add(aten.amax.default, values, list(self.dims), True), 0.0)
            size = add(aten.div.Tensor, add(aten.sub.Tensor, largest, smallest), float(self.high - self.low))
            scale = add(aten.clamp.default, size, self.least)
            steps = add(aten.round.default, add(aten.div.Tensor, smallest, scale))
            ends = float(self.low), float(self.high)
            zero = add(aten.clamp.default, add(aten.add.Tensor, add(aten.neg.default, steps), ends[0]), *ends)
            numbers = add(aten.round.default, add(aten.mul.Tensor, values, add(aten.reciprocal.default, scale)))
            return add(aten.clamp.default, add(aten.add.Tensor, numbers, zero), *ends), zero, scale

    def round(self, before: Node, values: Node) -> Node:
        """Insert the operators that quantize and decode values before a node; return the result."""
        numbers, zero, scale = self.quantize(before, values)
        with before.graph.inserting_before(before):
            return make_like(
                before, aten.mul.Tensor, (make_like(before, aten.sub.Tensor, (numbers, zero), {}), scale), {}
            )


def find_range(choose: Node) -> RunTimeRange | None:
    """Return how a node's parameters are chosen; None for a choice in another way."""
    named, sizes = arguments(choose), tensor(choose.all_input_nodes[0]).shape
    whole = tuple(range(len(sizes)))
    if op_name(choose) in _ROWS:
        return RunTimeRange(whole[-1:], -128, 127, torch.finfo(torch.float32).eps)
    if op_name(choose) == _TENSOR:
        return RunTimeRange(whole, *(named[name] for name in ("quant_min", "quant_max", "eps")))
    if op_name(choose) != _AFFINE or named["mapping_type"] != "ASYMMETRIC" or named["quant_min"] is None:
        return None
    block = tuple(named["block_size"])
    dims = whole if block == tuple(sizes) else whole[-1:]
    is_row = block == (*(1 for _ in sizes[:-1]), sizes[-1])
    least = torch.finfo(torch.float32).eps if named["eps"] is None else named["eps"]
    return RunTimeRange(dims, named["quant_min"], named["quant_max"], least) if is_row or dims == whole else None


def match(decode: Node) -> Sequence[Node] | Verdict | None:
    """Match values that are quantized at run time and decoded again."""
    quantization = chain(decode)
    if quantization is None:
        return None
    source, nodes = quantization
    found, named = find_range(nodes[0]), arguments(nodes[-2])
    if found is None or (named["quant_min"], named["quant_max"]) != (found.low, found.high):
        return no(Reason.ATTRIBUTE, f"{op_name(nodes[0])} with another choice than by the least and greatest value")
    verdict = decodes_to_float32(source, decode)
    return nodes if verdict else verdict


def outside_of_pattern(library: str) -> Verdict:
    """Return the refusal for a lone part of a run-time quantization: a pattern has all its parts.

    Args:
        library: the name of the library, for messages.
    """
    what = "with the choice of its range, its rounding and its decoding, from float32 to float32"
    return no(Reason.OPERATOR, f"{library} supports a quantization at run time only as a whole: {what}")


def lower_to_floats(node: Node) -> Node | None:
    """Insert the operators on floats of a matched value before the node that decodes it, if it has users.

    Returns:
        The last of these operators; None for another node.
    """
    quantization = chain(node) if node.users else None
    found = None if quantization is None else find_range(quantization[1][0])
    return None if quantization is None or found is None else found.round(node, quantization[0])


def notes_on_floats(region: Region, claims: Callable[[Node], Sequence[Claim]]) -> Iterator[str]:
    """Yield notes on the operators that read values of `PATTERN`, with the reason if a layer is refused.

    Args:
        region: the region.
        claims: returns the pattern matches around a node, and their refusals.
    """
    layers = {n for pattern in region.patterns if pattern.name != PATTERN for n in pattern.nodes}
    decodes = (pattern.nodes[-1] for pattern in region.patterns if pattern.name == PATTERN)
    readers = dict.fromkeys(
        user for node in decodes for user in node.users if user not in layers and user.op != "output"
    )
    kinds: Counter[str] = Counter()
    for reader in readers:
        why = next((claim.verdict.message for claim in claims(reader) if not claim.verdict), "")
        kinds[f"{op_name(reader)}{why and f', because of {why}'}"] += 1
    for kind, count in sorted(kinds.items()):
        yield f"computed in floats, not in integers: {kind}{f' ({count} times)' if count > 1 else ''}"
