"""Products with matrices of low rank that each conversation has for itself, as LoRA adapters are: a preserved operator.

The kernel reads the matrices in place, where core ATen would copy the matrices of each token.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_NAME = "delegate::low_rank_product"


@torch.library.custom_op(_NAME, mutates_args=())
def low_rank_product(x: Tensor, first: Tensor, second: Tensor, ranks: Tensor, rows: Tensor) -> Tensor:
    """Multiply each token with the two matrices of its conversation.

    Args:
        x: (tokens, ..., inputs).
        first: (conversations, most, inputs): the matrix from the inputs to the rank of each conversation.
        second: (conversations, most, outputs): the matrix from that rank to the outputs.
        ranks: int64 (conversations), from 0 to `most`: rows after a rank are never read, where rank 0 gives zeros.
        rows: int64 (tokens): the conversation of each token.

    Returns:
        (tokens, ..., outputs).
    """
    unread = (torch.arange(first.shape[1], device=x.device) >= ranks[rows, None])[..., None]
    down, up = (matrix[rows].masked_fill(unread, 0) for matrix in (first, second))
    result = x.reshape(len(x), math.prod(x.shape[1:-1]), x.shape[-1]) @ down.mT @ up
    return result.reshape(*x.shape[:-1], second.shape[-1])


@low_rank_product.register_fake
def _result_type(x: Tensor, first: Tensor, second: Tensor, ranks: Tensor, rows: Tensor) -> Tensor:
    """Return an empty result of the right shape and dtype."""
    return x.new_empty((*x.shape[:-1], second.shape[-1]))
