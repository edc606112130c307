"""Products with the option `precision` of the backend cuda, and torch with the same rounded operands."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from delegate_cuda.aot.operators import TABLE
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.functions import Function
from tests.support.lowering import compiled

from .cases import frozen


def round_to(value: torch.Tensor, precision: str) -> torch.Tensor:
    if precision != "tf32":
        return value.to(getattr(torch, precision)).float()
    mantissa, exponent = torch.frexp(value.double())  # of 11 bits, with the first one, which no number holds
    return torch.ldexp((mantissa.abs() * 2**11 + 0.5).floor() * mantissa.sign(), exponent - 11).float()


class Rounded(TorchDispatchMode):
    """Has torch round the operands of products, and compute in float32 as ever."""

    def __init__(self, precision: str) -> None:
        super().__init__()
        self._precision = precision

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        row = TABLE.get(str(func))
        names = row.lower.products if row is not None else ()
        given = [
            round_to(value, self._precision) if argument.name in names else value
            for argument, value in zip(func._schema.arguments, args, strict=False)
        ]
        return func(*given, **(kwargs or {}))


def lower_function(function: Any, args: tuple[torch.Tensor, ...], precision: str, arch: str = "llvm") -> Any:
    options = {"arch": arch, "precision": precision}
    program = compiled(
        Function(function), args, config={"backends": [{"name": "cuda", "isolate": "none", "options": options}]}
    )
    assert {n.backend for n in program.report.nodes} == {"cuda"}
    return program


torch.manual_seed(0)
PRODUCTS = {
    "linear": (frozen(nn.Linear(384, 512)), (torch.randn(197, 384),)),
    "convolution": (frozen(nn.Conv2d(96, 128, 3, padding=1)), (torch.randn(1, 96, 28, 28),)),
    "attention": (F.scaled_dot_product_attention, tuple(torch.randn(1, 3, 197, 64) for _ in range(3))),
    "too small to gain": (torch.mm, (torch.randn(128, 64), torch.randn(64, 32))),
}
