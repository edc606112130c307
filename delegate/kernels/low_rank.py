"""Products with matrices of low rank, such as LoRA adapters: each token has the matrices of its conversation."""

from __future__ import annotations

from itertools import groupby

import numpy as np

from delegate.errors import KernelError
from delegate.kernels.half_precision import Array
from delegate.kernels.table import TABLE
from delegate.program.dtypes import DType


@TABLE.kernel("delegate.low_rank_product.default", dtypes={DType.float32, DType.float64, DType.int64})
def _low_rank_product(x: Array, first: Array, second: Array, ranks: Array, rows: Array, *, out: Array) -> None:
    """Multiply x (T, ..., E) with first (R, M, E) and second (R, M, V) of rows (T), up to ranks (R).

    The result is (T, ..., V), where adjacent tokens of one row are one product. Nothing is read for rows of rank 0.
    """
    chosen, used = rows.tolist(), ranks.tolist()
    _check(chosen, used, x, first, second)
    end = 0
    for row, run in groupby(chosen):
        start, end = end, end + len([*run])
        rank = used[row]
        if rank == 0:
            out[start:end] = 0
            continue
        inner = np.matmul(x[start:end].reshape(-1, x.shape[-1]), first[row, :rank].T)
        out[start:end] = np.matmul(inner, second[row, :rank]).reshape(out[start:end].shape)


def _check(rows: list[int], ranks: list[int], x: Array, first: Array, second: Array) -> None:
    """Raise KernelError if rows, ranks and sizes do not fit together."""
    conversations, most = first.shape[:2]
    if first.shape[2] != x.shape[-1] or second.shape[:2] != first.shape[:2]:
        problem = f"matrices of shapes {first.shape} and {second.shape} for {x.shape[-1]} inputs"
    elif len(ranks) != conversations or any(not 0 <= rank <= most for rank in ranks):
        problem = f"ranks {ranks} for {conversations} matrices of at most {most}"
    elif len(rows) != len(x) or any(not 0 <= row < conversations for row in rows):
        problem = f"rows {rows} of {len(x)} tokens for {conversations} matrices"
    else:
        return
    raise KernelError(problem, remedy="pass two matrices and a rank of each conversation, and a row of each token")
