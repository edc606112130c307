"""Ways to quantize a module with torchao: PT2E with several quantizers, and `quantize_` in place."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence, Set
from typing import Any

import pytest
import torch
from torch import nn
from torch._ops import OpOverload
from torch.export import ExportedProgram, export
from torch.fx import GraphModule, Node

from tests.support import zoo

pytest.importorskip("torchao", reason="torchao quantizes the models of these tests")
with zoo.libraries():
    import torchao.quantization as ao
    from torchao.quantization.pt2e import MinMaxObserver, PerChannelMinMaxObserver
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e
    from torchao.quantization.pt2e.quantizer import QuantizationAnnotation, QuantizationSpec, Quantizer
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86
    from torchao.testing.pt2e import _xnnpack_quantizer as xnnpack

Quantize = Callable[[nn.Module, torch.Tensor], ExportedProgram]
aten = torch.ops.aten
LAYERS = frozenset({aten.conv2d.default, aten.linear.default})
FUSED = frozenset({aten.batch_norm.default, aten.relu.default, aten.relu_.default, aten.hardtanh_.default})


class EveryValue(Quantizer):
    """A quantizer of every float value to one integer type, and of weights to int8.

    A layer and the activation after it count as one.

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
    """Return a module quantized by PT2E after calibration with batches, and its exported program."""
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


def pt2e(quantizer: Callable[[], Any], *, training: bool = False) -> Quantize:
    """Return the way of PT2E with a quantizer."""

    def quantize(module: nn.Module, x: torch.Tensor) -> ExportedProgram:
        with torch.no_grad():
            prepared = (prepare_qat_pt2e if training else prepare_pt2e)(export(module, (x,)).module(), quantizer())
            prepared(x)
            return export(convert_pt2e(prepared), (x,))

    return quantize


def by_xnnpack(**options: bool) -> Callable[[], Any]:
    """Return the quantizer of torchao for XNNPACK."""
    return lambda: xnnpack.XNNPACKQuantizer().set_global(xnnpack.get_symmetric_quantization_config(**options))


def by_x86(**options: bool) -> Callable[[], Any]:
    """Return the quantizer of torchao for CPUs by Inductor: activations in uint8, weights in int8."""
    return lambda: x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config(**options))


def in_place(name: str, **options: Any) -> Quantize:
    """Return the way of `quantize_` with a configuration, e.g. "Int8WeightOnlyConfig"."""

    def quantize(module: nn.Module, x: torch.Tensor) -> ExportedProgram:
        ao.quantize_(module, getattr(ao, name)(**options))
        return export(module, (x,))

    return quantize


def everything(dtype: torch.dtype, *, per_channel: bool) -> Quantize:
    """Return the way that quantizes every float value."""
    return lambda module, x: quantized(module, [(x,)], dtype, per_channel=per_channel)[1]
