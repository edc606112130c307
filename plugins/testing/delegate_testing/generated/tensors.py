"""Samples of operators on tensors of any shape: elementwise functions, products, reductions and normalizations."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st

from delegate_testing.generated.sample import TRUTH, Draw, FunctionSample, dim_of, image, shape_of, weight

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
def activations(draw: Draw) -> FunctionSample:
    """Draw functions of one tensor, with their numbers."""
    name = draw(st.sampled_from(sorted(_ACTIVATIONS)))
    function, options = _ACTIVATIONS[name]
    shape = shape_of(draw)
    shape = (*shape[:-1], 2 * shape[-1]) if name == "glu" else shape
    return FunctionSample(name, function, [shape], options={k: draw(v) for k, v in options.items()})


_REMAINDERS = ("remainder", "fmod")
_BINARY: dict[str, tuple[Any, dict[str, st.SearchStrategy[Any]]]] = {
    "add": (torch.add, {"alpha": _NUMBERS}),
    "sub": (torch.sub, {"alpha": _NUMBERS}),
    "rsub": (torch.rsub, {"alpha": _NUMBERS}),
    "div": (torch.div, {"rounding_mode": st.sampled_from([None, "floor", "trunc"])}),
    "where": (lambda x, y: torch.where(x > y, x, y * 2), {}),
    "masked": (lambda x, y: x.masked_fill(y > 0, 7.0), {}),
    **{name: (getattr(torch, name), {}) for name in ("mul", "maximum", "minimum", "fmax", "fmin", "atan2")},
    # On a grid the quotient is no integer, where these jump, and 16 bits represent the operands.
    **{name: (lambda x, y, f=getattr(torch, name): f(x + 0.125, abs(y) + 0.25), {}) for name in _REMAINDERS},
    **{f"{name} as numbers": (lambda x, y, f=getattr(torch, name): f(x, y).float(), {}) for name in ("eq", "lt", "ge", "ne")},
}  # fmt: skip


def _with_number(x: torch.Tensor, function: Any, number: float, **options: Any) -> Any:
    return function(x, number, **options)


def _against(*inputs: torch.Tensor, function: Any, **options: Any) -> Any:
    return function(*inputs, **options)


@st.composite
def binaries(draw: Draw) -> FunctionSample:
    """Draw functions of two tensors that broadcast, of a tensor and a constant, or of a tensor and a number."""
    name = draw(st.sampled_from(sorted(_BINARY)))
    function, strategies = _BINARY[name]
    grid = name in _REMAINDERS
    options: dict[str, Any] = {k: draw(v) for k, v in strategies.items()}
    shape = shape_of(draw)
    with_numbers = ("add", "sub", "rsub", "div", "mul", "remainder", "fmod")
    how = draw(st.sampled_from(["tensor", "constant", *(["number"] if name in with_numbers else [])]))
    if how == "number":
        number = draw(st.sampled_from([0.5, 2, -3, 1.5]))
        return FunctionSample(
            name, _with_number, [shape], options={"function": function, "number": number, **options}, grid=grid
        )
    other = tuple(1 if draw(st.integers(0, 3)) == 0 else s for s in shape)[draw(st.integers(0, len(shape) - 1)) :]
    offset = len(shape) - len(other)
    if how == "constant":
        constant = weight(*other) * 2 + (0.0 if grid else 1 / 16)
        return FunctionSample(name, _against, [shape], [constant], {"function": function, **options}, grid=grid)
    tied = [((0, d + offset), (1, d)) for d, s in enumerate(other) if s == shape[d + offset] and s > 1]
    return FunctionSample(
        name, _against, [shape, other], options={"function": function, **options}, tied=tied, grid=grid
    )


@st.composite
def products(draw: Draw) -> FunctionSample:
    """Draw products of matrices with a constant or another input."""
    kind = draw(st.sampled_from(["linear", "matmul", "addmm", "baddbmm", "bilinear", "einsum", "attention"]))
    n, m, k, b = (draw(st.integers(1, 5)) for _ in range(4))
    options: dict[str, Any] = {"beta": draw(_NUMBERS), "alpha": draw(_NUMBERS)}
    constant = draw(TRUTH)
    if kind == "linear":
        bias = [weight(m)] if draw(TRUTH) else []
        return FunctionSample(kind, F.linear, [(*shape_of(draw, 0, 3), k)], [weight(m, k), *bias])
    if kind == "matmul":
        left = draw(st.sampled_from([(k,), (n, k), (b, n, k), (2, b, n, k), (2, 1, n, k)]))
        right = draw(st.sampled_from([(k,), (k, m), (b, k, m), (1, k, m)]))
        if constant:
            return FunctionSample(kind, torch.matmul, [left], [weight(*right)])
        return FunctionSample(kind, torch.matmul, [left, right])
    if kind == "addmm":
        term = draw(st.sampled_from([(m,), (n, m), (1, m), (n, 1)]))
        if constant:
            return FunctionSample(
                kind, lambda x, c, w, **o: torch.addmm(c, x, w, **o), [(n, k)], [weight(*term), weight(k, m)], options
            )
        return FunctionSample(kind, torch.addmm, [term, (n, k), (k, m)], options=options)
    if kind == "baddbmm":
        return FunctionSample(
            kind, torch.baddbmm, [draw(st.sampled_from([(b, n, m), (1, m)])), (b, n, k), (b, k, m)], options=options
        )
    if kind == "bilinear":
        return FunctionSample(kind, F.bilinear, [(n, k), (n, m)], [weight(b, k, m)])
    if kind == "einsum":
        return FunctionSample(kind, lambda x, y: torch.einsum("bij,bkj->ikb", x, y), [(b, n, k), (b, m, k)])
    heads, channels = draw(st.sampled_from([1, 2, 4])), 4
    mask = draw(st.sampled_from([None, "float", "causal", "bool", "row"]))
    shapes = [(b, heads, n, channels), (b, heads, m, channels), (b, heads, m, channels)]
    chosen: dict[str, Any] = {"scale": draw(st.none() | st.just(0.5)), "kind": mask}
    constants = [weight(n, m)] if mask in ("float", "bool") else [weight(m)] if mask == "row" else []
    tied = [((0, 0), (1, 0), (2, 0)), ((1, 2), (2, 2))]
    return FunctionSample(kind, _attention, shapes, constants, chosen, tied)


def _attention(q: Any, k: Any, v: Any, *mask: Any, scale: float | None, kind: str | None) -> torch.Tensor:
    attn_mask = (mask[0] > 0 if kind == "bool" else mask[0]) if mask else None
    return F.scaled_dot_product_attention(q, k, v, attn_mask, is_causal=kind == "causal", scale=scale)


_REDUCTIONS = ("sum", "mean", "amax", "amin", "logsumexp", "std", "var", "var_mean", "std_mean", "norm", "any", "all")
_ALONG_ONE = ("max", "min", "argmax", "argmin", "prod", "cumsum", "cumprod", "logcumsumexp", "cummax", "median", "sort")


@st.composite
def reductions(draw: Draw) -> FunctionSample:
    """Draw reductions along any dimensions, with and without keepdim."""
    shape = shape_of(draw)
    rank = len(shape)
    if draw(TRUTH):
        name = draw(st.sampled_from(_REDUCTIONS))
        options: dict[str, Any] = {
            "dim": draw(st.lists(st.integers(-rank, -1), min_size=1, max_size=rank, unique=True)),
            "keepdim": draw(TRUTH),
        }
        if name in ("std", "var", "var_mean", "std_mean"):
            options["correction"] = draw(st.sampled_from([0, 1, 2, 0.5]))
        if name == "norm":
            options["ord"] = draw(st.sampled_from([0, 1, 2, 3, 0.5, float("inf"), float("-inf")]))
            return FunctionSample(name, torch.linalg.vector_norm, [shape], options=options)
        if name in ("any", "all"):
            options["dim"] = options["dim"][0]
        return FunctionSample(name, getattr(torch, name), [shape], options=options)
    name = draw(st.sampled_from(_ALONG_ONE))
    options = {"dim": dim_of(draw, rank)}
    if name in ("max", "min", "argmax", "argmin", "prod", "median"):
        options["keepdim"] = draw(TRUTH)
    if name == "sort":
        options |= {"descending": draw(TRUTH), "stable": True}
    if name in ("argmax", "argmin") and draw(st.integers(0, 3)) == 0:
        options = {}
    return FunctionSample(name, getattr(torch, name), [shape], options=options)


def _group_norm(x: torch.Tensor, weight: Any = None, bias: Any = None, *, num_groups: int, eps: float) -> torch.Tensor:
    return F.group_norm(x, num_groups, weight, bias, eps)


def _layer_norm(
    x: torch.Tensor, weight: Any = None, bias: Any = None, *, shape: tuple[int, ...], eps: float
) -> torch.Tensor:
    return F.layer_norm(x, shape, weight, bias, eps)


def _rms_norm(x: torch.Tensor, weight: Any = None, *, shape: tuple[int, ...], eps: float | None) -> torch.Tensor:
    return F.rms_norm(x, shape, weight, eps)


def _batch_norm(
    x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor, weight: Any = None, bias: Any = None, *, eps: float
) -> torch.Tensor:
    return F.batch_norm(x, mean, var.abs() + 0.1, weight, bias, eps=eps)


def _instance_norm(x: torch.Tensor, weight: Any = None, bias: Any = None, *, eps: float) -> torch.Tensor:
    return F.instance_norm(x, None, None, weight, bias, eps=eps)


@st.composite
def norms(draw: Draw) -> FunctionSample:
    """Draw normalizations with and without weights."""
    kind = draw(st.sampled_from(["group", "layer", "rms", "batch", "instance", "softmax", "log", "min", "lp", "local"]))
    function: Any
    eps, used = draw(st.sampled_from([1e-5, 1e-3, 0.1])), draw(st.integers(0, 2))
    if kind in ("softmax", "log", "min", "lp"):
        shape = shape_of(draw)
        dim = dim_of(draw, len(shape))
        if kind == "lp":
            return FunctionSample(
                "normalize", F.normalize, [shape], options={"p": draw(st.sampled_from([1, 2, 3])), "dim": dim}
            )
        function = {"softmax": F.softmax, "log": F.log_softmax, "min": F.softmin}[kind]
        return FunctionSample(f"soft{kind}", function, [shape], options={"dim": dim})
    if kind in ("layer", "rms"):
        shape = shape_of(draw, 1, 4)
        own = shape[-draw(st.integers(1, len(shape))) :]
        used = min(used, 1) if kind == "rms" else used
        function = _layer_norm if kind == "layer" else _rms_norm
        weights = [weight(*own) for _ in range(used)]
        return FunctionSample(kind, function, [shape], weights, {"shape": own, "eps": eps})
    groups = draw(st.integers(1, 3))
    channels = groups * draw(st.integers(1, 3))
    shape = image(draw, draw(st.integers(1, 3)), 2, 5, channels)
    if kind == "local":
        options = {"size": draw(st.integers(1, 4)), "alpha": 0.1, "beta": draw(st.sampled_from([0.5, 0.75])), "k": 1.0}
        return FunctionSample("local_response_norm", F.local_response_norm, [shape], options=options)
    weights = [weight(channels) for _ in range(used)]
    if kind == "group":
        return FunctionSample(kind, _group_norm, [shape], weights, {"num_groups": groups, "eps": eps})
    if kind == "batch":
        return FunctionSample(kind, _batch_norm, [shape], [weight(channels), weight(channels), *weights], {"eps": eps})
    return FunctionSample(kind, _instance_norm, [shape], weights, {"eps": eps})
