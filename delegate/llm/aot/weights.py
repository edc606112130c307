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
PART = 1 << 19  # numbers that are quantized at a time: their temporary arrays stay in the allocator and in the cache


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
    tied = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    quantized = copy.deepcopy(model, {id(p): p for p in model.parameters()})
    head = quantized.get_output_embeddings()
    layers = [module for module in quantized.modules() if isinstance(module, nn.Linear) and module is not head]
    if weights == "int4" and rows is not None:
        quantize_in_order(quantized, layers, rows, BLOCK)
        layers = []
    for layer in (*layers, head):
        integers = _in_integers(layer.weight.detach(), "int8" if layer is head else weights, rounding)
        layer.weight = nn.Parameter(integers, requires_grad=False)
    embedding = quantized.get_input_embeddings()
    if tied:
        values, scales = head.weight.qdata, head.weight.scale
    else:
        scales = embedding.weight.detach().abs().amax(1, keepdim=True).clamp_min(1e-30) / 127
        values = torch.round(embedding.weight.detach() / scales).to(torch.int8)
    factor = getattr(embedding, "scalar_embed_scale", 1.0)
    quantized.set_input_embeddings(Rows(values, scales.reshape(-1, 1).to(torch.float32), factor))
    return quantized


def _in_integers(weight: Tensor, weights: str, rounding: str) -> Tensor:
    """Return a weight (rows, width) as torchao's tensor of int8, or of int4 in blocks; activations are int8.

    Parts of the rows are quantized one after the other. Otherwise each of about ten operators writes a new array of the
    whole weight, and the operating system needs longer to clear its memory than the operator to compute.
    """
    from torchao.quantization import IntxUnpackedToInt8Tensor

    kind, block = (torch.int4, BLOCK) if weights == "int4" else (torch.int8, weight.shape[1])  # type: ignore[attr-defined]
    fitted = {"intx_choose_qparams_algorithm": HQQ} if weights == "int4" and rounding != "nearest" else {}
    parts = [
        IntxUnpackedToInt8Tensor.from_hp(
            rows, (1, block), kind, activation_quantization="int8_asym_per_token", **fitted
        )
        for rows in torch.split(weight, max(1, PART // weight.shape[1]))
    ]
    numbers = (torch.cat([getattr(p, name) for p in parts]) for name in parts[0].tensor_data_names)
    whole: Tensor = IntxUnpackedToInt8Tensor(*numbers, *(getattr(parts[0], n) for n in parts[0].tensor_attribute_names))
    return whole


def _check_blocks(model: transformers.PreTrainedModel) -> None:
    head = model.get_output_embeddings()
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and module is not head and module.in_features % BLOCK:
            raise ConfigError(
                f"the {module.in_features} weights of a row are not divisible into blocks of {BLOCK}",
                where=f"layer {name}",
                remedy="use --weights int8",
            )
