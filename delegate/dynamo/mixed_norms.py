"""Normalization of half-precision values with float32 weights, as under autocast.

Torch's shape functions give the statistics the dtype of the values, and its CPU kernels give them the dtype of the
weights. Computed in float32, as inside of these kernels, the dtypes in a graph are those at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from delegate.edge.torch_private import OpOverload

_HALF = (torch.float16, torch.bfloat16)


def _compute_in_float32(op: OpOverload[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return an operator's results in float32, and the first in the values' dtype, if the arguments' dtypes differ."""
    dtypes = {arg.dtype for arg in args if isinstance(arg, torch.Tensor)}
    half = next((dtype for dtype in _HALF if dtype in dtypes), None)
    if half is None or torch.float32 not in dtypes:
        return NotImplemented
    wide = [arg.float() if isinstance(arg, torch.Tensor) else arg for arg in args]
    first, *others = op(*wide, **kwargs)
    return None if first is None else first.to(half), *others


_aten = torch.ops.aten
DECOMPOSITIONS: Mapping[OpOverload[..., Any], Callable[..., Any]] = {
    op: partial(_compute_in_float32, op)
    for op in (
        _aten.native_layer_norm.default,
        _aten.native_layer_norm_backward.default,
        _aten.native_group_norm.default,
        _aten.native_group_norm_backward.default,
        _aten._native_batch_norm_legit.no_stats,
        _aten._native_batch_norm_legit_functional.default,
        _aten._native_batch_norm_legit_no_training.default,
        _aten.native_batch_norm_backward.default,
    )
}
