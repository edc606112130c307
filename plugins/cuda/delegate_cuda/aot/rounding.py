"""Rounding to dtypes, and to TF32, which is float32 with 10 bits of mantissa.

TF32 is a dtype of neither torch nor TVM. Bits of float32 are rounded, half away from zero, like CUDA's
cvt.rna.tf32.f32. Before a cast to bfloat16, bits are rounded, too, half to even. On the host, TVM drops a cast to
bfloat16 if the same function raises its result again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

TF32 = "tf32"
_HALF, _MANTISSA = 0x1000, ~0x1FFF  # half of the last bit of TF32; the mask of its bits
_BFLOAT16 = "bfloat16"


def dtype_of(precision: str) -> torch.dtype:
    """Return the dtype with the digits of a precision; TF32 has as many as float16."""
    return torch.float16 if precision == TF32 else getattr(torch, precision)


def constant(value: torch.Tensor, precision: str) -> torch.Tensor:
    """Return a float32 constant rounded to a precision."""
    if precision != TF32:
        return value.to(dtype_of(precision))
    bits = (value.contiguous().view(torch.int32) + _HALF) & _MANTISSA
    return torch.where(value.isnan(), value, bits.view(torch.float32))


def is_rounded(value: torch.Tensor) -> bool:
    """Return true if a constant is in TF32 already."""
    return value.dtype is torch.float32 and torch.equal(constant(value, TF32), value)


def of(importer: Any, value: Any) -> str:
    """Return the precision of a factor: option `precision` for float32, else its own dtype."""
    dtype = str(value.ty.dtype)
    return str(importer.precision) if dtype == "float32" else dtype


def factor(importer: Any, value: Any) -> Any:
    """Return a factor rounded to its precision."""
    return cast(importer, value, of(importer, value))


def cast(importer: Any, value: Any, precision: str) -> Any:
    """Return a value of Relax rounded or raised to a precision."""
    from tvm import relax

    builder = importer.block_builder
    if precision == TF32:
        return _round_block(importer, value, "to_tf32", lambda bits: (bits + _HALF) & _MANTISSA)
    if str(value.ty.dtype) == precision:
        return value
    if precision == _BFLOAT16:
        wide = cast(importer, value, "float32")
        value = _round_block(importer, wide, "to_bfloat16", lambda bits: (bits + ((bits >> 16) & 1) + 0x7FFF) & ~0xFFFF)
    return builder.emit(relax.op.astype(value, precision))


def _round_block(importer: Any, value: Any, name: str, round_bits: Callable[[Any], Any]) -> Any:
    """Round float32 by its bits, as one block of this name; NaN stays."""
    from tvm import tirx

    def round_tensor(x: Any) -> Any:
        bits = round_bits(tirx.reinterpret("int32", x))
        return tirx.Select(tirx.isnan(x), x, tirx.reinterpret("float32", bits))

    return elementwise(importer, value, round_tensor, name)


def elementwise(importer: Any, x: Any, function: Callable[[Any], Any], name: str) -> Any:
    """Return a function of every element, as one block of this name."""
    from tvm import te

    def block(x: Any) -> Any:
        return te.compute(x.shape, lambda *at: function(x(*at)), name=name)

    return importer.block_builder.emit_te(block, x, primfunc_name_hint=name)
