"""Operators on special values, through every backend: NaN, infinities, signs of zero, subnormal and largest numbers.

A group of the cases is one program, whose results are compared with eager case by case. A backend's table of expected
differences is exact: a case that no longer differs fails too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import delegate
from delegate.plugins import PORTABLE
from delegate.testing import assert_same
from tests.support.functions import Function

INF, NAN = float("inf"), float("nan")
TINY, MAX = 2.0**-149, torch.finfo(torch.float32).max

# In a smaller dtype the largest of these are infinite, and the smallest normal numbers are 0: each dtype has its own.
VALUES = torch.tensor([
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 0.3, -0.7, 3.0, -3.0, 4.0, -6.0, 20.0, -20.0, 80.0, -80.0,
    88.5, 89.0, -104.0, 1e3, -1e3, 65504.0, -65504.0, 3.3895e38, -3.3895e38, MAX, -MAX, 2.0**-14, -(2.0**-14),
    2.0**-126, -(2.0**-126), INF, -INF, NAN,
])  # fmt: skip
MODERATE = VALUES[(VALUES.abs() <= 1e3) | ~VALUES.isfinite()]  # libraries reduce larger angles differently
SMALL = torch.tensor([TINY, -TINY, 1e-40, -1e-40, 2.0**-133, -(2.0**-133), 6e-8, -6e-8, 3e-5, 1.0, 0.0, -0.0])
_EDGES = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -3.0, 1e3, 65504.0, MAX, -MAX, 2.0**-14, INF, -INF, NAN])
FIRST, SECOND = (t.flatten() for t in torch.meshgrid(_EDGES, _EDGES, indexing="ij"))
_CALM = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -3.0, 7.0, INF, -INF, NAN])
LEFT, RIGHT = (t.flatten() for t in torch.meshgrid(_CALM, _CALM, indexing="ij"))
THREE = tuple(t.flatten() for t in torch.meshgrid(*[torch.tensor([0.0, -0.0, 1.5, -2.0, INF, -INF, NAN])] * 3,
                                                  indexing="ij"))  # fmt: skip

ROWS = torch.tensor([
    [1.0, -2.0, 3.0, 0.5], [NAN, 1.0, 2.0, 3.0], [1.0, -4.0, 2.0, NAN], [1.0, NAN, INF, 2.0], [INF, 1.0, 2.0, 3.0],
    [-INF, 1.0, 2.0, 3.0], [1.0, INF, -INF, 2.0], [-INF] * 4, [INF] * 4, [NAN] * 4, [0.0] * 4, [-0.0] * 4,
    [-1.0, -2.0, -0.5, -3.0], [80.0, -200.0, 1e3, -1e3], [-1e3, -2e3, -3e3, -1e4],
])  # fmt: skip
LARGE = torch.tensor([
    [MAX, 1.0, 2.0, 0.5], [MAX, MAX, 1.0, 1.0], [-MAX, -1.0, 3.0, 2.0], [65504.0, 65504.0, 1.0, 0.0],
])  # fmt: skip
UNTIED = torch.tensor([  # at most one NaN or infinity of each sign a row, so that indices are determined
    [1.0, -2.0, 3.0, 0.5], [NAN, 1.0, 2.0, 3.0], [1.0, -4.0, 2.0, NAN], [1.0, NAN, INF, 2.0], [INF, 1.0, 2.0, 3.0],
    [-INF, 1.0, NAN, 3.0], [1.0, INF, -INF, 2.0], [5.0, 1.0, 9.0, -INF], [-1.0, -2.0, NAN, -3.0], [4.0, 0.0, 1.0, 2.0],
])  # fmt: skip

IMAGE = torch.arange(72.0).reshape(1, 2, 6, 6) - 40
IMAGE[0, 0, 1, 1], IMAGE[0, 1, 3, 3], IMAGE[0, 1, 5, 5], IMAGE[0, 0, 0, 3:] = NAN, INF, -INF, -0.0
FINITE_IMAGE = IMAGE.nan_to_num(NAN, 7.0, 7.0)
VOLUME = FINITE_IMAGE.reshape(1, 2, 1, 6, 6).repeat(1, 1, 2, 1, 1)
WEIGHT = torch.linspace(-1, 1, 54).reshape(3, 2, 3, 3)
SQUARE = torch.tensor([[1.5, -2.0, 0.0, NAN], [7.0, -7.0, 3.0, -0.5], [NAN, 7.0, -1.0, 2.0], [80.0, -20.0, 9.0, -0.0]])


@dataclass(frozen=True)
class Case:
    """A function on special values.

    Args:
        function: of tensors.
        inputs: in float32.
        zeros: eager's signs of zero are defined; IEEE 754 leaves those of maxima and minima open.
    """

    function: Callable[..., Any]
    inputs: tuple[Tensor, ...]
    zeros: bool = True


def _each(names: str, *inputs: Tensor, module: Any = torch, zeros: bool = True) -> Iterator[tuple[str, Case]]:
    """Functions of a module on the same tensors."""
    return ((name, Case(getattr(module, name), inputs, zeros)) for name in names.split())


def _of(functions: Mapping[str, Callable[..., Any]], *inputs: Tensor, zeros: bool = True) -> Iterator[tuple[str, Case]]:
    """Functions on the same tensors."""
    return ((name, Case(function, inputs, zeros)) for name, function in functions.items())


def _along(dims: Iterable[int], functions: Mapping[str, Callable[[Tensor, int], Any]], x: Tensor, **given: bool) -> Any:
    """Functions of rows, and of the same numbers in columns."""
    columns = x.t().contiguous()
    for name, function in functions.items():
        for dim in dims:
            yield f"{name} along {dim}", Case(lambda t, f=function, d=dim: f(t, d), (x if dim else columns,), **given)


def _attention(x: Tensor) -> Tensor:
    """Attention by eager's formula; its fused kernels return 0 for rows of NaN, for 3 dimensions from torch 2.14 on."""
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(x[None], x[None], x[None])


UNARY = dict((
    *_each("abs neg exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal square sigmoid tanh erf erfc ceil floor "
           "round trunc sgn sign atan asinh", VALUES),
    *_each("sin cos tan frac", MODERATE),
    *_each("sinh cosh", MODERATE[MODERATE != 89]),
    *_each("asin acos acosh atanh logit", VALUES),
    *_each("hardsigmoid silu mish softplus leaky_relu hardshrink softsign", VALUES, module=F),
    *_each("elu celu selu", VALUES, module=F, zeros=False),  # XNNPACK's signs of zero depend on the CPU
    *_each("relu6 hardtanh softshrink logsigmoid tanhshrink", VALUES, module=F, zeros=False),
    *_each("hardswish", MODERATE, module=F),
    *_each("relu", VALUES, zeros=False),
    *_of({
        "gelu": F.gelu,
        "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"),
    }, VALUES[VALUES.abs() < 1e3], zeros=False),  # eager's of infinity and of -0.0 depend on the CPU
    *_of({
        "prelu": lambda x: F.prelu(x, torch.tensor([0.2], dtype=x.dtype)),
        "threshold": lambda x: F.threshold(x, 0.5, 2.0),
        "power 2": lambda x: x**2,
        "power 3": lambda x: x**3,
        "power 0.5": lambda x: x**0.5,
        "power -1": lambda x: x**-1,
        "power 0": lambda x: x**0,
        "power 2.5": lambda x: x**2.5,
        "power of 2": lambda x: 2**x,
        "nan_to_num": torch.nan_to_num,
        "nan_to_num of numbers": lambda x: x.nan_to_num(1.0, 2.0, 3.0),
        "times 0": lambda x: x * 0.0,
        "times -0": lambda x: x * -0.0,
        "plus 0": lambda x: x + 0.0,
        "0 minus": lambda x: 0.0 - x,
        "times infinity": lambda x: x * INF,
        "plus infinity": lambda x: x + INF,
        "over 0": lambda x: x / 0.0,
        "over 3": lambda x: x / 3.0,
        "1 over": lambda x: 1.0 / x,
        "glu": lambda x: F.glu(torch.cat([x, x])),
    }, VALUES),
    *_of({
        "fmod 1.5": lambda x: torch.fmod(x, 1.5),
        "remainder 1.5": lambda x: torch.remainder(x, 1.5),
        "remainder 2": lambda x: torch.remainder(x, 2),
        "trunc of a quotient": lambda x: torch.div(x, 1.5, rounding_mode="trunc"),
        "floor of a quotient": lambda x: torch.div(x, 2.0, rounding_mode="floor"),
    }, MODERATE),
    *_of({
        "clamp": lambda x: x.clamp(-1, 2),
        "clamp from below": lambda x: x.clamp(min=0.5),
        "clamp from above": lambda x: x.clamp(max=0.5),
        "clamp at 0": lambda x: x.clamp(min=0),
        "maximum of a constant": lambda x: torch.maximum(torch.tensor(0.5, dtype=x.dtype), x),
    }, VALUES, zeros=False),
))  # fmt: skip

BINARY = dict((
    *_each("add sub mul div", FIRST, SECOND),
    *_each("maximum minimum fmax fmin", FIRST, SECOND, zeros=False),
    *_each("pow atan2 copysign hypot logaddexp fmod remainder xlogy", LEFT, RIGHT),
    *_of({
        "floor_divide": torch.floor_divide,
        "truncated quotient": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
        "lerp by a number": lambda x, y: torch.lerp(x, y, 0.3),
        "scaled sum": lambda x, y: torch.add(x, y, alpha=2),
        "x - y of rsub": lambda x, y: torch.rsub(y, x, alpha=2),
        "prelu of each": lambda x, y: torch.where(x >= 0, x, x * y),
    }, LEFT, RIGHT),
    *_of({
        "lerp": torch.lerp,
        "addcmul": torch.addcmul,
        "addcdiv": torch.addcdiv,
        "chosen": lambda x, y, z: torch.where(x > 0, y, z),
    }, *THREE),
    *_of({"clamp between tensors": torch.clamp}, *THREE, zeros=False),
    *_of({
        "product of rows": lambda x: x[:, None] * x[None],
        "sum of rows": lambda x: x[:, None] + x[None],
        "maximum of rows": lambda x: torch.maximum(x[:, None], x[None]),
    }, _CALM, zeros=False),
))  # fmt: skip

COMPARED = dict((
    *_each("eq ne lt le gt ge", FIRST, SECOND),
    *((f"{name} {number}", Case(lambda x, n=name, v=number: getattr(torch, n)(x, v), (VALUES,)))
      for name in ("eq", "ne", "lt", "le", "gt", "ge") for number in (1.0, 0.0, INF, -INF, NAN)),
    *_each("isnan isinf isfinite isposinf isneginf signbit logical_not", VALUES),
    *_each("logical_and logical_or logical_xor isclose", FIRST, SECOND),
    *_of({
        "truth": lambda x: x.bool(),
        "replaced": lambda x: torch.where(x.isnan(), 0.5, x),
        "where positive": lambda x: torch.where(x > 0, x, -x),
        "where not negative": lambda x: torch.where(x >= 0, x, 1.0),
        "masked_fill": lambda x: x.masked_fill(x > 1, -INF),
        "masked_fill NaN": lambda x: x.masked_fill(x > 1, NAN),
        "masked_fill -0": lambda x: x.masked_fill(x > 1, -0.0),
        "count of NaN": lambda x: torch.ne(x, x).sum(),
        "times a mask": lambda x: x * (x > 0),
    }, VALUES),
    *_of({
        "where constant": lambda x: torch.where(torch.eye(4) < 1, x.flip(1), torch.zeros((), dtype=x.dtype)),
    }, SQUARE),
    *_of({
        "any": lambda x: x.any(1),
        "all": lambda x: x.all(1),
        "count_nonzero": lambda x: x.count_nonzero(1),
    }, ROWS),
))  # fmt: skip

_SUMS: Mapping[str, Callable[[Tensor, int], Any]] = {
    name: (lambda x, d, n=name: getattr(torch, n)(x, d))
    for name in ("sum", "mean", "prod", "cumsum", "cumprod", "logsumexp", "softmax", "log_softmax", "nansum")
}
REDUCED = dict((
    *_along((0, 1), _SUMS, ROWS, zeros=False),
    *_along((0, 1), {name: (lambda x, d, n=name: getattr(torch, n)(x, d)) for name in ("amax", "amin", "aminmax")}
            | {"aminmax": lambda x, d: tuple(torch.aminmax(x, dim=d))}, ROWS, zeros=False),
    *_along((0, 1), {name: (lambda x, d, n=name: getattr(torch, n)(x, d)) for name in ("var", "std")}, ROWS),
    *_along((1,), {
        f"norm {order}": (lambda x, d, o=order: torch.linalg.vector_norm(x, o, d)) for order in (INF, -INF, 0, 1, 2, 3)
    }, ROWS),
    *_along((1,), {
        "normalize": lambda x, d: F.normalize(x, dim=d),
        "softmin": F.softmin,
        "logcumsumexp": torch.logcumsumexp,
        "mean of var_mean": lambda x, d: torch.var_mean(x.nan_to_num(1.0, 2.0, 3.0), d),
        "layer norm": lambda x, d: F.layer_norm(x, (4,)),
        "rms norm": lambda x, d: F.rms_norm(x, (4,), eps=1e-5),
    }, ROWS, zeros=False),
    *((f"large {name}", Case(lambda x, f=f: f(x, 1), (LARGE,)))
      for name, f in _SUMS.items() if not name.startswith("cum")),
    *_of({
        "large norm": lambda x: torch.linalg.vector_norm(x, 2, 1),
        "large amax": lambda x: x.amax(1),
    }, LARGE),
    *_of({
        "masked softmax": lambda x: x.masked_fill(torch.ones(4, 4).tril() < 1, -INF).softmax(1),
        "sum of all": lambda x: x.sum(),
        "mean of all": lambda x: x.mean(),
        "sum of squares": lambda x: (x * x).sum(1),
    }, SQUARE),
    *_of({"max of all": lambda x: x.max(), "min of all": lambda x: x.min()}, SQUARE, zeros=False),
))  # fmt: skip

SORTED = dict((
    *_along((0, 1), {
        **{n: (lambda x, d, n=n: getattr(torch, n)(x, d)) for n in ("argmax", "argmin", "argsort")},
        **{n: (lambda x, d, n=n: tuple(getattr(torch, n)(x, d))) for n in ("max", "min", "sort", "cummax", "cummin",
                                                                          "median", "nanmedian")},
        "sorted downwards": lambda x, d: tuple(x.sort(d, descending=True)),
    }, UNTIED, zeros=False),
    *_along((1,), {
        "topk": lambda x, d: tuple(x.topk(2, d)),
        "the least": lambda x, d: tuple(x.topk(2, d, largest=False)),
        "kthvalue": lambda x, d: tuple(x.kthvalue(2, d)),
        "max without indices": lambda x, d: x.max(d).values,
        "argmax of absolute": lambda x, d: x.abs().argmax(d),
    }, UNTIED, zeros=False),
    *_of({
        f"scattered {what}": (lambda x, what=what: torch.zeros(4, 4, dtype=x.dtype).scatter_reduce(
            0, (x > 1).long(), x, what)) for what in ("amax", "amin", "sum", "mean", "prod")
    }, SQUARE, zeros=False),
))  # fmt: skip

MOVED = dict((
    *_of({
        "padded with -0": lambda x: F.pad(x, (1, 2, 0, 1), value=-0.0),
        "padded with NaN": lambda x: F.pad(x, (1, 2, 0, 1), value=NAN),
        "padded with infinity": lambda x: F.pad(x, (1, 2, 0, 1), value=-INF),
        "padded": lambda x: F.pad(x, (1, 2, 0, 1)),
        "reflected": lambda x: F.pad(x, (1, 2), mode="reflect"),
        "joined": lambda x: torch.cat([x, -x], 1),
        "transposed": lambda x: x.t() + 1,
        "sliced": lambda x: x[1:3, ::2] * 2,
        "gathered": lambda x: x[:, torch.tensor([2, 0, 1])],
        "tril": torch.tril,
        "repeated": lambda x: x.repeat(2, 2),
        "flipped": lambda x: x.flip(1),
        "rolled": lambda x: x.roll(1, 1),
    }, SQUARE),
))  # fmt: skip

LAYERS = dict((
    *_of({
        "max pool": lambda x: F.max_pool2d(x, 2),
        "padded max pool": lambda x: F.max_pool2d(x, 3, 2, 1),
        "max pool behind relu": lambda x: F.max_pool2d(x.relu(), 3, 2, 1),
        "max pool of one element": lambda x: F.max_pool2d(x, 1, 2),
    }, IMAGE, zeros=False),
    *_of({
        "max pool in one dimension": lambda x: F.max_pool1d(x[0], 2),
        "global max pool": lambda x: F.adaptive_max_pool2d(x, 1),
        "adaptive max pool": lambda x: F.adaptive_max_pool2d(x, 4),
        "convolution and max pool": lambda x: F.max_pool2d(F.conv2d(x, WEIGHT.to(x.dtype), padding=1).relu(), 2),
    }, FINITE_IMAGE, zeros=False),
    *_of({"max pool in three dimensions": lambda x: F.max_pool3d(x, 2)}, VOLUME, zeros=False),
    *_of({
        "average pool": lambda x: F.avg_pool2d(x, 2),
        "average pool with gaps": lambda x: F.avg_pool2d(x, 1, 2),
        "padded average pool": lambda x: F.avg_pool2d(x, 3, 1, 1),
        "adaptive pool": lambda x: F.adaptive_avg_pool2d(x, 3),
        "global pool": lambda x: F.adaptive_avg_pool2d(x, 1),
        "lp pool": lambda x: F.lp_pool2d(x, 2, 2),
        "batch norm": lambda x: F.batch_norm(x, torch.zeros(2, dtype=x.dtype), torch.ones(2, dtype=x.dtype)),
        "nearest": lambda x: F.interpolate(x, scale_factor=2),
    }, IMAGE, zeros=False),
    *((f"convolution and {name}",
       Case(lambda x, t=then: t(F.conv2d(x, WEIGHT.to(x.dtype), padding=1)), (image,), zeros=False))
      for name, image, then in (("nothing", FINITE_IMAGE, lambda y: y), ("relu", IMAGE, F.relu),
                                ("relu6", FINITE_IMAGE, F.relu6), ("hardswish", FINITE_IMAGE, F.hardswish),
                                ("leaky relu", FINITE_IMAGE, F.leaky_relu), ("elu", FINITE_IMAGE, F.elu))),
    *_of({
        "instance norm": F.instance_norm,
        "group norm": lambda x: F.group_norm(x, 2),
        "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        "bicubic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
    }, FINITE_IMAGE, zeros=False),
    *_of({
        "linear": lambda x: F.linear(x, torch.eye(4, dtype=x.dtype)),
        "linear and relu": lambda x: F.linear(x, torch.eye(4, dtype=x.dtype)).relu(),
        "linear of zeros": lambda x: F.linear(x, torch.zeros(2, 4, dtype=x.dtype)),
        "product": lambda x: x @ x,
        "attention": _attention,
        "codebook": lambda x: torch.cdist(x, torch.eye(4, dtype=x.dtype)).argmin(-1),
    }, SQUARE, zeros=False),
    *_of({
        "sampled at NaN": lambda x: F.grid_sample(
            x, torch.tensor([[[[NAN, 0.0], [0.5, 0.0]]]], dtype=x.dtype), align_corners=False),
    }, IMAGE.nan_to_num(0, 9, -9)),
))  # fmt: skip

SUBNORMAL = dict((
    *_each("abs neg log log2 sqrt rsqrt reciprocal ceil floor sign trunc sigmoid exp signbit logical_not square",
           SMALL),
    *_each("relu", SMALL, zeros=False),
    *_of({
        "times infinity": lambda x: x * INF,
        "over 0": lambda x: x / 0.0,
        "over itself": lambda x: x / x.flip(0).abs(),
        "remainder 2": lambda x: x % 2,
        "floor of a quotient": lambda x: torch.div(x, 2.0, rounding_mode="floor"),
        "where positive": lambda x: torch.where(x > 0, x, -1.0),
        "truth": lambda x: x.bool(),
        "times -1e3": lambda x: x * -1e3,
        "times of both": lambda x: x * x.flip(0),
    }, SMALL),
    *((f"{name} 0", Case(lambda x, n=name: getattr(torch, n)(x, 0.0), (SMALL,)))
      for name in ("eq", "ne", "lt", "le", "gt", "ge")),
))  # fmt: skip

GROUPS: Mapping[str, Mapping[str, Case]] = {
    "unary": UNARY, "binary": BINARY, "compared": COMPARED, "reduced": REDUCED, "sorted": SORTED, "moved": MOVED,
    "layers": LAYERS, "subnormal": SUBNORMAL,
}  # fmt: skip


@dataclass(frozen=True)
class Expected:
    """The differences of a backend with one value of its option `nan`: group -> names of cases.

    Args:
        values: of numbers, infinities or NaN, whatever the option.
        lost: the ones that `nan: fast` adds; each has a note.
        signs: of signs of zero alone.
        compound: cases whose note has other names: of the operators that theirs is decomposed to, or of equal nodes
            in another case.
        some_cpus: the ones that differ with some CPUs, or some versions of the library, only. They have a note on all.
    """

    values: Mapping[str, frozenset[str]] = field(default_factory=dict)
    lost: Mapping[str, frozenset[str]] = field(default_factory=dict)
    signs: Mapping[str, frozenset[str]] = field(default_factory=dict)
    compound: frozenset[str] = frozenset()
    some_cpus: Mapping[str, frozenset[str]] = field(default_factory=dict)


def named(**groups: str) -> dict[str, frozenset[str]]:
    """Return names of cases by group, e.g. unary="exp, log"."""
    return {group: frozenset(names.split(", ")) for group, names in groups.items()}


def check(group: str, backend: str, nan: str, expected: Expected) -> None:
    """Assert that the differences of a group are exactly the expected ones.

    Raises:
        AssertionError: a case differs unexpectedly, no longer differs, or loses NaN without a note.
    """
    found = outcome(group, backend, {} if backend == PORTABLE else {"nan": nan})
    values, lost, signs = (t.get(group, frozenset()) for t in (expected.values, expected.lost, expected.signs))
    open_ = expected.some_cpus.get(group, frozenset())
    assert (found.values - open_, found.signs) == (values | lost, signs), found.messages
    unnoted = (lost | open_) - found.noted - found.left - expected.compound
    assert not unnoted, f"no note on {sorted(unnoted)}"


class Group(nn.Module):
    """The cases of a group in one program, each a module of its own name in the report."""

    def __init__(self, cases: Mapping[str, Case]) -> None:
        super().__init__()
        self.distinct = list({id(x): x for case in cases.values() for x in case.inputs}.values())
        places = {id(x): n for n, x in enumerate(self.distinct)}
        self.cases = nn.ModuleDict({f"case{n}": Function(case.function) for n, case in enumerate(cases.values())})
        self.places = [[places[id(x)] for x in case.inputs] for case in cases.values()]

    def forward(self, *inputs: Tensor) -> list[Any]:
        return [case(*(inputs[p] for p in at)) for case, at in zip(self.cases.values(), self.places, strict=True)]


@dataclass(frozen=True)
class Outcome:
    """Results of a group on a backend.

    Args:
        values: the cases whose numbers, infinities or NaN differ from eager's.
        signs: the cases of which only signs of zero differ.
        left: the cases of which portable kernels run the nodes that are named after them.
        noted: the cases with a node in a partition whose note names its operator as one that loses NaN.
        messages: case -> the first difference.
    """

    values: frozenset[str]
    signs: frozenset[str]
    left: frozenset[str]
    noted: frozenset[str]
    messages: Mapping[str, str]


_TOLERANCE = {torch.float32: 3e-4, torch.float16: 4e-3, torch.bfloat16: 2e-2}


def outcome(group: str, backend: str, options: Mapping[str, Any], dtype: torch.dtype = torch.float32) -> Outcome:
    """Run a group on one backend, "portable" being none, and compare each case with eager."""
    cases = GROUPS[group]
    module = Group(cases).eval()
    inputs = tuple(x.to(dtype) for x in module.distinct)
    config = {"backends": [{"name": backend, "options": dict(options)}] if backend != PORTABLE else []}
    program = delegate.to_backend(torch.export.export(module, inputs), config=config)
    messages: dict[str, str] = {}
    values, signs = set(), set()
    for (name, case), actual, expected in zip(cases.items(), program(*inputs), module(*inputs), strict=True):
        if why := _difference(actual, expected, dtype, signed_zeros=False):
            values.add(name)
        elif case.zeros and (why := _difference(actual, expected, dtype, signed_zeros=True)):
            signs.add(name)
        messages |= {name: why} if why else {}
    ran, left, noted = set(), set(), set()
    notes = {p.name: _lost(p.notes) for p in program.report.partitions}
    for node in program.report.nodes:
        name = list(cases)[int(node.module.split(".")[1].removeprefix("case"))]
        if node.backend != backend:
            left.add(name)
        else:
            ran.add(name)
            if any(name.startswith(node.op.split(".")[1]) for name in notes.get(node.partition, ())):
                noted.add(name)
    noted |= cases.keys() - ran - left  # equal nodes of two cases become one, which has the name of the first
    return Outcome(*map(frozenset, (values, signs, left - ran, noted)), messages)


def _difference(actual: Any, expected: Any, dtype: torch.dtype, *, signed_zeros: bool) -> str:
    try:
        assert_same(actual, expected, _TOLERANCE[dtype], each=True, at_least=1e-2, signed_zeros=signed_zeros)
    except AssertionError as error:
        return str(error)
    return ""


def _lost(notes: Iterable[str]) -> set[str]:
    """The operators that the notes of a partition name."""
    start = "nan: fast, may become a number in "
    return {name for note in notes if note.startswith(start) for name in note.removeprefix(start).split(", ")}
