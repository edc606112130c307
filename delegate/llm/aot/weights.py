"""Weights in few bits: linear layers and the head in int8 or in blocks of int4, and an int8 embedding."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from delegate.backends.quantizable import exact_scales
from delegate.errors import ConfigError
from delegate.llm.aot.hugging_face import transformers
from delegate.llm.aot.rounding import HIGH, HQQ, LOW, quantize_in_order

INTEGERS = ("int8", "int4")
WEIGHTS = ("float32", *INTEGERS)
BLOCKS = (32, 64, 128, 256)  # numbers of int4 weights that share a scale
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
    model: transformers.PreTrainedModel,
    weights: str,
    head_weights: str = "int8",
    block: int = BLOCKS[0],
    rounding: str = "nearest",
    rows: Tensor | None = None,
    tables: transformers.PreTrainedModel | None = None,
) -> None:
    """Quantize the linear layers and the embedding of a model, in place.

    Each weight is widened to float32 only while it is quantized, and released after that.

    Args:
        model: the model; its linear layers and its embedding in float32, float16 or bfloat16.
        weights: one of `WEIGHTS`; of float32, nothing is quantized, and all weights are widened.
        head_weights: The head's format, "int8" or "int4". A head in int8 shares its integers with the embedding it is
            tied to; the embedding is always int8.
        block: The block size of int4, one of `BLOCKS`.
        rounding: How int4 is rounded, one of `ROUNDINGS`.
        rows: calibration data for "gptq": tokens, (rows, length).
        tables: a model of the same source and head weights that was quantized before; its embedding and head are used.

    Raises:
        ConfigError: the weights of a row are not divisible into blocks.
    """
    if weights == "float32":
        model.float()
        return
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    layers = [module for module in model.modules() if isinstance(module, nn.Linear) and module is not head]
    in_blocks = {*(layers if weights == "int4" else ()), *((head,) if head_weights == "int4" else ())}
    _check_blocks(model, in_blocks, block)
    tied = embedding.weight is head.weight
    if weights == "int4" and rows is not None:
        embedding.weight = nn.Parameter(embedding.weight.float(), requires_grad=False)
        quantize_in_order(model, layers, rows, block)
        for layer in layers:
            _replace_scales_of_zeros(layer.weight)
        layers = []
    for layer in layers:
        _quantize(layer, block if weights == "int4" else None, rounding)
    if tables is not None:
        model.set_input_embeddings(tables.get_input_embeddings())
        model.set_output_embeddings(tables.get_output_embeddings())
        return
    _quantize(head, block if head_weights == "int4" else None, rounding)
    if tied and head_weights == "int8":
        values, scales = head.weight.qdata, head.weight.scale
    else:
        values, scales = _rows_in_integers(embedding.weight.detach())
    factor = getattr(embedding, "scalar_embed_scale", 1.0)
    model.set_input_embeddings(Rows(values, scales.reshape(-1, 1).to(torch.float32), factor))


def _quantize(layer: nn.Linear, block: int | None, rounding: str) -> None:
    layer.weight = nn.Parameter(_in_integers(layer.weight.detach(), block, rounding), requires_grad=False)


def _in_integers(weight: Tensor, block: int | None, rounding: str) -> Tensor:
    """Return a weight (rows, width) as torchao's tensor of int4 in blocks, or of int8 without; activations are int8.

    Parts of the rows are quantized one after the other. Otherwise each of about ten operators writes a new array of the
    whole weight, and the operating system needs longer to clear its memory than the operator to compute.
    """
    from torchao.quantization import IntxUnpackedToInt8Tensor

    kind, size = (torch.int4, block) if block else (torch.int8, weight.shape[1])  # type: ignore[attr-defined]
    fitted = {"intx_choose_qparams_algorithm": HQQ} if block and rounding != "nearest" else {}
    whole: list[Tensor] = []
    for place, rows in _parts(weight):
        part = IntxUnpackedToInt8Tensor.from_hp(
            rows, (1, size), kind, activation_quantization="int8_asym_per_token", **fitted
        )
        if block:
            part.scale.copy_(exact_scales(part.scale))
            steps = rows.view(*part.scale.shape, -1) / part.scale[..., None]
            part.qdata.copy_(steps.round_().clamp_(LOW, HIGH).view_as(rows))
        _replace_scales_of_zeros(part)
        numbers = [getattr(part, name) for name in part.tensor_data_names]
        whole = whole or [new.new_empty(len(weight), *new.shape[1:]) for new in numbers]
        for own, new in zip(whole, numbers, strict=True):
            own[place] = new
    result: Tensor = IntxUnpackedToInt8Tensor(*whole, *(getattr(part, name) for name in part.tensor_attribute_names))
    return result


def _replace_scales_of_zeros(weight: Any) -> None:
    """Set the scales of zeros to 1, since libraries reject the smallest float32 as a scale.

    The row of a padding token has zeros only, and pruned weights have such blocks.
    """
    rows, blocks = weight.scale.shape
    weight.scale[(weight.qdata.view(rows, blocks, -1) == 0).all(-1)] = 1


def release_free_memory() -> None:
    """Return the free memory of the heap to the operating system, if the C library can.

    The heap retains memory of temporary arrays that lies between weights: half as much as the weights.
    """
    if trim := getattr(ctypes.CDLL(None) if os.name == "posix" else None, "malloc_trim", None):
        trim(0)


def _rows_in_integers(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return a table as int8, and the scales of its rows."""
    values, scales = weight.new_empty(weight.shape, dtype=torch.int8), torch.empty(len(weight), 1)
    for place, rows in _parts(weight):
        scales[place] = rows.abs().amax(1, keepdim=True).clamp_min(1e-30) / 127
        values[place] = torch.round(rows / scales[place]).to(torch.int8)
    return values, scales


def _parts(weight: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield a weight in parts of some rows, each with its place, widened to float32."""
    step = max(1, PART // weight.shape[1])
    for start in range(0, len(weight), step):
        place = slice(start, start + step)
        yield place, weight[place].float()


def _check_blocks(model: transformers.PreTrainedModel, layers: Collection[nn.Module], block: int) -> None:
    smaller = "a smaller --block, or " if block > BLOCKS[0] else ""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and module in layers and module.in_features % block:
            raise ConfigError(
                f"the {module.in_features} weights of a row are not divisible into blocks of {block}",
                where=f"layer {name}",
                remedy=f"use {smaller}int8 for --weights and --head-weights",
            )
