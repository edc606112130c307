"""Numbers computed from dynamic sizes as arguments: what they are in the export is not what they are in a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import delegate
from tests.support.lowering import answers, assert_same

Call = Callable[[torch.Tensor, Any], torch.Tensor]

EXPORTED, OTHERS = 5, (2, 3, 7)  # the sizes of dimension 0

# What takes any number; x is positive, of shape [n, 6].
OF_NUMBERS: Mapping[str, Call] = {
    "add": lambda x, k: x + k,
    "add, alpha": lambda x, k: torch.add(x, x.flip(1), alpha=k),
    "sub": lambda x, k: x - k,
    "sub, alpha": lambda x, k: torch.sub(x, x.flip(1), alpha=k),
    "rsub": lambda x, k: k - x,
    "rsub, alpha": lambda x, k: torch.rsub(x, x.flip(1), alpha=k),
    "mul": lambda x, k: x * k,
    "div": lambda x, k: x / k,
    "reciprocal": lambda x, k: k / x,
    "floor division": lambda x, k: (10 * x) // k,
    "truncated division": lambda x, k: torch.div(10 * x, k, rounding_mode="trunc"),
    "remainder": lambda x, k: (10 * x) % k,
    "remainder of a number": lambda x, k: torch.remainder(k, x),
    "fmod": lambda x, k: torch.fmod(10 * x, k),
    "power": lambda x, k: x**k,
    "power of a number": lambda x, k: k**x,
    "xlogy": lambda x, k: torch.xlogy(x, k * k + 1),
    "equal": lambda x, k: (x == k).float(),
    "not equal": lambda x, k: (x != k).float(),
    "less": lambda x, k: (3 * x < k).float(),
    "at most": lambda x, k: (3 * x <= k).float(),
    "greater": lambda x, k: (3 * x > k).float(),
    "at least": lambda x, k: (3 * x >= k).float(),
    "clamp, min": lambda x, k: (4 * x).clamp(min=k),
    "clamp, max": lambda x, k: (4 * x).clamp(max=k),
    "clamp, both": lambda x, k: (8 * x - 4).clamp(-k, k),
    "hardtanh": lambda x, k: F.hardtanh(4 * x, 0.0, k),
    "threshold": lambda x, k: F.threshold(3 * x, 1.0, k),
    "leaky_relu": lambda x, k: F.leaky_relu(x - 1, k),
    "elu": lambda x, k: F.elu(x - 1, k),
    "celu": lambda x, k: F.celu(x - 1, k),
    "softplus, beta": lambda x, k: F.softplus(x - 1, k),
    "softplus, threshold": lambda x, k: F.softplus(x, 1.0, k),
    "hardshrink": lambda x, k: F.hardshrink(4 * x, k),
    "softshrink": lambda x, k: F.softshrink(4 * x, k),
    "addcmul": lambda x, k: torch.addcmul(x, x, x.flip(1), value=k),
    "addcdiv": lambda x, k: torch.addcdiv(x, x, x.flip(1) + 1, value=k),
    "lerp": lambda x, k: torch.lerp(x, x.flip(1), k),
    "addmm, alpha": lambda x, k: torch.addmm(x, x, WEIGHT, alpha=k),
    "addmm, beta": lambda x, k: torch.addmm(x, x, WEIGHT, beta=k),
    "addmv": lambda x, k: torch.addmv(x[:, 0], x, WEIGHT[0], alpha=k, beta=k),
    "baddbmm": lambda x, k: torch.baddbmm(x[None], x[None], WEIGHT[None], alpha=k, beta=k),
    "addbmm": lambda x, k: torch.addbmm(x, x[None], WEIGHT[None], alpha=k, beta=k),
    "full": lambda x, k: x + torch.full((6,), k, dtype=torch.float32),
    "full_like": lambda x, k: x + torch.full_like(x, k),
    "new_full": lambda x, k: x + x.new_full((x.shape[0], 1), k),
    "fill": lambda x, k: x + torch.fill(x, k),
    "scalar_tensor": lambda x, k: x + torch.scalar_tensor(k, dtype=torch.float32),
    "masked_fill": lambda x, k: x.masked_fill(x > 1, k),
    "where": lambda x, k: torch.where(x > 1, x, k),
    "scatter": lambda x, k: x.scatter(1, (x > 1).long(), k),
    "index_fill": lambda x, k: x.index_fill(1, torch.tensor([0, 3]), k),
    "normalize": lambda x, k: F.normalize(x, eps=k),
    "norm": lambda x, k: torch.linalg.vector_norm(x, k, dim=1),
    "dist": lambda x, k: torch.dist(x, x.flip(1), k)[None],
    "interpolate, multiplied": lambda x, k: F.interpolate(x[None, :, :4], size=8, mode="linear") * k,
    "arange": lambda x, k: x + torch.arange(6) * k,
    "linspace": lambda x, k: x + torch.linspace(0, k, 6),
}

# What takes integers alone.
OF_INTEGERS: Mapping[str, Call] = {
    "select": lambda x, n: torch.cat([x, x])[n - 1],
    "slice, start": lambda x, n: torch.cat([x, x])[n - 1 :],
    "slice, end": lambda x, n: torch.cat([x, x])[:n],
    "slice of columns": lambda x, n: x.repeat(1, 4)[:, :n],
    "narrow": lambda x, n: x.repeat(1, 4).narrow(1, 1, n),
    "roll": lambda x, n: x.roll(n, 1),
    "topk": lambda x, n: x.repeat(1, 4).topk(n)[0],
    "kthvalue": lambda x, n: x.repeat(1, 4).kthvalue(n)[0],
    "tril": lambda x, n: x.tril(n - 4),
    "triu": lambda x, n: x.triu(n - 4),
    "repeat": lambda x, n: x.repeat(1, n),
    "expand": lambda x, n: x[:, :1].expand(-1, n) + 1,
    "reshape": lambda x, n: x.repeat(1, n).reshape(-1, n) + 1,
    "pad": lambda x, n: F.pad(x, (n, 1)),
    "zeros": lambda x, n: x[:1].sum() + torch.zeros(n, 2),
    "arange": lambda x, n: x[:, :1] + torch.arange(n),
    "one_hot": lambda x, n: F.one_hot((x > 1).long(), 20)[..., :n].float(),
    "eye": lambda x, n: x[:1, :1] * torch.eye(n),
    "interpolate": lambda x, n: F.interpolate(x[None], size=n, mode="linear"),
    "pooling, multiplied": lambda x, n: F.avg_pool1d(x[None], 2) * n,
    "integers": lambda x, n: ((x * 8).long() + n).float(),
    "integers, multiplied": lambda x, n: ((x * 8).long() * n).float(),
    "integers, remainder": lambda x, n: ((x * 8).long() % n).float(),
    "integers, divided": lambda x, n: ((x * 8).long() // n).float(),
    "integers, clamped": lambda x, n: (x * 8).long().clamp(0, n).float(),
    "integers, shifted": lambda x, n: ((x * 8).long() << (n % 4)).float(),
    "mean": lambda x, n: x.sum(0) / n,
}

WEIGHT = torch.rand(6, 6, generator=torch.Generator().manual_seed(0)) - 0.5

# Torch compares these with others in an export, which fixes the size where the answer depends on it.
COMPARED = {"hardtanh", "celu", "softshrink", "addmm, beta", "addmv", "norm", "dist"}
LESS: Mapping[str, Call] = {name: call for name, call in OF_NUMBERS.items() if name not in COMPARED}

# How a number becomes of the size, and what takes it. "none" is 0 in the export, where operators have shorter ways.
CASES: Mapping[str, tuple[Callable[[int], Any], Mapping[str, Call]]] = {
    "part": (lambda n: n * 0.2, OF_NUMBERS),
    "root": (lambda n: n**-0.5, LESS),
    "twice": (lambda n: 2 * n - 1, {**OF_NUMBERS, **OF_INTEGERS}),
    "none": (lambda n: n - EXPORTED, LESS),
}


class Calls(nn.Module):
    """Every call with the number that its kind makes of the size."""

    def __init__(self, calls: Mapping[str, Call], kind: Callable[[int], Any]) -> None:
        super().__init__()
        self.calls, self.kind = tuple(calls.values()), kind

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(call(x, self.kind(x.shape[0])) for call in self.calls)


def compare(case: str, backend: str, expected: Mapping[str, int], tolerance: float = 2e-6) -> None:
    """Assert that each call is right at several sizes, up to a part of the largest number.

    Args:
        case: one of `CASES`.
        backend: that runs what it can; empty for kernels alone.
        expected: how many nodes the backend runs ("runs"), and how many it refuses for each reason.
        tolerance: see `assert_same`.
    """
    config = {"backends": [backend] if backend else [], "partitioning": {"min_partition_size": 0}}
    kind, calls = CASES[case]
    module, sizes = Calls(calls, kind).eval(), ({0: torch.export.Dim("n", min=2, max=8)},)
    with torch.no_grad():
        exported = torch.export.export(module, (2 * torch.rand(EXPORTED, 6),), dynamic_shapes=sizes)
        program = delegate.to_backend(exported, config=config)
        if backend:
            assert answers(program, backend) == dict(expected)
        for size in (EXPORTED, *OTHERS):
            x = 2 * torch.rand(size, 6)
            assert_same(dict(zip(calls, program(x), strict=True)), dict(zip(calls, module(x), strict=True)), tolerance)
