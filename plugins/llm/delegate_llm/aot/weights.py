"""Weights in few bits: linear layers and the head in int8 or in blocks of int4, and an int8 embedding.

Two roundings to int4 lose less than rounding to the nearest. `hqq` fits the scale of each block to its weights. `gptq`
also adjusts weights that are not rounded yet to the error of those that are, so that the results of the layer on
calibration data change least. Source: https://arxiv.org/abs/2210.17323, algorithm 1. torchao's GPTQ runs on CUDA alone,
and its int4 has zero points.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from delegate.backend.quantizable import exact_scales
from delegate.errors import ConfigError
from delegate_llm.aot.hugging_face import transformers
from delegate_llm.options import BLOCKS

PART = 1 << 19  # numbers that are quantized at a time: their temporary arrays stay in the allocator and in the cache
_HQQ = "hqq_scale_only"  # torchao's name of scales that are fitted to their weights
_LENGTH = 128  # tokens in a row of calibration data
_LEAST_ROWS = 8
_MOST_ROWS = 128
_DAMPING = 0.01  # of the mean square of the inputs, added to each of them
_INT4 = torch.int4  # type: ignore[attr-defined]
_LOW, _HIGH = -8, 7  # of int4


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
        weights: a type of `Options`; of float32, nothing is quantized, and all weights are widened.
        head_weights: The head's format, "int8" or "int4". A head in int8 shares its integers with the embedding it is
            tied to; the embedding is always int8.
        block: The block size of int4, one of `BLOCKS`.
        rounding: How int4 is rounded, see `Options`.
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
        _quantize_in_order(model, layers, rows, block)
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

    kind, size = (_INT4, block) if block else (torch.int8, weight.shape[1])
    fitted = {"intx_choose_qparams_algorithm": _HQQ} if block and rounding != "nearest" else {}
    whole: list[Tensor] = []
    for place, rows in _parts(weight):
        part = IntxUnpackedToInt8Tensor.from_hp(
            rows, (1, size), kind, activation_quantization="int8_asym_per_token", **fitted
        )
        if block:
            part.scale.copy_(exact_scales(part.scale))
            steps = rows.view(*part.scale.shape, -1) / part.scale[..., None]
            part.qdata.copy_(steps.round_().clamp_(_LOW, _HIGH).view_as(rows))
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


def calibration_rows(tokens: list[int], vocabulary: int, where: str) -> Tensor:
    """Return calibration data as rows of tokens, (rows, `_LENGTH`), spread over all tokens.

    Args:
        tokens: the tokens of a text.
        vocabulary: the model's number of tokens.
        where: the origin of the tokens, for messages.

    Raises:
        ConfigError: there are too few tokens, or some that the model does not have.
    """
    if len(tokens) < _LEAST_ROWS * _LENGTH:
        what = f"the calibration text has {len(tokens)} tokens"
        raise ConfigError(what, where=where, remedy=f"give a text of {_LEAST_ROWS * _LENGTH} tokens or more")
    if (last := max(tokens)) >= vocabulary or min(tokens) < 0:
        what = f"the calibration text has token {last if last >= vocabulary else min(tokens)}"
        raise ConfigError(what, where=where, remedy=f"the model has tokens 0 to {vocabulary - 1}")
    rows = torch.tensor(tokens[: len(tokens) // _LENGTH * _LENGTH]).view(-1, _LENGTH)
    return rows[torch.linspace(0, len(rows) - 1, min(len(rows), _MOST_ROWS)).long()]


def _quantize_in_order(
    model: transformers.PreTrainedModel, layers: Sequence[nn.Linear], rows: Tensor, block: int
) -> None:
    """Quantize the weights of linear layers to int4 by GPTQ, in the order of their calls.

    The model runs once, and when a layer is called, its weight is quantized for its inputs. So each layer is fitted to
    the errors of the layers before it.

    Args:
        model: the model, which this changes.
        layers: the layers to quantize.
        rows: tokens, (rows, length).
        block: the number of weights in a row that share a scale.
    """
    own = model.config._attn_implementation
    model.config._attn_implementation = "eager"  # the model's own needs a cache
    hooks = [
        layer.register_forward_pre_hook(lambda called, args: _quantize_for_inputs(called, args[0], block))
        for layer in layers
    ]
    try:
        with torch.no_grad():
            model.base_model(rows, use_cache=False)
    finally:
        model.config._attn_implementation = own
        for hook in hooks:
            hook.remove()


def _quantize_for_inputs(layer: nn.Linear, inputs: Tensor, block: int) -> None:
    """Quantize the weight of a layer for its inputs, (..., inputs of the layer)."""
    from torchao.quantization.quantize_.workflows.intx.intx_unpacked_to_int8_tensor import IntxUnpackedToInt8Tensor

    weight, x = layer.weight.detach().to(torch.float32, copy=True), inputs.reshape(-1, inputs.shape[-1])
    factor = _inverse_factor(x.T @ x, weight)
    values, scales = torch.empty_like(weight), list[Tensor]()
    for start in range(0, weight.shape[1], block):
        end = start + block
        fitted = IntxUnpackedToInt8Tensor.from_hp(
            weight[:, start:end].contiguous(), (1, block), _INT4, intx_choose_qparams_algorithm=_HQQ
        )
        scale, errors = exact_scales(fitted.scale[:, 0]), torch.empty_like(weight[:, start:end])
        for column in range(start, end):
            old = weight[:, column]
            values[:, column] = (old / scale).round().clamp(_LOW, _HIGH) * scale
            errors[:, column - start] = (old - values[:, column]) / factor[column, column]
            weight[:, column:end] -= errors[:, column - start, None] * factor[column, column:end]
        weight[:, end:] -= errors @ factor[start:end, end:]
        scales.append(scale)
    quantized = IntxUnpackedToInt8Tensor.from_hp(
        values, (1, block), _INT4, activation_quantization="int8_asym_per_token", intx_choose_qparams_algorithm=None,
        custom_scale=torch.stack(scales, 1), custom_zero_point=torch.zeros(len(weight), len(scales), dtype=torch.int8),
    )  # fmt: skip
    layer.weight = nn.Parameter(quantized, requires_grad=False)


def _inverse_factor(squares: Tensor, weight: Tensor) -> Tensor:
    """Return the upper Cholesky factor of the inverted damped squares of inputs.

    The weights of inputs that are always 0 become 0.
    """
    unused = squares.diagonal() == 0
    weight[:, unused] = 0
    squares.diagonal()[unused] = 1
    squares.diagonal().add_(_DAMPING * squares.diagonal().mean())
    factor: Tensor = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(squares)), upper=True)
    return factor
