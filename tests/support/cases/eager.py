"""Functions that every backend computes as eager does, in tables of functions of the same arguments.

`BOUNDS` are bounds after bounds, whose ranges overlap or do not. `SLICES` have bounds that are numbers of the data, in
every form: their sizes are known only during a call. `TIES` return the position of one of equal elements, for which
torch defines which one. `TRUTHS` are read as booleans: true unless they equal 0, whatever their low bits and however
small they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from tests.support.lowering import compare

F = nn.functional


@dataclass(frozen=True)
class Table:
    """Functions of the same arguments.

    Args:
        functions: by name.
        calls: the arguments of each call, the first of which are exported.
        sizes: the dynamic sizes of the arguments, if they are dynamic.
        others: more calls for dynamic sizes.
        tolerance: relative to the largest value of each result.
    """

    functions: Mapping[str, Callable[..., Any]]
    calls: Sequence[tuple[Tensor, ...]]
    sizes: tuple[Any, ...] = ()
    others: Sequence[tuple[Tensor, ...]] = ()
    tolerance: float = 0.0

    def compare(self, name: str, backends: Sequence[str], *, dynamic: bool = False) -> frozenset[str]:
        """Compare a function with eager; return the operators that ran on backends."""
        calls, sizes = ([*self.calls, *self.others], self.sizes) if dynamic else (self.calls, None)
        return compare(self.functions[name], calls, backends, sizes, self.tolerance)


_BOUNDED = torch.tensor([-4.0, -1.0, 0.2, 0.7, 1.5, 4.0])
BOUNDS = Table(
    {
        "overlapping": lambda x: x.clamp(0, 1).clamp(0.5, 2),
        "above": lambda x: x.clamp(0, 1).clamp(2, 3),
        "below": lambda x: x.clamp(2, 3).clamp(0, 1),
        "a minimum above": lambda x: x.clamp(0, 1).clamp(min=2),
        "a maximum below a minimum": lambda x: x.clamp(min=1).clamp(max=0.5),
        "a minimum above a maximum": lambda x: x.clamp(max=0.5).clamp(min=1),
        "relu of negatives": lambda x: x.clamp(-3, -1).relu(),
        "negatives of relu": lambda x: x.relu().clamp(-3, -1),
        "relu6 below": lambda x: nn.functional.relu6(x).clamp(max=-1),
        "below relu6": lambda x: nn.functional.relu6(x.clamp(max=-1)),
        "hardtanh above": lambda x: nn.functional.hardtanh(x, 2, 3).clamp(4, 5),
        "maximum and minimum": lambda x: torch.minimum(torch.maximum(x, torch.tensor(1.0)), torch.tensor(0.5)),
        "three": lambda x: x.clamp(-2, -1).clamp(0, 1).clamp(2, 3),
        "a minimum above its maximum": lambda x: x.clamp(3, 1),
    },
    [(_BOUNDED,)],
)


def _assign(x: Tensor, n: Tensor) -> Tensor:
    x = x.clone()
    x[: n.item()] += 5
    return x


_SLICED = torch.arange(24.0).reshape(6, 4)
_ENDS = torch.tensor([3, 0, 6, 7, 2, -1, -2, -7])  # inside, at and beyond the ends, and from the end
SLICES = Table(
    {
        "end": lambda x, n: x[: n.item()],
        "start": lambda x, n: x[n.item() :],
        "start and end": lambda x, n: x[n.item() : n.item() + 2],
        "from the end": lambda x, n: x[-n.item() :],
        "step": lambda x, n: x[: n.item() : 2],
        "last dimension": lambda x, n: x[..., n.item() :],
        "twice": lambda x, n: x[: n.item()][:, : n.item()],
        "a size": lambda x, n: x[x.shape[0] - n.item() :],
        "written": _assign,
        "joined": lambda x, n: torch.cat([x[n.item() :], x[: n.item()]]),
        "transposed": lambda x, n: x.T[:, : n.item()],
        "integers": lambda x, n: x.long()[: n.item()],
        "bfloat16": lambda x, n: x.bfloat16()[: n.item()],
        "booleans": lambda x, n: (x > 3)[: n.item()],
        "computed after": lambda x, n: nn.functional.layer_norm(x[: n.item()], (4,)) @ x.T,
        "reduced": lambda x, n: x[: n.item()].sum(0) * 2,
        "a view after": lambda x, n: x[: n.item()].reshape(-1).unsqueeze(0),
        "a computed number": lambda x, n: x[: (x[:, 0] < n).sum().item()],
    },
    [(_SLICED, end) for end in _ENDS],
    ({0: Dim("rows", min=1, max=64)}, None),
    [(torch.cat([_SLICED, _SLICED]) + 0.5, end) for end in _ENDS],
    1e-5,
)

_ROWS = torch.arange(4 * 67).reshape(4, 67).mul(7).remainder(5).float() - 1
TIES = Table(
    {
        "max": lambda x: x.max(1),
        "min": lambda x: x.min(1),
        "max of the first dimension": lambda x: x.max(0, keepdim=True),
        "max of half precision": lambda x: x.half().max(1),
        "max after an operator": lambda x: x.relu().max(-1).indices,
        "argmax": lambda x: x.argmax(1),
        "argmin": lambda x: x.argmin(0, keepdim=True),
        "argmax of all": lambda x: x.argmax(),
        "stable sort": lambda x: torch.sort(x, dim=1, stable=True),
        "stable descending sort": lambda x: torch.sort(x, dim=1, stable=True, descending=True),
        "stable argsort": lambda x: torch.argsort(x, dim=0, stable=True),
        "cummax": lambda x: x.cummax(1),
        "cummin": lambda x: x.cummin(1),
        "pooling": lambda x: F.max_pool2d(x[:, :64].reshape(1, -1, 8, 8), 3, 2, 1, return_indices=True),
        "adaptive pooling": lambda x: F.adaptive_max_pool2d(x[:, :64].reshape(1, -1, 8, 8), 3, return_indices=True),
        "unique": lambda x: torch.unique(x, return_inverse=True, return_counts=True),
        "searchsorted": lambda x: torch.searchsorted(x.sort(1).values, x[:, :4].contiguous()),
        "searchsorted from the right": lambda x: torch.searchsorted(x.sort(1).values, x[:, :4].clone(), right=True),
        "bucketize": lambda x: torch.bucketize(x, torch.tensor([0.0, 1.0, 1.0, 2.0])),
    },
    [(_ROWS,)],
    ({0: Dim("first", min=2, max=64)},),
    [(torch.cat([_ROWS, _ROWS.flip(-1)]),)],
)

# Integers whose low bits are 0, and floats that an integer, a half or a flush of subnormal numbers turns into 0.
TRUTHS: Mapping[torch.dtype, tuple[float, ...]] = {
    torch.bool: (0, 1),
    torch.uint8: (0, 128, 2),
    torch.int8: (0, -128, 2),
    torch.int16: (0, 256, -256, 1 << 14),
    torch.int32: (0, 256, 1 << 16, 1 << 30, -(1 << 31)),
    torch.int64: (0, 256, 1 << 31, 1 << 32, 1 << 40, -(1 << 63)),
    torch.float16: (0.0, -0.0, 0.25, float("nan"), float("-inf"), 6e-8),
    torch.bfloat16: (0.0, -0.0, 0.25, float("nan"), float("inf"), 1e-30),
    torch.float32: (0.0, -0.0, 0.25, -0.5, float("nan"), float("inf"), 1e-30, 1e-40),
    torch.float64: (0.0, -0.0, 0.25, float("nan"), float("-inf"), 1e-300),
}

_FUNCTIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: x.any(),
    lambda x: x.all(),
    lambda x: x.any(1),
    lambda x: x.all(1),
    lambda x: x.any(0, keepdim=True),
    lambda x: x.all(0, keepdim=True),
    lambda x: torch.any(x, (0, 1)),
    lambda x: torch.all(x, (0, 1)),
    lambda x: x.bool(),
    lambda x: torch.zeros_like(x, dtype=torch.bool).copy_(x),
    lambda x: x.logical_not(),
    lambda x: x.logical_and(x.flip(0)),
    lambda x: x.logical_or(x.flip(0)),
    lambda x: x.logical_xor(x.flip(0)),
    *(
        partial(lambda combine, other, x: combine(x, torch.tensor(other)), combine, other)
        for combine in (torch.logical_and, torch.logical_or, torch.logical_xor)
        for other in (256, 0.25, 1e-40)  # a tensor without dimensions is cast to the dtype of x, in which it may be 0
    ),
    lambda x: x.logical_and(torch.tensor([256, 1])),
    lambda x: x.logical_or(torch.tensor([1e-300, 0.0], dtype=torch.float64)),
    lambda x: x != 0,
    lambda x: x == 0,
    lambda x: torch.where(x.bool(), 1.0, 2.0),
    lambda x: torch.count_nonzero(x, 1),
)


def compare_truths(dtype: torch.dtype, config: Any) -> frozenset[str]:
    """Compare the truth of numbers with eager: pairs of each value with 0 and with itself, each pair alone and all.

    Returns:
        The operators that ran on a backend, such as "aten.any.dim".
    """
    values = torch.tensor(TRUTHS[dtype], dtype=dtype)
    pairs = torch.cat([torch.stack([values, torch.zeros_like(values)], 1), torch.stack([values, values], 1)])
    calls = [(pairs,), *((pair,) for pair in pairs.split(1))]
    return compare(lambda x: [f(x) for f in _FUNCTIONS], calls, config, ({0: Dim("rows", min=1, max=64)},))
