"""A quantizer for tests: every float value in one integer type, weights in int8, layers with what follows as one."""

from __future__ import annotations

import warnings
from collections.abc import Sequence, Set
from typing import Any

import torch
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e import MinMaxObserver, PerChannelMinMaxObserver
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer import QuantizationAnnotation, QuantizationSpec, Quantizer

aten = torch.ops.aten
LAYERS = frozenset({aten.conv2d.default, aten.linear.default})
FUSED = frozenset({aten.batch_norm.default, aten.relu.default, aten.relu_.default, aten.hardtanh_.default})


class EveryValue(Quantizer):
    """Quantizes all that is float.

    Args:
        dtype: of activations.
        per_channel: whether weights have a scale per channel.
        floats: operators that stay float.
    """

    def __init__(self, dtype: torch.dtype, *, per_channel: bool, floats: Set[OpOverload]) -> None:
        self.floats = floats
        info = torch.iinfo(dtype)
        self.value = QuantizationSpec(
            dtype, MinMaxObserver.with_args(eps=2**-20), info.min, info.max, torch.per_tensor_affine
        )
        observer, scheme = (
            (PerChannelMinMaxObserver, torch.per_channel_symmetric)
            if per_channel
            else (MinMaxObserver, torch.per_tensor_symmetric)
        )
        self.weight = QuantizationSpec(torch.int8, observer, -127, 127, scheme, ch_axis=0 if per_channel else None)

    def annotate(self, model: GraphModule) -> GraphModule:
        for node in model.graph.nodes:
            if node.op == "call_function" and _is_float(node) and node.target not in self.floats:
                node.meta["quantization_annotation"] = QuantizationAnnotation(
                    input_qspec_map=dict(self._inputs(node)),
                    output_qspec=None if _goes_on(node) else self.value,
                    _annotated=True,
                )
        return model

    def _inputs(self, node: Node) -> Any:
        for position, source in enumerate(node.args):
            if not _is_float(source) or (_goes_on(source) and node.target in FUSED):
                continue
            if position == 0 or node.target not in LAYERS | FUSED | {aten.layer_norm.default}:
                yield source, self.value
            elif position == 1 and node.target in LAYERS:
                yield source, self.weight

    def validate(self, model: GraphModule) -> None:
        """Nothing can be wrong."""


def quantized(
    module: torch.nn.Module,
    batches: Sequence[tuple[torch.Tensor, ...]],
    dtype: torch.dtype,
    *,
    per_channel: bool,
    floats: Set[OpOverload] = frozenset(),
) -> tuple[torch.nn.Module, ExportedProgram]:
    """A module quantized by what these batches show, as PT2E gives it, and exported."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of torchao about itself
        prepared = prepare_pt2e(
            torch.export.export(module.eval(), batches[0]).module(),
            EveryValue(dtype, per_channel=per_channel, floats=floats),
        )
        for batch in batches:
            prepared(*batch)
        converted = convert_pt2e(prepared)
        return converted, torch.export.export(converted, batches[0])


def last_step(exported: ExportedProgram) -> float:
    """The step of a program's result: the scale of the dequantization that gives it."""
    (result,) = exported.graph.output_node().args[0]
    return float(result.args[1])


def _is_float(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _goes_on(node: Node) -> bool:
    """Whether the node is one with its only user, so that the value between them is not quantized."""
    if len(node.users) != 1 or node.target not in LAYERS | {aten.batch_norm.default, aten.add.Tensor}:
        return False
    (user,) = node.users
    return user.target in FUSED
