"""What the operands of products are rounded to: dtypes, and TF32, which is float32 with 10 bits of mantissa.

TF32 is no dtype, neither torch's nor TVM's: bits of float32 are rounded, half away from zero, as CUDA's
cvt.rna.tf32.f32 does it.
"""

from __future__ import annotations

from typing import Any

import torch

TF32 = "tf32"
_HALF, _KEPT = 0x1000, ~0x1FFF  # of the last bit that stays; the bits that stay


def constant(value: torch.Tensor, precision: str) -> torch.Tensor:
    """A constant in float32 rounded."""
    if precision != TF32:
        return value.to(getattr(torch, precision))
    bits = (value.contiguous().view(torch.int32) + _HALF) & _KEPT
    return torch.where(value.isnan(), value, bits.view(torch.float32))


def is_rounded(value: torch.Tensor) -> bool:
    """Whether a constant is in TF32 already."""
    return value.dtype is torch.float32 and torch.equal(constant(value, TF32), value)


def of(importer: Any, value: Any) -> str:
    """What a factor is rounded to: where it is in float32, what option `precision` says."""
    given = str(value.ty.dtype)
    return str(importer.precision) if given == "float32" else given


def factor(importer: Any, value: Any) -> Any:
    """A factor rounded."""
    return cast(importer, value, of(importer, value))


def cast(importer: Any, value: Any, precision: str) -> Any:
    """A value of Relax rounded, or raised."""
    from tvm import relax

    builder = importer.block_builder
    if precision == TF32:
        return builder.emit_te(_to_tf32, value, primfunc_name_hint="to_tf32")
    return value if str(value.ty.dtype) == precision else builder.emit(relax.op.astype(value, precision))


def _to_tf32(value: Any) -> Any:
    from tvm import te

    return te.compute(value.shape, lambda *at: _bits(value(*at)), name="to_tf32")


def _bits(x: Any) -> Any:
    from tvm import tirx

    bits = (tirx.reinterpret("int32", x) + _HALF) & _KEPT
    return tirx.Select(tirx.isnan(x), x, tirx.reinterpret("float32", bits))
