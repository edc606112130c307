"""Samples of reductions and normalizations."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st

from delegate.testing.generated.sample import TRUTH, Draw, Sample, dim_of, image, shape_of, weight

_REDUCTIONS = ("sum", "mean", "amax", "amin", "logsumexp", "std", "var", "var_mean", "std_mean", "norm", "any", "all")
_ALONG_ONE = ("max", "min", "argmax", "argmin", "prod", "cumsum", "cumprod", "logcumsumexp", "cummax", "median", "sort")


@st.composite
def reductions(draw: Draw) -> Sample:
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
            return Sample(name, torch.linalg.vector_norm, [shape], options=options)
        if name in ("any", "all"):
            options["dim"] = options["dim"][0]
        return Sample(name, getattr(torch, name), [shape], options=options)
    name = draw(st.sampled_from(_ALONG_ONE))
    options = {"dim": dim_of(draw, rank)}
    if name in ("max", "min", "argmax", "argmin", "prod", "median"):
        options["keepdim"] = draw(TRUTH)
    if name == "sort":
        options |= {"descending": draw(TRUTH), "stable": True}
    if name in ("argmax", "argmin") and draw(st.integers(0, 3)) == 0:
        options = {}
    return Sample(name, getattr(torch, name), [shape], options=options)


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
def norms(draw: Draw) -> Sample:
    """Draw normalizations with and without weights."""
    kind = draw(st.sampled_from(["group", "layer", "rms", "batch", "instance", "softmax", "log", "min", "lp", "local"]))
    function: Any
    eps, used = draw(st.sampled_from([1e-5, 1e-3, 0.1])), draw(st.integers(0, 2))
    if kind in ("softmax", "log", "min", "lp"):
        shape = shape_of(draw)
        dim = dim_of(draw, len(shape))
        if kind == "lp":
            return Sample(
                "normalize", F.normalize, [shape], options={"p": draw(st.sampled_from([1, 2, 3])), "dim": dim}
            )
        function = {"softmax": F.softmax, "log": F.log_softmax, "min": F.softmin}[kind]
        return Sample(f"soft{kind}", function, [shape], options={"dim": dim})
    if kind in ("layer", "rms"):
        shape = shape_of(draw, 1, 4)
        own = shape[-draw(st.integers(1, len(shape))) :]
        used = min(used, 1) if kind == "rms" else used
        function = _layer_norm if kind == "layer" else _rms_norm
        weights = [weight(*own) for _ in range(used)]
        return Sample(kind, function, [shape], weights, {"shape": own, "eps": eps})
    groups = draw(st.integers(1, 3))
    channels = groups * draw(st.integers(1, 3))
    shape = image(draw, draw(st.integers(1, 3)), 2, 5, channels)
    if kind == "local":
        options = {"size": draw(st.integers(1, 4)), "alpha": 0.1, "beta": draw(st.sampled_from([0.5, 0.75])), "k": 1.0}
        return Sample("local_response_norm", F.local_response_norm, [shape], options=options)
    weights = [weight(channels) for _ in range(used)]
    if kind == "group":
        return Sample(kind, _group_norm, [shape], weights, {"num_groups": groups, "eps": eps})
    if kind == "batch":
        return Sample(kind, _batch_norm, [shape], [weight(channels), weight(channels), *weights], {"eps": eps})
    return Sample(kind, _instance_norm, [shape], weights, {"eps": eps})
