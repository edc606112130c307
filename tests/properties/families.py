"""Strategies that generate attributes, a family of operators each."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st

from tests.properties.sample import Draw, Sample

_TRUTH = st.booleans()


def weight(*shape: int) -> torch.Tensor:
    """A weight, the same for a shape at every call; multiples of 1/8."""
    made = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    return (made * 8).round() / 8


def _each(draw: Draw, count: int, values: st.SearchStrategy[int]) -> tuple[int, ...]:
    return tuple(draw(values) for _ in range(count))


def _image(draw: Draw, dims: int, low: int = 4, high: int = 9, channels: int | None = None) -> tuple[int, ...]:
    sizes = _each(draw, dims, st.integers(low, high))
    return (draw(st.integers(1, 3)), draw(st.integers(1, 4)) if channels is None else channels, *sizes)


def _shape(draw: Draw, low: int = 1, high: int = 4) -> tuple[int, ...]:
    return tuple(draw(st.lists(st.integers(1, 5), min_size=low, max_size=high)))


def _dim(draw: Draw, rank: int) -> int:
    return draw(st.integers(-rank, rank - 1))


# -- windows -----------------------------------------------------------------------------------------------------------


@st.composite
def pools(draw: Draw) -> Sample:
    """Max and average pooling with all that they take."""
    dims, kind = draw(st.integers(1, 3)), draw(st.sampled_from(["max", "max indices", "avg", "avg", "lp"]))
    shape = _image(draw, dims, 5, 9)
    kernel = _each(draw, dims, st.integers(1, 4))
    options: dict[str, Any] = {"kernel_size": kernel, "ceil_mode": draw(_TRUTH)}
    if draw(_TRUTH):
        options["stride"] = _each(draw, dims, st.integers(1, 4))
    if kind == "lp":
        return Sample(f"lp_pool{dims}d", getattr(F, f"lp_pool{dims}d"), [shape], options={"norm_type": 2, **options})
    if draw(_TRUTH):
        options["padding"] = tuple(draw(st.integers(0, k // 2)) for k in kernel)
    if kind.startswith("max"):
        if draw(_TRUTH):
            options["dilation"] = _each(draw, dims, st.integers(1, 2))
        options["return_indices"] = kind == "max indices"
        return Sample(f"max_pool{dims}d", getattr(F, f"max_pool{dims}d"), [shape], options=options)
    options["count_include_pad"] = draw(_TRUTH)
    if dims > 1 and draw(_TRUTH):
        options["divisor_override"] = draw(st.integers(1, 5))
    return Sample(f"avg_pool{dims}d", getattr(F, f"avg_pool{dims}d"), [shape], options=options)


@st.composite
def adaptive_pools(draw: Draw) -> Sample:
    """Pooling to a given size."""
    dims, kind = draw(st.integers(1, 3)), draw(st.sampled_from(["max", "avg"]))
    wanted = _each(draw, dims, st.sampled_from([1, 1, 2, 3, 4]))
    name = f"adaptive_{kind}_pool{dims}d"
    return Sample(name, getattr(F, name), [_image(draw, dims)], options={"output_size": wanted})


@st.composite
def convolutions(draw: Draw) -> Sample:
    """Convolutions, transposed or not."""
    dims, groups = draw(st.integers(1, 3)), draw(st.sampled_from([1, 1, 2, 3]))
    per_group, outputs = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    kernel = _each(draw, dims, st.integers(1, 4))
    options: dict[str, Any] = {"groups": groups}
    stride, dilation = (_each(draw, dims, st.integers(1, 3)) for _ in range(2))
    if draw(_TRUTH):
        options["stride"] = stride
    if draw(_TRUTH):
        options["dilation"] = dilation
    shape = _image(draw, dims, 10, 13, per_group * groups)
    bias = [weight(outputs * groups)] if draw(_TRUTH) else []
    if draw(_TRUTH):
        name, first = f"conv{dims}d", (outputs * groups, per_group)
        plain = options.get("stride", (1,) * dims) == (1,) * dims
        around = [_each(draw, dims, st.integers(0, 3)), *(["same"] if plain else []), "valid"]
        options["padding"] = draw(st.sampled_from(around))
    else:
        name, first = f"conv_transpose{dims}d", (per_group * groups, outputs)
        options["padding"] = _each(draw, dims, st.integers(0, 2))
        room = zip(options.get("stride", (1,) * dims), options.get("dilation", (1,) * dims), strict=True)
        options["output_padding"] = tuple(draw(st.integers(0, max(s, d) - 1)) for s, d in room)
    return Sample(name, getattr(F, name), [shape], [weight(*first, *kernel), *bias], options)


# -- sizes of images ---------------------------------------------------------------------------------------------------


@st.composite
def pads(draw: Draw) -> Sample:
    """Padding in every mode; constant padding takes negative widths too."""
    mode = draw(st.sampled_from(["constant", "constant", "reflect", "replicate", "circular"]))
    if mode == "constant":
        shape = tuple(draw(st.lists(st.integers(3, 6), min_size=1, max_size=5)))
        widths = _each(draw, 2 * draw(st.integers(1, len(shape))), st.integers(-1, 3))
        value = draw(st.sampled_from([0.0, 1.5, -2.0, float("inf"), float("-inf")]))
        return Sample("pad", F.pad, [shape], options={"pad": widths, "value": value})
    dims = draw(st.integers(1, 3))
    widths = _each(draw, 2 * dims, st.integers(-1, 3))
    return Sample("pad", F.pad, [_image(draw, dims)], options={"pad": widths, "mode": mode})


@st.composite
def resizes(draw: Draw) -> Sample:
    """Interpolation in every mode, by size or by factor."""
    dims = draw(st.sampled_from([1, 2, 2, 2, 3]))
    modes = {1: ["linear"], 2: ["bilinear", "bicubic"], 3: ["trilinear"]}[dims]
    mode = draw(st.sampled_from([*modes, "nearest", "nearest-exact", "area"]))
    options: dict[str, Any] = {"mode": mode}
    if draw(_TRUTH):
        options["size"] = _each(draw, dims, st.integers(1, 12))
    else:
        factors = st.sampled_from([0.5, 1.5, 2.0, 1.3, 3.0, 0.7])
        options["scale_factor"] = draw(factors) if draw(_TRUTH) else tuple(draw(factors) for _ in range(dims))
        if mode != "area" and draw(_TRUTH):
            options["recompute_scale_factor"] = True
    if mode in modes:
        options["align_corners"] = draw(_TRUTH)
    if mode in ("bilinear", "bicubic") and draw(st.integers(0, 3)) == 0:
        # To a width of 1 torch 2.13 gives all rows the first one's value.
        options = {"mode": mode, "antialias": True, "size": (draw(st.integers(1, 12)), draw(st.integers(2, 12)))}
        options["align_corners"] = draw(_TRUTH)
    return Sample("interpolate", F.interpolate, [_image(draw, dims)], options=options)


@st.composite
def shuffles(draw: Draw) -> Sample:
    """Between channels and pixels; patches and their sum."""
    kind, r = draw(st.sampled_from(["shuffle", "unshuffle", "channels", "unfold", "grid"])), draw(st.integers(1, 3))
    n, h, w = draw(st.integers(1, 2)), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    if kind == "shuffle":
        return Sample("pixel_shuffle", F.pixel_shuffle, [(n, 2 * r * r, h, w)], options={"upscale_factor": r})
    if kind == "unshuffle":
        return Sample("pixel_unshuffle", F.pixel_unshuffle, [(n, 2, h * r, w * r)], options={"downscale_factor": r})
    if kind == "channels":
        return Sample("channel_shuffle", F.channel_shuffle, [(n, 2 * r, h, w)], options={"groups": r})
    if kind == "unfold":
        options = {k: _each(draw, 2, st.integers(1, 2)) for k in ("kernel_size", "dilation", "stride")}
        return Sample(
            "unfold", F.unfold, [(n, 2, h + 4, w + 4)], options={**options, "padding": draw(st.integers(0, 2))}
        )
    options = {
        "mode": draw(st.sampled_from(["bilinear", "nearest", "bicubic"])),
        "padding_mode": draw(st.sampled_from(["zeros", "border", "reflection"])),
        "align_corners": draw(_TRUTH),
    }
    return Sample("grid_sample", F.grid_sample, [(n, 2, h + 2, w + 2), (n, h, w, 2)], options=options)


# -- reductions --------------------------------------------------------------------------------------------------------

_REDUCTIONS = ("sum", "mean", "amax", "amin", "logsumexp", "std", "var", "var_mean", "std_mean", "norm", "any", "all")
_ALONG_ONE = ("max", "min", "argmax", "argmin", "prod", "cumsum", "cumprod", "logcumsumexp", "cummax", "median", "sort")


def _prefixed(function: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    return function(x, *args, **kwargs)


@st.composite
def reductions(draw: Draw) -> Sample:
    """Along any dimensions, kept or not."""
    shape = _shape(draw)
    rank = len(shape)
    if draw(_TRUTH):
        name = draw(st.sampled_from(_REDUCTIONS))
        options: dict[str, Any] = {
            "dim": draw(st.lists(st.integers(-rank, -1), min_size=1, max_size=rank, unique=True)),
            "keepdim": draw(_TRUTH),
        }
        if name in ("std", "var", "var_mean", "std_mean"):
            options["correction"] = draw(st.sampled_from([0, 1, 2, 0.5]))
        if name == "norm":
            options["ord"] = draw(st.sampled_from([0, 1, 2, 3, 0.5, float("inf"), float("-inf")]))
            return Sample(name, torch.linalg.vector_norm, [shape], options=options)
        if name in ("any", "all"):
            options["dim"] = options["dim"][0]
        return Sample(name, getattr(torch, name), [shape], options=options)
    name = draw(st.sampled_from(_ALONG_ONE))
    options = {"dim": _dim(draw, rank)}
    if name in ("max", "min", "argmax", "argmin", "prod", "median"):
        options["keepdim"] = draw(_TRUTH)
    if name == "sort":
        options |= {"descending": draw(_TRUTH), "stable": True}
    if name in ("argmax", "argmin") and draw(st.integers(0, 3)) == 0:
        options = {}
    return Sample(name, getattr(torch, name), [shape], options=options)


# -- norms -------------------------------------------------------------------------------------------------------------


def _group_norm(x: torch.Tensor, *weights: torch.Tensor, num_groups: int, eps: float) -> torch.Tensor:
    return F.group_norm(x, num_groups, *weights, eps=eps)


def _layer_norm(x: torch.Tensor, *weights: torch.Tensor, shape: tuple[int, ...], eps: float) -> torch.Tensor:
    return F.layer_norm(x, shape, *weights, eps=eps)


def _rms_norm(x: torch.Tensor, *weights: torch.Tensor, shape: tuple[int, ...], eps: float | None) -> torch.Tensor:
    return F.rms_norm(x, shape, *weights, eps=eps)


def _batch_norm(
    x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor, *rest: torch.Tensor, eps: float
) -> torch.Tensor:
    return F.batch_norm(x, mean, var.abs() + 0.1, *rest, eps=eps)


def _instance_norm(x: torch.Tensor, *weights: torch.Tensor, eps: float) -> torch.Tensor:
    return F.instance_norm(x, None, None, *weights, eps=eps)


@st.composite
def norms(draw: Draw) -> Sample:
    """Normalisations with and without weights."""
    kind = draw(st.sampled_from(["group", "layer", "rms", "batch", "instance", "softmax", "log", "min", "lp", "local"]))
    eps, used = draw(st.sampled_from([1e-5, 1e-3, 0.1])), draw(st.integers(0, 2))
    if kind in ("softmax", "log", "min", "lp"):
        shape = _shape(draw)
        dim = _dim(draw, len(shape))
        if kind == "lp":
            return Sample(
                "normalize", F.normalize, [shape], options={"p": draw(st.sampled_from([1, 2, 3])), "dim": dim}
            )
        function = {"softmax": F.softmax, "log": F.log_softmax, "min": F.softmin}[kind]
        return Sample(f"soft{kind}", function, [shape], options={"dim": dim})
    if kind in ("layer", "rms"):
        shape = _shape(draw, 1, 4)
        own = shape[-draw(st.integers(1, len(shape))) :]
        used = min(used, 1) if kind == "rms" else used
        function = _layer_norm if kind == "layer" else _rms_norm
        weights = [weight(*own) for _ in range(used)]
        return Sample(kind, function, [shape], weights, {"shape": own, "eps": eps})
    groups = draw(st.integers(1, 3))
    channels = groups * draw(st.integers(1, 3))
    shape = _image(draw, draw(st.integers(1, 3)), 2, 5, channels)
    if kind == "local":
        options = {"size": draw(st.integers(1, 4)), "alpha": 0.1, "beta": draw(st.sampled_from([0.5, 0.75])), "k": 1.0}
        return Sample("local_response_norm", F.local_response_norm, [shape], options=options)
    weights = [weight(channels) for _ in range(used)]
    if kind == "group":
        return Sample(kind, _group_norm, [shape], weights, {"num_groups": groups, "eps": eps})
    if kind == "batch":
        return Sample(kind, _batch_norm, [shape], [weight(channels), weight(channels), *weights], {"eps": eps})
    return Sample(kind, _instance_norm, [shape], weights, {"eps": eps})


# -- places ------------------------------------------------------------------------------------------------------------


def _sliced(x: torch.Tensor, dim: int, start: int | None, end: int | None, step: int) -> torch.Tensor:
    return torch.ops.aten.slice.Tensor(x, dim, start, end, step)


def _put(x: torch.Tensor, values: torch.Tensor, index: torch.Tensor, accumulate: bool) -> torch.Tensor:
    return torch.index_put(x, [index.long()], values, accumulate)


def _add_at(x: torch.Tensor, values: torch.Tensor, index: torch.Tensor, alpha: float) -> torch.Tensor:
    return x.index_add(0, index.long(), values, alpha=alpha)


def _by_index(x: torch.Tensor, index: torch.Tensor, function: Any, dim: int) -> torch.Tensor:
    return function(x, dim, index.long())


def _written(x: torch.Tensor, y: torch.Tensor, dim: int, start: int, end: int, step: int) -> torch.Tensor:
    return torch.slice_scatter(x, y, dim, start, end, step)


@st.composite
def places(draw: Draw) -> Sample:
    """Reading and writing parts of a tensor."""
    shape = tuple(draw(st.lists(st.integers(2, 6), min_size=1, max_size=4)))
    rank, kind = len(shape), draw(st.sampled_from(sorted(_PLACES)))
    dim = _dim(draw, rank)
    return _PLACES[kind](draw, shape, dim)


def _slice(draw: Draw, shape: tuple[int, ...], dim: int) -> Sample:
    ends = st.none() | st.integers(-8, 8)
    options = {"dim": dim, "start": draw(ends), "end": draw(ends), "step": draw(st.integers(1, 3))}
    return Sample("slice", _sliced, [shape], options=options)


def _select(draw: Draw, shape: tuple[int, ...], dim: int) -> Sample:
    index = draw(st.integers(-shape[dim], shape[dim] - 1))
    return Sample("select", torch.select, [shape], options={"dim": dim, "index": index})


def _split(draw: Draw, shape: tuple[int, ...], dim: int) -> Sample:
    kind = draw(st.sampled_from(["split", "chunk", "unbind"]))
    options: dict[str, Any] = {"dim": dim}
    if kind == "split":
        options["split_size_or_sections"] = draw(st.integers(1, 4))
    if kind == "chunk":
        options["chunks"] = draw(st.integers(1, 4))
    return Sample(kind, getattr(torch, kind), [shape], options=options)


def _flip(draw: Draw, shape: tuple[int, ...], dim: int) -> Sample:
    dims = tuple({dim, _dim(draw, len(shape)) % len(shape) - len(shape)})
    return Sample("flip", torch.flip, [shape], options={"dims": tuple({d % len(shape) for d in dims})})


def _roll(draw: Draw, shape: tuple[int, ...], dim: int) -> Sample:
    shift = draw(st.integers(-7, 7))
    options: dict[str, Any] = {"shifts": shift} if draw(st.integers(0, 3)) == 0 else {"shifts": shift, "dims": dim}
    return Sample("roll", torch.roll, [shape], options=options)


def _picked(draw: Draw, shape: tuple[int, ...], dim: int) -> Sample:
    kind = draw(st.sampled_from(["index_select", "gather", "take_along_dim"]))
    if kind == "index_select":
        index = torch.tensor(draw(st.lists(st.integers(0, shape[dim] - 1), min_size=1, max_size=6)))
    else:
        index = torch.randint(0, shape[dim], shape, generator=torch.Generator().manual_seed(sum(shape)))
    function = getattr(torch, kind)
    options = {"dim": dim, "function": (lambda x, d, i: torch.take_along_dim(x, i, d)) if "take" in kind else function}
    return Sample(kind, _by_index, [shape], [index.float()], options)


def _index_put(draw: Draw, shape: tuple[int, ...], dim: int) -> Sample:
    del dim
    index = torch.tensor(draw(st.lists(st.integers(0, shape[0] - 1), min_size=1, max_size=5, unique=True)))
    values = (len(index), *shape[1:])
    if draw(_TRUTH):
        return Sample("index_put", _put, [shape, values], [index.float()], {"accumulate": draw(_TRUTH)})
    return Sample("index_add", _add_at, [shape, values], [index.float()], {"alpha": draw(st.sampled_from([1, 2.5]))})


def _scatter_slice(draw: Draw, shape: tuple[int, ...], dim: int) -> Sample:
    dim %= len(shape)
    size, step = shape[dim], draw(st.integers(1, 2))
    start = draw(st.integers(0, size - 1))
    end = draw(st.integers(start + 1, size))
    count = -(-(end - start) // step)
    part = (*shape[:dim], count, *shape[dim + 1 :])
    return Sample(
        "slice_scatter", _written, [shape, part], options={"dim": dim, "start": start, "end": end, "step": step}
    )


def _triangle(draw: Draw, shape: tuple[int, ...], dim: int) -> Sample:
    kind = draw(st.sampled_from(["tril", "triu", "diagonal"]))
    options: dict[str, Any] = {("offset" if kind == "diagonal" else "diagonal"): draw(st.integers(-2, 2))}
    shape = shape if len(shape) > 1 else (*shape, 3)
    del dim
    return Sample(kind, getattr(torch, kind), [shape], options=options)


def _repeat(draw: Draw, shape: tuple[int, ...], dim: int) -> Sample:
    kind = draw(st.sampled_from(["tile", "repeat_interleave", "expand"]))
    if kind == "tile":
        return Sample(
            kind,
            torch.tile,
            [shape],
            options={"dims": _each(draw, len(shape) + draw(st.integers(0, 1)), st.integers(1, 3))},
        )
    if kind == "expand":
        shape = tuple(1 if draw(_TRUTH) else s for s in shape)
        wanted = tuple(draw(st.integers(1, 4)) if s == 1 else -1 for s in shape)
        new = _each(draw, draw(st.integers(0, 1)), st.integers(1, 3))
        return Sample(kind, torch.Tensor.expand, [shape], options={"size": (*new, *wanted)})
    return Sample(kind, torch.repeat_interleave, [shape], options={"repeats": draw(st.integers(1, 3)), "dim": dim})


def _joined(*inputs: torch.Tensor, function: Any, dim: int) -> torch.Tensor:
    return function(inputs, dim)


def _join(draw: Draw, shape: tuple[int, ...], dim: int) -> Sample:
    count, kind = draw(st.integers(1, 7)), draw(st.sampled_from(["cat", "stack"]))
    shapes = [shape] * count
    if kind == "cat":
        shapes = [(*shape[: dim % len(shape)], draw(st.integers(1, 4)), *shape[dim % len(shape) + 1 :]) for _ in shapes]
    tied = [tuple((i, d) for i in range(count)) for d in range(len(shape)) if kind == "stack" or d != dim % len(shape)]
    return Sample(kind, _joined, shapes, options={"function": getattr(torch, kind), "dim": dim}, tied=tied)


def _permuted(draw: Draw, shape: tuple[int, ...], dim: int) -> Sample:
    rank = len(shape)
    kind = draw(st.sampled_from(["permute", "transpose", "movedim", "flatten", "squeeze", "unsqueeze"]))
    if kind == "permute":
        return Sample(kind, torch.permute, [shape], options={"dims": tuple(draw(st.permutations(range(rank))))})
    if kind == "transpose":
        return Sample(kind, torch.transpose, [shape], options={"dim0": dim, "dim1": _dim(draw, rank)})
    if kind == "movedim":
        return Sample(kind, torch.movedim, [shape], options={"source": dim, "destination": _dim(draw, rank)})
    if kind == "flatten":
        first = draw(st.integers(0, rank - 1))
        options = {"start_dim": first, "end_dim": draw(st.integers(first, rank - 1))}
        return Sample(kind, torch.flatten, [shape], options=options)
    if kind == "squeeze":
        given = tuple(1 if draw(_TRUTH) else s for s in shape)
        return Sample(kind, torch.squeeze, [given], options={"dim": dim})
    return Sample(kind, torch.unsqueeze, [shape], options={"dim": dim})


_PLACES = {
    "slice": _slice, "select": _select, "split": _split, "flip": _flip, "roll": _roll, "picked": _picked,
    "put": _index_put, "scatter": _scatter_slice, "triangle": _triangle, "repeat": _repeat, "join": _join,
    "permute": _permuted,
}  # fmt: skip

# -- elementwise -------------------------------------------------------------------------------------------------------

_NUMBERS = st.sampled_from([0.25, 0.5, 1.0, 1.5, 2.0, 3.0, -0.5, -1.0, 0.0])
_ACTIVATIONS: dict[str, tuple[Any, dict[str, st.SearchStrategy[Any]]]] = {
    "elu": (F.elu, {"alpha": _NUMBERS}),
    "full elu": (torch.ops.aten.elu.default, {"alpha": _NUMBERS, "scale": _NUMBERS, "input_scale": _NUMBERS}),
    "celu": (F.celu, {"alpha": st.sampled_from([0.5, 1.0, 2.0, -0.5])}),
    "selu": (F.selu, {}),
    "leaky_relu": (F.leaky_relu, {"negative_slope": _NUMBERS}),
    "hardtanh": (F.hardtanh, {"min_val": st.sampled_from([-2.0, -1.0, 0.0]), "max_val": st.sampled_from([0.5, 1.0, 6.0])}),
    "softplus": (F.softplus, {"beta": st.sampled_from([0.5, 1.0, 3.0, -1.0]), "threshold": st.sampled_from([1.0, 16.0, 20.0])}),
    "threshold": (F.threshold, {"threshold": _NUMBERS, "value": _NUMBERS}),
    "hardshrink": (F.hardshrink, {"lambd": _NUMBERS}),
    "softshrink": (F.softshrink, {"lambd": st.sampled_from([0.0, 0.5, 1.0])}),
    "gelu": (F.gelu, {"approximate": st.sampled_from(["none", "tanh"])}),
    "clamp": (torch.clamp, {"min": st.none() | _NUMBERS, "max": _NUMBERS}),
    "clamp from below": (torch.clamp, {"min": _NUMBERS}),
    "glu": (F.glu, {"dim": st.just(-1)}),
    "logit": (torch.logit, {"eps": st.sampled_from([0.01, 0.25])}),
    "round": (torch.round, {"decimals": st.sampled_from([0, 1, -1])}),
    "nan_to_num": (torch.nan_to_num, {"nan": _NUMBERS}),
    "pow": (torch.pow, {"exponent": st.sampled_from([-3, -2, -1, -0.5, 0, 0.5, 1, 2, 3, 4, 5, 1.5])}),
    **{name: (getattr(F, name), {}) for name in ("mish", "silu", "hardswish", "hardsigmoid", "softsign", "tanhshrink", "relu6", "logsigmoid")},
    **{name: (getattr(torch, name), {}) for name in ("sign", "trunc", "frac", "floor", "ceil", "square", "sinc", "erf", "expm1", "exp2")},
}  # fmt: skip


@st.composite
def activations(draw: Draw) -> Sample:
    """Functions of one tensor, with their numbers."""
    name = draw(st.sampled_from(sorted(_ACTIVATIONS)))
    function, options = _ACTIVATIONS[name]
    shape = _shape(draw)
    shape = (*shape[:-1], 2 * shape[-1]) if name == "glu" else shape
    return Sample(name, function, [shape], options={k: draw(v) for k, v in options.items()})


_BINARY: dict[str, tuple[Any, dict[str, st.SearchStrategy[Any]]]] = {
    "add": (torch.add, {"alpha": _NUMBERS}),
    "sub": (torch.sub, {"alpha": _NUMBERS}),
    "rsub": (torch.rsub, {"alpha": _NUMBERS}),
    "div": (torch.div, {"rounding_mode": st.sampled_from([None, "floor", "trunc"])}),
    "where": (lambda x, y: torch.where(x > y, x, y * 2), {}),
    "masked": (lambda x, y: x.masked_fill(y > 0, 7.0), {}),
    **{name: (getattr(torch, name), {}) for name in ("mul", "maximum", "minimum", "fmax", "fmin", "atan2", "remainder", "fmod")},
    **{f"{name} as numbers": (lambda x, y, f=getattr(torch, name): f(x, y).float(), {}) for name in ("eq", "lt", "ge", "ne")},
}  # fmt: skip


def _with_number(x: torch.Tensor, function: Any, number: float, **options: Any) -> torch.Tensor:
    return function(x, number, **options)


def _against(*inputs: torch.Tensor, function: Any, **options: Any) -> torch.Tensor:
    return function(*inputs, **options)


@st.composite
def binaries(draw: Draw) -> Sample:
    """Functions of two tensors that broadcast, of a tensor and a constant, or of a tensor and a number."""
    name = draw(st.sampled_from(sorted(_BINARY)))
    function, given = _BINARY[name]
    options: dict[str, Any] = {k: draw(v) for k, v in given.items()}
    shape = _shape(draw)
    with_numbers = ("add", "sub", "rsub", "div", "mul", "remainder", "fmod")
    how = draw(st.sampled_from(["tensor", "constant", *(["number"] if name in with_numbers else [])]))
    if how == "number":
        number = draw(st.sampled_from([0.5, 2, -3, 1.5]))
        return Sample(name, _with_number, [shape], options={"function": function, "number": number, **options})
    other = tuple(1 if draw(st.integers(0, 3)) == 0 else s for s in shape)[draw(st.integers(0, len(shape) - 1)) :]
    offset = len(shape) - len(other)
    if how == "constant":
        constant = weight(*other) * 2 + 1 / 16
        return Sample(name, _against, [shape], [constant], {"function": function, **options})
    tied = [((0, d + offset), (1, d)) for d, s in enumerate(other) if s == shape[d + offset] and s > 1]
    return Sample(name, _against, [shape, other], options={"function": function, **options}, tied=tied)


# -- products ----------------------------------------------------------------------------------------------------------


@st.composite
def products(draw: Draw) -> Sample:
    """Products of matrices, by a constant or by another input."""
    kind = draw(st.sampled_from(["linear", "matmul", "addmm", "baddbmm", "bilinear", "einsum", "attention"]))
    n, m, k, b = (draw(st.integers(1, 5)) for _ in range(4))
    options: dict[str, Any] = {"beta": draw(_NUMBERS), "alpha": draw(_NUMBERS)}
    constant = draw(_TRUTH)
    if kind == "linear":
        bias = [weight(m)] if draw(_TRUTH) else []
        return Sample(kind, F.linear, [(*_shape(draw, 0, 3), k)], [weight(m, k), *bias])
    if kind == "matmul":
        left = draw(st.sampled_from([(k,), (n, k), (b, n, k), (2, b, n, k), (2, 1, n, k)]))
        right = draw(st.sampled_from([(k,), (k, m), (b, k, m), (1, k, m)]))
        if constant:
            return Sample(kind, torch.matmul, [left], [weight(*right)])
        return Sample(kind, torch.matmul, [left, right])
    if kind == "addmm":
        term = draw(st.sampled_from([(m,), (n, m), (1, m), (n, 1)]))
        if constant:
            return Sample(
                kind, lambda x, c, w, **o: torch.addmm(c, x, w, **o), [(n, k)], [weight(*term), weight(k, m)], options
            )
        return Sample(kind, torch.addmm, [term, (n, k), (k, m)], options=options)
    if kind == "baddbmm":
        return Sample(
            kind, torch.baddbmm, [draw(st.sampled_from([(b, n, m), (1, m)])), (b, n, k), (b, k, m)], options=options
        )
    if kind == "bilinear":
        return Sample(kind, F.bilinear, [(n, k), (n, m)], [weight(b, k, m)])
    if kind == "einsum":
        return Sample(kind, lambda x, y: torch.einsum("bij,bkj->ikb", x, y), [(b, n, k), (b, m, k)])
    heads, channels = draw(st.sampled_from([1, 2, 4])), 4
    mask = draw(st.sampled_from([None, "float", "causal", "bool", "row"]))
    shapes = [(b, heads, n, channels), (b, heads, m, channels), (b, heads, m, channels)]
    chosen: dict[str, Any] = {"scale": draw(st.none() | st.just(0.5)), "kind": mask}
    constants = [weight(n, m)] if mask in ("float", "bool") else [weight(m)] if mask == "row" else []
    tied = [((0, 0), (1, 0), (2, 0)), ((1, 2), (2, 2))]
    return Sample(kind, _attention, shapes, constants, chosen, tied)


def _attention(q: Any, k: Any, v: Any, *mask: Any, scale: float | None, kind: str | None) -> torch.Tensor:
    given = (mask[0] > 0 if kind == "bool" else mask[0]) if mask else None
    return F.scaled_dot_product_attention(q, k, v, given, is_causal=kind == "causal", scale=scale)


FAMILIES = {
    "pools": pools(),
    "adaptive pools": adaptive_pools(),
    "convolutions": convolutions(),
    "pads": pads(),
    "resizes": resizes(),
    "shuffles": shuffles(),
    "reductions": reductions(),
    "norms": norms(),
    "places": places(),
    "activations": activations(),
    "binaries": binaries(),
    "products": products(),
}
