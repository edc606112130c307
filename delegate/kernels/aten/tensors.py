"""Conversion of the runtime's arguments for torch's kernels: tensors over the same memory, torch's dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from delegate.kernels.half_precision import Array
from delegate.program.dtypes import DType


def to_torch(value: Any) -> Any:
    """Convert an array to a tensor over its memory, a `DType` to torch's, lists recursively, others not at all."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value if value.flags.writeable else _writable(value))
    if isinstance(value, list | tuple):
        return [to_torch(v) for v in value]
    return getattr(torch, value.name) if isinstance(value, DType) else value


def to_torch_with_bfloat16(value: Any) -> Any:
    """Convert like `to_torch`, where arrays of uint16 are bits of bfloat16."""
    if isinstance(value, np.ndarray) and value.dtype == np.uint16:
        return to_torch(value).view(torch.bfloat16)
    if isinstance(value, list | tuple):
        return [to_torch_with_bfloat16(v) for v in value]
    return to_torch(value)


class _WritableInterface:
    """An array interface that declares the memory of a read-only array writable."""

    def __init__(self, array: Array) -> None:
        self.array = array  # keeps the memory alive
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def _writable(array: Array) -> Array:
    """Return a writable array over read-only memory, because torch has no read-only tensors. Kernels do not write."""
    return np.asarray(_WritableInterface(array))
