"""What makes the building blocks of random models: functions that draw attributes, and modules."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Make = Callable[..., Callable[..., Any]]  # (random, *example values) -> a function of such values


class State(nn.Module):
    """A buffer that every call writes to, and reads."""

    def __init__(self, shape: tuple[int, ...], late: bool) -> None:
        super().__init__()
        self.register_buffer("state", torch.full(shape, 0.5))
        self.late = late

    def forward(self, x: Tensor) -> Tensor:
        before = self.state * 1
        self.state.mul_(0.5).add_(x.mean(0).detach())
        return x + (before if self.late else self.state)


class Table(nn.Module):
    """Embeddings of whatever integers, singly or as bags."""

    def __init__(self, r: Random) -> None:
        super().__init__()
        width, self.bags = r.randint(2, 5), r.random() < 0.3
        mode = r.choice(["sum", "mean"])
        self.table = (
            nn.EmbeddingBag(5, width, mode=mode)
            if self.bags
            else nn.Embedding(5, width, padding_idx=r.choice([None, 1]))
        )

    def forward(self, index: Tensor) -> Tensor:
        result: Tensor = self.table(index.long() % 5)
        return result


def dim_of(r: Random, x: Tensor) -> int:
    return r.randrange(-x.dim(), x.dim())


def dims_of(r: Random, x: Tensor) -> list[int]:
    return r.sample(range(x.dim()), r.randint(1, x.dim()))


def conv(dims: int, transposed: bool) -> Make:
    kinds = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
    across = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}

    def make(r: Random, x: Tensor) -> nn.Module:
        channels = x.shape[-dims - 1]
        groups = r.choice([1, 1, channels])
        out, kernel = groups * r.randint(1, 3), [r.randint(1, 3) for _ in range(dims)]
        common: dict[str, Any] = {"stride": [r.randint(1, 2) for _ in range(dims)], "groups": groups}
        common |= {"dilation": r.choice([1, 1, 2]), "bias": r.random() < 0.7}
        if transposed:
            return across[dims](
                channels, out, kernel, padding=r.randint(0, 1), output_padding=r.choice([0, 0, 1]), **common
            )
        if r.random() < 0.15:
            common["stride"], padding = 1, "same"
        else:
            padding = [r.randint(0, 2) for _ in range(dims)]
        mode = r.choice(["zeros", "zeros", "zeros", "reflect", "replicate", "circular"])
        return kinds[dims](channels, out, kernel, padding=padding, padding_mode=mode, **common)

    return make


def pool(dims: int, average: bool) -> Make:
    functions = [F.max_pool1d, F.max_pool2d, F.max_pool3d, F.avg_pool1d, F.avg_pool2d, F.avg_pool3d]

    def make(r: Random, x: Tensor) -> Callable[..., Any]:
        kernel = [r.randint(1, 3) for _ in range(dims)]
        options = {"stride": [r.randint(1, 3) for _ in range(dims)], "ceil_mode": r.random() < 0.5}
        options["padding"] = [r.randint(0, k // 2) for k in kernel]
        if average:
            options["count_include_pad"] = r.random() < 0.5
            if dims > 1 and r.random() < 0.3:
                options["divisor_override"] = r.randint(2, 5)
        elif r.random() < 0.3:
            options["dilation"] = 2
        return partial(functions[dims - 1 + 3 * average], kernel_size=kernel, **options)

    return make


def attended(r: Random, x: Tensor) -> Callable[..., Any]:
    causal, heads = r.random() < 0.3, r.choice([1, 2])

    def run(x: Tensor) -> Tensor:
        q = x.unflatten(-1, (heads, -1)).transpose(-3, -2)
        return F.scaled_dot_product_attention(q, q * 0.5, q, is_causal=causal).transpose(-3, -2).flatten(-2)

    return run


def masked_attention(r: Random, x: Tensor, mask: Tensor) -> Callable[..., Any]:
    added = r.random() < 0.5

    def run(x: Tensor, mask: Tensor) -> Tensor:
        keep = mask[..., None, :] | torch.eye(x.shape[-2], dtype=torch.bool)
        bias = torch.zeros(keep.shape).masked_fill(~keep, -1e4) if added else keep
        return F.scaled_dot_product_attention(x, x, x, attn_mask=bias)

    return run


class Heads(nn.Module):
    def __init__(self, width: int, padded: bool) -> None:
        super().__init__()
        self.attention, self.padded = nn.MultiheadAttention(width, 1, batch_first=True), padded

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        free = torch.cat([torch.zeros_like(mask[:, :1]), mask[:, 1:]], 1) if self.padded else None
        result: Tensor = self.attention(x, x, x, key_padding_mask=free, need_weights=False)[0]
        return result


class Recurrent(nn.Module):
    def __init__(self, r: Random, width: int) -> None:
        super().__init__()
        kind = r.choice([nn.LSTM, nn.GRU, nn.RNN])
        self.cell = kind(width, 4, batch_first=r.random() < 0.5, bidirectional=r.random() < 0.3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.cell(x)[0]
        return result


def batch_norm(r: Random, x: Tensor) -> nn.Module:
    kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[x.dim()]
    made = kind(x.shape[1], eps=0.1, affine=r.random() < 0.7)
    made.running_mean.uniform_(-1, 1)
    made.running_var.uniform_(0.5, 2)
    return made


def sliced(r: Random, x: Tensor) -> tuple[Any, ...]:
    """An index of slices with steps, of places and of new dimensions."""
    index: list[Any] = []
    for size in x.shape:
        pick = r.random()
        if pick < 0.4:
            index.append(slice(None))
        elif pick < 0.85:
            start = r.choice([None, 0, 1, -2, -size])
            index.append(slice(start, r.choice([None, None, -1, size, size + 5, 2]), r.choice([None, 1, 2, 3])))
        else:
            index.append(r.randrange(-size, size))
        if r.random() < 0.05:
            index.append(None)
    if r.random() < 0.3:
        return (..., *index[1:])
    return tuple(index)


def part(r: Random, x: Tensor) -> Callable[..., Any]:
    index = sliced(r, x)
    return lambda x: x[index]


def reshaped(r: Random, x: Tensor) -> Callable[..., Any]:
    start = r.randrange(x.dim())
    factor = r.choice([1, 2, 3])
    return r.choice(
        [
            lambda x: x.reshape(-1),
            lambda x: x.flatten(start),
            lambda x: x.reshape(x.shape[0], -1),
            lambda x: x.reshape(-1, x.shape[-1]),
            lambda x: x.unflatten(start, (factor, -1)),
            lambda x: x.unflatten(start, (-1, factor)),
            lambda x: x.contiguous().view(*x.shape[1:], x.shape[0]),
            lambda x: x.reshape(*x.shape[:start], 1, *x.shape[start:]),
        ]
    )


def padded(r: Random, x: Tensor) -> Callable[..., Any]:
    mode = r.choice(["constant", "constant", "reflect", "replicate", "circular"])
    count = r.randint(1, x.dim()) if mode == "constant" else x.dim() - 2
    low = -1 if mode == "constant" else 0
    sizes = [r.randint(low, 2) for _ in range(2 * count)]
    return partial(F.pad, pad=sizes, mode=mode, value=r.choice([0, 1]) if mode == "constant" else None)


def resized(r: Random, x: Tensor) -> Callable[..., Any]:
    mode = r.choice(["nearest", "nearest-exact", "bilinear", "bicubic", "area"])
    corners = r.random() < 0.5 if mode in ("bilinear", "bicubic") else None
    size: dict[str, Any] = r.choice([{"size": (5, 6)}, {"scale_factor": 2.0}, {"scale_factor": (1.5, 2.0)}])
    return partial(F.interpolate, mode=mode, align_corners=corners, **size)


def one_of(*functions: Callable[..., Any]) -> Make:
    """One of the functions, as it is."""
    return lambda r, *_: r.choice(functions)


def reduced(*functions: Callable[..., Any]) -> Make:
    """One of the functions of (x, dimensions, keepdim)."""

    def make(r: Random, x: Tensor) -> Callable[..., Any]:
        function, dims, keep = r.choice(functions), dims_of(r, x), r.random() < 0.5
        return lambda x: function(x, dims, keep)

    return make


def along(*functions: Callable[..., Any]) -> Make:
    """One of the functions of (values..., dimension)."""

    def make(r: Random, x: Tensor, *_: Tensor) -> Callable[..., Any]:
        function, dim = r.choice(functions), dim_of(r, x)
        return lambda *xs: function(*xs, dim)

    return make


def indexed(*functions: Callable[..., Any]) -> Make:
    """One of the functions of (x, dimension, index of one dimension)."""

    def make(r: Random, x: Tensor, index: Tensor) -> Callable[..., Any]:
        function, dim = r.choice(functions), dim_of(r, x)
        return lambda x, index: function(x, dim, index.reshape(-1).long() % x.shape[dim])

    return make


def written(r: Random, x: Tensor) -> Callable[..., Any]:
    index, value = sliced(r, x), r.choice([0, 1, 3])

    def run(x: Tensor) -> Tensor:
        x[index] = value
        return x

    return run
