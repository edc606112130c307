"""Kernels of Prims against torch's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from delegate.kernels.portable import TABLE
from tests.support.kernels import check

prims = torch.ops.prims
FLOATS, MORE = torch.tensor([[-1.5, 0.25, 2.0], [0.5, -0.75, 3.0]]), torch.tensor([[0.5, 2.0, -3.0], [1.5, 0.75, 2.0]])
INTS, FEW = torch.tensor([[-7, 3, 5], [8, -2, 9]]), torch.tensor([[2, -2, 3], [-3, 5, 4]])
UNIT = FLOATS.clamp(-0.9, 0.9)
BOOLS = FLOATS > 0
VALUES: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(["acos", "asin", "atanh", "erf_inv"], (UNIT,)),
    "acosh": (MORE.abs() + 1,),
    **{n: (MORE.abs(),) for n in ["log", "log10", "log1p", "log2", "sqrt", "rsqrt"]},
    **dict.fromkeys(["bitwise_and", "bitwise_or", "bitwise_xor", "gcd"], (INTS, FEW)),
    "bitwise_not": (INTS,), "pow": (MORE.abs(), FLOATS), "where": (BOOLS, FLOATS, MORE), "transpose": (FLOATS, [1, 0]),
    "squeeze": (FLOATS[:, None], [1]), "rev": (FLOATS, [1]), "reshape": (FLOATS, [3, 2]), "cat": ([FLOATS, MORE], 1),
    "sum": (FLOATS, [1]), "prod": (FLOATS, [0, 1]), "amax": (FLOATS, [0]), "amin": (FLOATS, [1]),
    "var": (FLOATS, [1], 1.0), "broadcast_in_dim": (FLOATS, [4, 2, 5, 3], [1, 3]),
    "split_dim": (FLOATS, 1, 3), "collapse_view": (FLOATS, 0, 1),
    "shift_left": (INTS, FEW.abs()), "shift_right_arithmetic": (INTS, FEW.abs()),
    "copy_strided": (FLOATS, [1, 2]), "device_put": (FLOATS, torch.device("cpu")), "fill": (FLOATS, 2.5),
    "conj": (FLOATS + 1j,), "conj_physical": (FLOATS + 1j,),
    "real": (FLOATS + 1j,), "imag": (FLOATS + 1j,),
    "collapse": (FLOATS, 0, 1), "full_like": (FLOATS, 2.5), "convert_element_type": (FLOATS, torch.int32),
}  # fmt: skip
BINARY = "add sub mul div atan2 eq ne lt le gt ge fmax fmin fmod hypot maximum minimum remainder".split()  # noqa: SIM905
KEYWORDS: dict[str, dict[str, Any]] = {
    "full_like": {"dtype": torch.float32, "device": torch.device("cpu"), "requires_grad": False},
}
NAMES = sorted(
    {kernel.op.split(".")[1] for kernel in TABLE if kernel.op.startswith("prims.")} - {"iota", "full", "scalar_tensor"}
)


@pytest.mark.parametrize("name", NAMES)
def test_kernels(name: str) -> None:
    operator = getattr(prims, name).default
    check(operator, *VALUES.get(name, (FLOATS, MORE) if name in BINARY else (FLOATS,)), **KEYWORDS.get(name, {}))


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
def test_integers(name: str) -> None:
    check(getattr(prims, name).default, INTS, FEW)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "gt", "le"])
def test_numbers(name: str) -> None:
    check(getattr(prims, name).default, FLOATS, 0.1)


def test_variance_of_everything() -> None:
    check(prims.var.default, FLOATS, [0, 1], 0.0)


def test_creation() -> None:
    options = {"device": torch.device("cpu"), "requires_grad": False}
    check(prims.iota.default, 5, start=3, step=-2, dtype=torch.int64, **options)
    check(prims.full.default, [2, 3], 1.5, dtype=torch.float32, **options)
    check(prims.scalar_tensor.default, 2.5, dtype=torch.float32, device=torch.device("cpu"))
