"""What torch's kernels take in place of what the runtime holds: tensors over the same memory, torch's dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from delegate.kernels.halves import Array
from delegate.program.dtypes import DType


def to_torch(value: Any) -> Any:
    """An array as a tensor over its memory, a `DType` as torch's, lists part by part; anything else as it is."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value if value.flags.writeable else _writable(value))
    if isinstance(value, list | tuple):
        return [to_torch(v) for v in value]
    return getattr(torch, value.name) if isinstance(value, DType) else value


def to_torch_with_bfloat16(value: Any) -> Any:
    """The same where arrays of uint16 are bits of bfloat16."""
    if isinstance(value, np.ndarray) and value.dtype == np.uint16:
        return to_torch(value).view(torch.bfloat16)
    if isinstance(value, list | tuple):
        return [to_torch_with_bfloat16(v) for v in value]
    return to_torch(value)


class _Claim:
    """Memory of a read-only array, said to be writable."""

    def __init__(self, array: Array) -> None:
        self.array = array  # kept alive as long as any array over this memory
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def _writable(array: Array) -> Array:
    """Torch has no read-only tensors and warns of such arrays; its kernels do not write to their arguments either."""
    return np.asarray(_Claim(array))
