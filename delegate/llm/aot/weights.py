"""Weights in few bits: linear layers in int8 or in blocks of int4, and an int8 embedding that the head shares."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from delegate.errors import ConfigError
from delegate.llm.aot.hugging_face import transformers
from delegate.llm.aot.rounding import HQQ, quantize_in_order

WEIGHTS = ("float32", "int8", "int4")
BLOCK = 32


class Rows(nn.Module):
    """An int8 embedding with a scale for each row.

    Args:
        values: int8 (rows, width).
        scales: (rows, 1).
        factor: multiplies all results.
    """

    values: Tensor
    scales: Tensor

    def __init__(self, values: Tensor, scales: Tensor, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.register_buffer("values", values)
        self.register_buffer("scales", scales)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.values[tokens].to(torch.float32) * (self.scales[tokens] * self.factor)


def quantize_weights(
    model: transformers.PreTrainedModel, weights: str, rounding: str = "nearest", rows: Tensor | None = None
) -> transformers.PreTrainedModel:
    """Return the model with quantized linear layers and embedding; it shares all other weights with the original.

    Args:
        model: the model in float32, which stays as it is.
        weights: one of `WEIGHTS`.
        rounding: of int4, one of `ROUNDINGS`.
        rows: calibration data for "gptq": tokens, (rows, length).

    Raises:
        ConfigError: the weights of a row are not divisible into blocks.
    """
    if weights == "float32":
        return model
    if weights == "int4":
        _check_blocks(model)
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig, PerAxis, PerGroup, quantize_

    tied = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    quantized = copy.deepcopy(model, {id(p): p for p in model.parameters()})
    head = quantized.get_output_embeddings()
    by_row = Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int8, weight_granularity=PerAxis(0))
    blocks = Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4,  # type: ignore[attr-defined]
        weight_granularity=PerGroup(BLOCK),
        **({} if rounding == "nearest" else {"intx_choose_qparams_algorithm": HQQ}),
    )
    layers = [module for module in quantized.modules() if isinstance(module, nn.Linear) and module is not head]
    if weights == "int4" and rows is not None:
        quantize_in_order(quantized, layers, rows, BLOCK)
    else:
        inner = blocks if weights == "int4" else by_row
        quantize_(quantized, inner, lambda module, _: isinstance(module, nn.Linear) and module is not head)
    quantize_(quantized, by_row, lambda module, _: module is head)
    embedding = quantized.get_input_embeddings()
    if tied:
        values, scales = head.weight.qdata, head.weight.scale
    else:
        scales = embedding.weight.detach().abs().amax(1, keepdim=True).clamp_min(1e-30) / 127
        values = torch.round(embedding.weight.detach() / scales).to(torch.int8)
    factor = getattr(embedding, "scalar_embed_scale", 1.0)
    quantized.set_input_embeddings(Rows(values, scales.reshape(-1, 1).to(torch.float32), factor))
    return quantized


def _check_blocks(model: transformers.PreTrainedModel) -> None:
    head = model.get_output_embeddings()
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and module is not head and module.in_features % BLOCK:
            raise ConfigError(
                f"the {module.in_features} weights of a row are not divisible into blocks of {BLOCK}",
                where=f"layer {name}",
                remedy="use --weights int8",
            )
