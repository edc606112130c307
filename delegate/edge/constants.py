"""The bytes of constant tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def raw_bytes(value: torch.Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the row-major bytes of a tensor of any dtype, without a copy if its memory is row-major."""
    if value._is_zerotensor():  # torch's zeros without memory, which gradients may be
        value = torch.zeros_like(value)
    flat = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if not value.numel():
        return np.empty(0, np.uint8)
    if value.numel() == 1:  # it may have been expanded: its stride is still 0
        flat = flat.reshape(()).reshape(1)
    raw: np.ndarray[Any, np.dtype[np.uint8]] = flat.view(torch.uint8).numpy()
    return raw
