"""The table of the building blocks of random models.

A row makes, for example values, a function or a module of them. What it draws may not suit the values: torch refuses
then, and the block is left out. All is scaled so that depth neither explodes nor amplifies an error: norms have a
large eps, divisors stand off zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from tests.wild.making import (
    Heads,
    Make,
    Recurrent,
    State,
    Table,
    along,
    attended,
    batch_norm,
    conv,
    indexed,
    masked_attention,
    one_of,
    padded,
    part,
    pool,
    reduced,
    reshaped,
    resized,
    written,
)  # fmt: skip

FLOATS = frozenset({torch.float32, torch.float64})
HALVES = frozenset({torch.float16, torch.bfloat16})
INTS = frozenset({torch.int64, torch.int32, torch.uint8})
BOOL = frozenset({torch.bool})
NUMBERS = FLOATS | HALVES | INTS
ANY = NUMBERS | BOOL


@dataclass(frozen=True)
class Row:
    """A block.

    Args:
        make: see `Make`.
        takes: element types of each operand.
        exact: results are exact where the operands are: multiples of a power of two that no backend rounds.
        jumps: a small error of an operand may become a large one of the result: operands have to be exact.
    """

    make: Make
    takes: tuple[frozenset[torch.dtype], ...] = (FLOATS,)
    exact: bool = False
    jumps: bool = False


def _row(make: Make, *takes: frozenset[torch.dtype], exact: bool = False, jumps: bool = False) -> Row:
    return Row(make, takes or (FLOATS,), exact, jumps)


_exact, _jumps = partial(_row, exact=True), partial(_row, exact=True, jumps=True)

ROWS: dict[str, Row] = {
    **{f"conv{d}d": _row(conv(d, False)) for d in (1, 2, 3)},
    **{f"conv{d}d, transposed": _row(conv(d, True)) for d in (1, 2, 3)},
    **{f"max pool {d}d": _exact(pool(d, False)) for d in (1, 2, 3)},
    **{f"average pool {d}d": _row(pool(d, True)) for d in (1, 2, 3)},
    "adaptive pool": _row(one_of(lambda x: F.adaptive_avg_pool2d(x, (2, 3)), lambda x: F.adaptive_max_pool2d(x, (2, 1)),
        lambda x: F.adaptive_avg_pool1d(x, 2), lambda x: F.adaptive_avg_pool2d(x, (None, 1)))),
    "batch norm": _row(batch_norm),
    "layer norm": _row(lambda r, x: nn.LayerNorm(x.shape[-r.randint(1, 2):], eps=0.1, bias=r.random() < 0.5)),
    "group norm": _row(lambda r, x: nn.GroupNorm(r.choice([1, 2, x.shape[1]]), x.shape[1], eps=0.1)),
    "instance norm": _row(lambda r, x: nn.InstanceNorm2d(x.shape[1], eps=0.1, affine=r.random() < 0.5)),
    "rms norm": _row(lambda r, x: nn.RMSNorm(x.shape[-1], eps=0.1)),
    "softmax": _row(along(torch.softmax, torch.log_softmax, lambda x, d: F.normalize(x + 3, dim=d))),
    "smooth": _row(one_of(torch.sigmoid, torch.tanh, F.gelu, partial(F.gelu, approximate="tanh"), F.silu, F.mish, F.elu,
        F.celu, F.selu, F.softplus, F.softsign, F.logsigmoid, torch.sin, torch.cos, torch.atan, torch.erf,
        F.tanhshrink, torch.asinh, lambda x: torch.exp(-x.abs()), lambda x: torch.log(x.abs() + 1),
        lambda x: torch.rsqrt(x.abs() + 1), lambda x: torch.sqrt(x.abs() + 0.5), lambda x: (x.abs() + 1).reciprocal(),
        lambda x: torch.expm1(-x.abs()), lambda x: (x.abs() + 0.5) ** 0.7, lambda x: torch.log1p(x.abs()),
        partial(F.softplus, beta=2.0, threshold=1.0))),
    "bent": _exact(one_of(F.relu, F.relu6, partial(F.leaky_relu, negative_slope=0.25), F.hardtanh, torch.abs, torch.neg,
        lambda x: torch.clamp(x, -1, 0.5), lambda x: torch.clamp(x, min=0.25), lambda x: torch.clamp(x, max=0.5),
        lambda x: x.clamp(torch.tensor(-0.5), torch.tensor(1.0)), partial(F.softshrink, lambd=0.5))),
    "hard": _row(one_of(F.hardswish, F.hardsigmoid, torch.square, lambda x: F.glu(x, -1), lambda x: F.glu(x, 1))),
    "prelu": _row(lambda r, x: nn.PReLU(r.choice([1, x.shape[1]]))),
    "jump": _jumps(one_of(torch.sign, torch.floor, torch.ceil, torch.trunc, torch.round, lambda x: x % 3,
        lambda x: torch.fmod(x, -2), lambda x: x // 2, lambda x: torch.div(x, 2, rounding_mode="trunc"),
        partial(F.threshold, threshold=0.5, value=2.0), partial(F.hardshrink, lambd=0.5), lambda x: torch.heaviside(x,
        torch.tensor(0.5)), torch.frac)),
    "integers": _exact(one_of(lambda x: x // 2, lambda x: x % 3, lambda x: x + 1, lambda x: 3 - x, lambda x: x * 2,
        lambda x: x.bitwise_and(3), lambda x: x ^ 1, lambda x: x << 1, lambda x: x >> 1, lambda x: -x,
        torch.bitwise_not, lambda x: x ** 2, lambda x: x / 4, lambda x: x * 0.5, lambda x: x.clamp(1, 2), torch.abs,
        torch.sign, lambda x: x + True), INTS),
    "linear": _row(lambda r, x: nn.Linear(x.shape[-1], r.randint(1, 6), bias=r.random() < 0.7)),
    "products": _row(one_of(lambda x: torch.tanh(x @ x.mT), lambda x: torch.tanh(x.mT @ x),
        lambda x: torch.einsum("...ij,...kj->...ki", x, x) / 9, lambda x: torch.einsum("b...,b...->...", x, x) / 9,
        lambda x: torch.outer(x, x) / 3)),
    "two products": _row(one_of(lambda x, y: torch.tanh(x @ y.mT), lambda x, y: torch.tanh(x @ y), lambda x,
        y: torch.tanh(x.mT @ y)), FLOATS, FLOATS),
    "attention": _row(attended),
    "masked attention": _row(masked_attention, FLOATS, BOOL),
    "heads": _row(lambda r, x, m: Heads(x.shape[-1], r.random() < 0.7), FLOATS, BOOL),
    "recurrent": _row(lambda r, x: Recurrent(r, x.shape[-1])),
    "resize": _row(resized),
    "grid": _row(one_of(lambda x: F.grid_sample(x, torch.tanh(x[:, :1, :, :, None] * torch.tensor([0.3,
        0.7])).squeeze(1), align_corners=False))),
    "shuffle": _exact(one_of(lambda x: F.pixel_shuffle(x, 2), lambda x: F.pixel_unshuffle(x, 2),
        lambda x: F.channel_shuffle(x, 2)), ANY),
    "embedding": _row(lambda r, i: Table(r), INTS),
    "one hot": _exact(one_of(lambda i: F.one_hot(i.long() % 5, 5)), INTS),
    "binary": _row(one_of(lambda x, y: x * torch.tanh(y), lambda x, y: x / (y.abs() + 1), lambda x, y: torch.atan2(x,
        y.abs() + 1), torch.hypot, lambda x, y: torch.lerp(x, y, 0.3), lambda x, y: torch.addcmul(x, x.sin(), y.sin(),
        value=0.5), torch.logaddexp, lambda x, y: (x.abs() + 0.5) ** torch.tanh(y), lambda x, y: torch.addcdiv(x, y,
        y.abs() + 1)), FLOATS, FLOATS),
    "sum": _exact(one_of(lambda x, y: x + y, lambda x, y: x - y, torch.maximum, torch.minimum, lambda x, y: torch.sub(x,
        y, alpha=2), lambda x, y: torch.add(x, y, alpha=0.5), torch.fmax), NUMBERS, NUMBERS),
    "with a scalar": _exact(one_of(lambda x: x * 0.5, lambda x: 2 - x, lambda x: x + 1, lambda x: x / 2,
        lambda x: x * True, lambda x: torch.rsub(x, 1.5), lambda x: x + torch.tensor(2),
        lambda x: x * torch.tensor(0.5, dtype=torch.float64), lambda x: x - torch.ones(1, dtype=torch.int64)),
        NUMBERS),
    "with a size": _row(one_of(lambda x: x / x.shape[0], lambda x: x + x.shape[-1] * 0.1,
        lambda x: x * x.numel() ** (-0.5))),
    "with a constant": _exact(one_of(lambda x: x + torch.arange(x.shape[-1]), lambda x: x + torch.ones_like(x),
        lambda x: x * torch.ones(x.shape[-1]).tril(), torch.tril, lambda x: torch.triu(x, 1),
        lambda x: x + x.new_full((x.shape[-1],), 2), lambda x: x + torch.eye(x.shape[-1]),
        lambda x: x + torch.arange(x.shape[0], dtype=x.dtype).view(-1, *[1] * (x.dim() - 1))), NUMBERS),
    "concatenate": _exact(along(lambda x, y, d: torch.cat([x, y], d), lambda x, y, d: torch.cat([y, x, y], d),
        lambda x, y, d: torch.stack([x, y], d)), ANY, ANY),
    "split": _exact(along(lambda x, d: torch.split(x, 2, d), lambda x, d: torch.chunk(x, 2, d), lambda x,
        d: torch.unbind(x, d)[:3], lambda x, d: torch.tensor_split(x, 3, d), lambda x, d: torch.split(x, [1,
        x.shape[d] - 1], d), lambda x, d: torch.chunk(x, 3, d)[::-1]), ANY),
    "slice": _exact(part, ANY),
    "reshape": _exact(reshaped, ANY),
    "permute": _exact(lambda r, x: partial(torch.permute, dims=r.sample(range(x.dim()), x.dim())), ANY),
    "view": _exact(along(lambda x, d: x.unsqueeze(d), lambda x, d: x.squeeze(d), lambda x, d: x.transpose(0, d),
        lambda x, d: x.movedim(d, 0), lambda x, d: x.unfold(d, 2, 1), lambda x, d: x.select(d, -1), lambda x,
        d: x.narrow(d, 1, 2), lambda x, d: x.diagonal(dim1=d, dim2=0), lambda x, d: x.unsqueeze(d).expand(*[-1] * d,
        3, *[-1] * (x.dim() - d)), lambda x, d: x[:1].expand_as(x)), ANY),
    "rearranged": _exact(along(lambda x, d: x.flip(d), lambda x, d: x.roll(1, d), lambda x, d: x.roll(-2, d),
        lambda x, d: x.repeat_interleave(2, d), lambda x, d: x.flip([0, d]), lambda x,
        d: x.repeat(*[2 if i == d % x.dim() else 1 for i in range(x.dim())]), lambda x, d: torch.rot90(x, 1, [0, d]),
        lambda x, d: x.clone(), lambda x, d: x.tile(2)), ANY),
    "pad": _exact(padded, ANY),
    "reduce": _row(reduced(torch.mean, torch.logsumexp, lambda x, d, k: torch.sum(x, d, k) / 4, lambda x, d,
        k: torch.linalg.vector_norm(x + 3, 2, d, k) / 4, lambda x, d, k: torch.var(x, d, keepdim=k, correction=0),
        lambda x, d, k: torch.var(x, d, keepdim=k), lambda x, d, k: torch.linalg.vector_norm(x, 1, d, k) / 4,
        lambda x, d, k: torch.tanh(x).prod(d[0], keepdim=k))),
    "extremes": _exact(reduced(torch.amax, torch.amin, torch.sum, lambda x, d, k: torch.max(x, d[0], k)[0]),
        NUMBERS),
    "places": _jumps(reduced(lambda x, d, k: torch.argmax(x, d[0], k), lambda x, d, k: tuple(torch.min(x, d[0], k)),
        lambda x, d, k: torch.count_nonzero(x, d), lambda x, d, k: torch.argmin(x, d[0], k), lambda x, d,
        k: torch.sort(x, d[0], stable=True), lambda x, d, k: torch.topk(x, 2, d[0])[0], lambda x, d, k: torch.sort(x,
        d[0], descending=True)[0], lambda x, d, k: torch.argsort(x, d[0], stable=True), lambda x, d,
        k: torch.median(x, d[0], k)[0]), NUMBERS),
    "truths": _exact(reduced(torch.any, torch.all, lambda x, d, k: x.any(d[0], k), lambda x, d, k: x.sum(d,
        keepdim=k), lambda x, d, k: x.all()), BOOL),
    "running": _exact(along(torch.cumsum, lambda x, d: torch.cummax(x, d)[0], lambda x, d: torch.diff(x, dim=d)),
        NUMBERS),
    "logic": _exact(one_of(torch.logical_not, lambda b: b | b.flip(0), lambda b: b & b.roll(1, -1), lambda b: ~b,
        lambda b: b.long(), lambda b: b.float(), lambda b: b + b, lambda b: b * 2, lambda b: b.to(torch.uint8)),
        BOOL),
    "two truths": _exact(one_of(torch.logical_and, torch.logical_or, torch.logical_xor, lambda a, b: a == b), BOOL,
        BOOL),
    "compare": _jumps(one_of(torch.gt, torch.le, torch.eq, torch.ne), NUMBERS, NUMBERS),
    "compare with a scalar": _jumps(one_of(lambda x: x > 0, lambda x: x <= 0.5, lambda x: x == 0, lambda x: x.bool(),
        torch.isfinite, lambda x: x > 1, torch.logical_not), NUMBERS),
    "where": _exact(one_of(torch.where, lambda m, x, y: x.masked_fill(m, 2), lambda m, x, y: torch.where(m, x, 0.5),
        lambda m, x, y: x * m + y * ~m), BOOL, NUMBERS, NUMBERS),
    "masked": _exact(one_of(lambda x, m: x.masked_fill(m, -1), lambda x, m: torch.where(m, 0, x), lambda x, m: x * m,
        lambda x, m: torch.where(m, x, torch.zeros_like(x))), NUMBERS, BOOL),
    "index": _exact(indexed(torch.index_select, lambda x, d, i: x.movedim(d, 0)[i], lambda x, d, i: x.index_fill(d,
        i, 1), lambda x, d, i: torch.take(x, i)), NUMBERS, INTS),
    "gather": _exact(along(lambda x, i, d: torch.take_along_dim(x, i.long() % x.shape[d], d), lambda x, i,
        d: torch.gather(x, d, i.long() % x.shape[d])), NUMBERS, INTS),
    "put": _exact(indexed(lambda x, d, i: x.index_add(d, i, torch.ones_like(x.index_select(d, i))), lambda x, d,
        i: x.index_put((i % x.shape[0],), x.new_ones(()) * 2), lambda x, d, i: x.index_put((i % x.shape[0],),
        x.new_ones(()), accumulate=True), lambda x, d, i: x.index_copy(d, i[:1], x.narrow(d, 0, 1)), lambda x, d,
        i: x.scatter(d, x.long() % x.shape[d], 3), lambda x, d, i: x.scatter_add(d, torch.zeros_like(x).long(),
        x) / 4), NUMBERS, INTS),
    "places that are constant": _exact(along(lambda x, d: x.index_select(d, torch.tensor([0, 1, 0])), lambda x,
        d: x[torch.tensor([1, 0])], lambda x, d: x[..., [0, -1]], lambda x, d: x.slice_scatter(x.narrow(d, 0, 1) * 2,
        d, 1, 2), lambda x, d: x.select_scatter(x.select(d, 0), d, -1), lambda x, d: x[torch.tensor([0, 1]),
        torch.tensor([1, 0])]), NUMBERS),
    "convert": _exact(one_of(lambda x: x.float(), lambda x: x.double(), lambda x: x.half(), lambda x: x.bfloat16(),
        lambda x: x.clone(), lambda x: x.type(torch.float32)), NUMBERS),
    "to integers": _jumps(one_of(lambda x: x.long(), lambda x: x.int(), lambda x: x.to(torch.int64),
        lambda x: x.abs().to(torch.uint8)), NUMBERS),
    "in place": _exact(one_of(lambda x: x.add_(1), lambda x: x.mul_(2).sub_(1), lambda x: x.relu_(),
        lambda x: x.clamp_(-1, 1), lambda x: x.neg_(), lambda x: x[:1].add_(1), lambda x: x.zero_(),
        lambda x: x.select(-1, 0).mul_(0.5), lambda x: x.t_(), lambda x: x.unsqueeze_(0), lambda x: x.transpose(0,
        -1).add_(x.transpose(0, -1)), lambda x: x.fill_(1), lambda x: F.relu(x, inplace=True),
        lambda x: x.view(-1)[::2].mul_(0), lambda x: x.masked_fill_(x.isfinite(), 1), lambda x: x.squeeze_(0)), NUMBERS),
    "write": _exact(written, NUMBERS),
    "copy": _exact(one_of(lambda x, y: x.copy_(y), lambda x, y: x.add_(y), lambda x, y: x[:1].copy_(y), lambda x,
        y: x[..., 0].add_(y), lambda x, y: x.sub_(y, alpha=2)), NUMBERS, NUMBERS),
    "buffer": _row(lambda r, x: State(tuple(x.shape[1:]), r.random() < 0.5)),
}  # fmt: skip
