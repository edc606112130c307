"""Casts and signs through a backend: every pair of dtypes, there and back, compared with eager bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

import delegate
from delegate.testing import assert_same
from tests.support.functions import NamedFunction
from tests.support.lowering import refused as refused_by

INF, NAN = float("inf"), float("nan")
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
DTYPES = (*FLOATS, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
PAIRS = [(a, b) for a in DTYPES for b in DTYPES if a is not b]
_NUMBERS = (
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.5, 0.999, -0.999, 7.6, 126.5, 127.0, -128.0, 127.4, 254.7, 255.0,
    1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-11 + 2**-20, 1 + 2**-11 + 2**-40, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20,
    -(1 + 2**-8), -(1 + 3 * 2**-11), 1 + 2**-24, 1 + 3 * 2**-24, 0.1, -0.3, 257.0, 259.0, 2049.0, 2051.0, 65504.0,
    65519.0, 65520.0, -65520.0, 1e5, -1e5, 3.39e38, 3.3961775e38, -3.4e38, 1e300, -1e300, 2.0**-24, 2.0**-25,
    1.5 * 2**-24, 6e-5, 1e-8, 1e-40, -1e-40, 2.0**-149, 1e-300, INF, -INF, NAN, 2.0**24 + 1, 2.0**31, 2.0**53, -32768.0,
)  # fmt: skip
_WHOLE = (
    0, 1, -1, 127, 128, -128, -129, 255, 256, 257, 259, 2049, 2051, 32767, 32768, 65504, 65519, 65520, 100_000,
    2**24 + 1, 2**24 + 3, 2**31 - 1, 2**31, -(2**31), 2**40 + 1, 2**53 + 1, 2**63 - 1, -(2**63),
)  # fmt: skip


def values(source: torch.dtype, target: torch.dtype) -> Tensor:
    """Return values of a dtype whose cast torch defines: of floats to integers those that the integers hold."""
    if source is torch.bool:
        return torch.tensor([True, False, True])
    if not source.is_floating_point:
        held = torch.iinfo(source)
        return torch.tensor([v for v in _WHOLE if held.min <= v <= held.max], dtype=source)
    x = torch.tensor(_NUMBERS, dtype=torch.float64).to(source)
    if target.is_floating_point or target is torch.bool:
        return x
    held, whole = torch.iinfo(target), x.double().trunc()
    return x[x.isfinite() & (whole >= held.min) & (whole < float(held.max))]


def lowered(
    function: Callable[[Tensor], Any], x: Tensor, backend: str, options: Mapping[str, Any] | None = None
) -> delegate.DelegatedProgram:
    """Return a function lowered to one backend; "portable" is none."""
    exported = torch.export.export(NamedFunction(function).eval(), (x,))
    if backend == "portable":
        return delegate.to_backend(exported, ())
    return delegate.to_backend(exported, config={"backends": [{"name": backend, "options": dict(options or {})}]})


def ran(program: delegate.DelegatedProgram) -> set[str]:
    """Return the backends that the nodes of a program run on."""
    return {str(node.backend) for node in program.report.nodes}


def taken(backend: str, source: torch.dtype, options: Mapping[str, Any] | None = None) -> set[torch.dtype]:
    """Compare the casts of a dtype with eager, there and there and back; return those that the backend ran itself."""
    found = set()
    for target in (t for s, t in PAIRS if s is source):
        x = values(source, target)
        there, back = (lambda v, to=target: v.to(to)), (lambda v, to=target: v.to(to).to(v.dtype))
        program = lowered(there, x, backend, options)
        assert_same(program(x), there(x), 0, signed_zeros=True)
        if ran(program) == {backend}:
            found.add(target)
        if source.is_floating_point or not target.is_floating_point:  # else it may be beyond the integers
            assert_same(lowered(back, x, backend, options)(x), back(x), 0, signed_zeros=True)
    return found


def names(text: str) -> set[torch.dtype]:
    """Return the dtypes of a table, e.g. "float16 bool"."""
    return {getattr(torch, name) for name in text.split()}


# Functions whose results show the signs of zeros; each is compared alone, and all of them in one graph.
_Z = torch.tensor([0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 0.3, -0.7])
_W = torch.linspace(-1, 1, 24).reshape(3, 8)
SIGNS: Mapping[str, Callable[[Tensor], Any]] = {
    "signbit": lambda x: torch.signbit(-0.0 * x),
    "sum with zero": lambda x: torch.signbit(-0.0 * (torch.tanh(x) * 2 + 0.0)),
    "scaled product": lambda x: torch.signbit(torch.nn.functional.linear(x, _W) * -0.0),
    "copysign": lambda x: torch.copysign(torch.ones_like(x), -0.0 * x),
    "atan2": lambda x: torch.atan2(x * 0.0, torch.full_like(x, -1.0)),
    "reciprocal": lambda x: 1 / (x * -0.0),
    "quotient": lambda x: torch.tensor(2.0) / x,
    "product": lambda x: x * (x * 0.0),
    "constant of zero": lambda x: 1 / (x * torch.tensor(-0.0)),
    "difference": lambda x: 1 / (0.0 - x),
    "negative": lambda x: 1 / -x,
    "chosen": lambda x: torch.where(torch.signbit(x * -0.0), 1.0, 2.0),
}


_SIGNBIT, _MUL = {"aten.signbit.default": 1}, {"aten.mul.Tensor": 1}
_COPYSIGN, _FULL = {"aten.copysign.Tensor": 1}, {"aten.full_like.default": 1}
_BESIDE_ZEROS: dict[str, dict[str, int]] = {  # products with 0, whose sign compilers drop
    **dict.fromkeys(["signbit", "scaled product", "chosen"], _MUL | _SIGNBIT),
    "sum with zero": {"aten.add.Tensor": 1} | _MUL | _SIGNBIT,
    "copysign": _MUL | _COPYSIGN,
    **dict.fromkeys(["reciprocal", "product", "constant of zero"], _MUL),
    "atan2": _MUL | {"aten.atan2.default": 1},
    "difference": {"aten.sub.Tensor": 1},
    "all": {
        "aten.mul.Tensor": 5, "aten.signbit.default": 3, "aten.add.Tensor": 1, "aten.copysign.Tensor": 1,
        "aten.sub.Tensor": 1, "aten.atan2.default": 1,
    },
}  # fmt: skip
# Backend -> case -> the operators that the backend refuses, with the number of their nodes.
REFUSED: dict[str, dict[str, dict[str, int]]] = {
    "xnnpack": {
        **dict.fromkeys(["signbit", "sum with zero", "scaled product"], _SIGNBIT),
        "copysign": _FULL | _COPYSIGN,
        "atan2": _FULL | {"aten.atan2.default": 1},
        "chosen": _SIGNBIT | {"aten.where.self": 1},
        "all": {
            "aten.signbit.default": 3, "aten.full_like.default": 2, "aten.copysign.Tensor": 1,
            "aten.atan2.default": 1, "aten.where.self": 1,
        },
    },
    "onnxruntime": _BESIDE_ZEROS,
    "webgpu": _BESIDE_ZEROS,
    "openvino": _BESIDE_ZEROS,
    "cuda": {  # TVM drops the sign of products with 0
        **dict.fromkeys(["signbit", "scaled product", "chosen"], _MUL | _SIGNBIT),
        "sum with zero": {"aten.add.Tensor": 1} | _MUL | _SIGNBIT,
        "copysign": _FULL | _MUL | _COPYSIGN,
        "atan2": _FULL | _MUL,
        **dict.fromkeys(["reciprocal", "product", "constant of zero"], _MUL),
        "difference": {"aten.sub.Tensor": 1},
        "all": {
            "aten.mul.Tensor": 5, "aten.signbit.default": 3, "aten.add.Tensor": 1, "aten.full_like.default": 2,
            "aten.copysign.Tensor": 1, "aten.sub.Tensor": 1,
        },
    },
}  # fmt: skip


def check_signs(backend: str, name: str) -> None:
    """Compare a function of SIGNS with eager, or all of them in one graph ("all").

    Args:
        backend: that runs every node but those of REFUSED.
        name: one of SIGNS, or "all".
    """
    functions = list(SIGNS.values()) if name == "all" else [SIGNS[name]]
    together = lambda x: tuple(f(x) for f in functions)  # noqa: E731
    program = lowered(together, _Z, backend)
    if backend != "portable":
        assert refused_by(program, backend) == REFUSED.get(backend, {}).get(name, {})
    assert_same(program(_Z), together(_Z), signed_zeros=True)
