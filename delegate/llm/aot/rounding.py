"""Rounding of linear layers' weights to integers that loses less than rounding to the nearest.

`hqq` fits the scale of each block to its weights. `gptq` also adjusts weights that are not rounded yet to the error of
those that are. So the results of the layer on calibration data change least.
Source: https://arxiv.org/abs/2210.17323, algorithm 1. torchao's GPTQ runs on CUDA alone, and its int4 has zero points.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from delegate.backends.quantizable import exact_scales
from delegate.errors import ConfigError
from delegate.llm.aot.hugging_face import transformers

ROUNDINGS = ("nearest", "hqq", "gptq")
HQQ = "hqq_scale_only"  # torchao's name of scales that are fitted to their weights
LENGTH = 128  # tokens in a row of calibration data
LEAST_ROWS = 8
MOST_ROWS = 128
_DAMPING = 0.01  # of the mean square of the inputs, added to each of them
_INT4 = torch.int4  # type: ignore[attr-defined]
LOW, HIGH = -8, 7  # of int4


def calibration_rows(tokens: list[int], vocabulary: int, where: str) -> Tensor:
    """Return calibration data as rows of tokens, (rows, `LENGTH`), spread over all tokens.

    Args:
        tokens: the tokens of a text.
        vocabulary: the model's number of tokens.
        where: the origin of the tokens, for messages.

    Raises:
        ConfigError: there are too few tokens, or some that the model does not have.
    """
    if len(tokens) < LEAST_ROWS * LENGTH:
        what = f"the calibration text has {len(tokens)} tokens"
        raise ConfigError(what, where=where, remedy=f"give a text of {LEAST_ROWS * LENGTH} tokens or more")
    if (last := max(tokens)) >= vocabulary or min(tokens) < 0:
        what = f"the calibration text has token {last if last >= vocabulary else min(tokens)}"
        raise ConfigError(what, where=where, remedy=f"the model has tokens 0 to {vocabulary - 1}")
    rows = torch.tensor(tokens[: len(tokens) // LENGTH * LENGTH]).view(-1, LENGTH)
    return rows[torch.linspace(0, len(rows) - 1, min(len(rows), MOST_ROWS)).long()]


def quantize_in_order(
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
        layer.register_forward_pre_hook(lambda called, args: _quantize(called, args[0], block)) for layer in layers
    ]
    try:
        with torch.no_grad():
            model.base_model(rows, use_cache=False)
    finally:
        model.config._attn_implementation = own
        for hook in hooks:
            hook.remove()


def _quantize(layer: nn.Linear, inputs: Tensor, block: int) -> None:
    """Quantize the weight of a layer for its inputs, (..., inputs of the layer)."""
    from torchao.quantization.quantize_.workflows.intx.intx_unpacked_to_int8_tensor import IntxUnpackedToInt8Tensor

    weight, x = layer.weight.detach().to(torch.float32, copy=True), inputs.reshape(-1, inputs.shape[-1])
    factor = _inverse_factor(x.T @ x, weight)
    values, scales = torch.empty_like(weight), list[Tensor]()
    for start in range(0, weight.shape[1], block):
        end = start + block
        fitted = IntxUnpackedToInt8Tensor.from_hp(
            weight[:, start:end].contiguous(), (1, block), _INT4, intx_choose_qparams_algorithm=HQQ
        )
        scale, errors = exact_scales(fitted.scale[:, 0]), torch.empty_like(weight[:, start:end])
        for column in range(start, end):
            old = weight[:, column]
            values[:, column] = (old / scale).round().clamp(LOW, HIGH) * scale
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
