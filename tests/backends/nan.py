"""Functions over NaN and infinities: what a backend gives for them is compared with what eager gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

INF, NAN = float("inf"), float("nan")
X = torch.tensor([[1.5, -2.0, NAN, 0.0], [INF, -INF, 3.0, -0.5], [NAN, INF, -1.0, 2.0], [80.0, -200.0, 1e3, -1e3]])
IMAGE = torch.arange(72.0).reshape(1, 2, 6, 6) - 40
IMAGE[0, 0, 1, 1], IMAGE[0, 1, 3, 3], IMAGE[0, 1, 5, 5] = NAN, INF, -INF
WEIGHT = torch.linspace(-1, 1, 54).reshape(3, 2, 3, 3)
# Without infinities, whose NaN hide what is lost.
FINITE = torch.where(X.isinf(), torch.tensor(7.0), X)
UNTIED = FINITE + torch.arange(16).reshape(4, 4) / 8
FINITE_IMAGE = torch.where(IMAGE.isinf(), torch.tensor(7.0), IMAGE)

Case = tuple[Callable[[Tensor], Any], Tensor]

ELEMENTWISE: Mapping[str, Case] = {
    **{
        name: (getattr(torch, name), X)
        for name in ("exp", "log", "log2", "log10", "sigmoid", "tanh", "sqrt", "relu", "abs", "neg", "round", "floor",
                     "rsqrt", "reciprocal", "square")
    },
    **{
        name: (getattr(F, name), X)
        for name in ("relu6", "hardtanh", "leaky_relu", "elu", "silu", "hardswish", "hardsigmoid", "mish",
                     "softplus", "logsigmoid")
    },
    **{
        name: (getattr(torch, name), FINITE)
        for name in ("ceil", "trunc", "frac", "sign", "sgn", "sin", "cos", "atan", "asinh", "erf", "isnan", "isfinite",
                     "celu", "selu")
    },
    **{
        name: (getattr(F, name), FINITE)
        for name in ("softshrink", "hardshrink", "tanhshrink", "softsign", "glu")
    },
    "gelu": (F.gelu, X.nan_to_num(NAN, 1e3, -1e3)),  # eager's of infinity is NaN on CPUs with AVX-512
    "prelu": (lambda x: F.prelu(x, torch.tensor([0.2])), FINITE),
    "threshold": (lambda x: F.threshold(x, 0.5, 2.0), FINITE),
    "a power": (lambda x: x.abs() ** 2.5, FINITE),
    "a power of each": (lambda x: x.abs().pow(x.flip(0)), FINITE.clamp(-4, 4)),
    "fmod": (lambda x: torch.fmod(x, 1.5), FINITE),
    "remainder": (lambda x: torch.remainder(x, 1.5), FINITE),
    "quotients": (lambda x: x / x.flip(1), FINITE),
    "times zero": (lambda x: x * 0, X),
    "between two": (lambda x: torch.lerp(x, x.flip(0), 0.3), FINITE),
    "maximum": (lambda x: torch.maximum(x, x.flip(1)), X),
    "maximum that broadcasts": (lambda x: torch.maximum(x[:1], x), X),
    "minimum": (lambda x: torch.minimum(x, x.flip(1)), X),
    "maximum of a constant": (lambda x: torch.maximum(torch.tensor(0.5), x), X),
    "fmax": (lambda x: torch.fmax(x, x.flip(1)), FINITE),
    "fmin": (lambda x: torch.fmin(x, x.flip(1)), FINITE),
    "clamp": (lambda x: x.clamp(-1, 2), X),
    "clamp from below": (lambda x: x.clamp(min=0), FINITE),
    "clamp from above": (lambda x: x.clamp(max=0), FINITE),
    "clamp between tensors": (lambda x: x.clamp(x.flip(0), torch.tensor([0.0])), X),
    "logaddexp": (lambda x: torch.logaddexp(x, x.flip(1)), FINITE),
}  # fmt: skip

COMPARED: Mapping[str, Case] = {
    **{
        f"{name} of {what}": (lambda x, name=name, other=other: getattr(torch, name)(x, other(x)), FINITE)
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
        for what, other in (("a number", lambda x: 1.0), ("a tensor", lambda x: x.flip(0)))
    },
    "truth": (lambda x: x.bool(), FINITE),
    "not": (lambda x: x.logical_not(), FINITE),
    "and": (lambda x: x.logical_and(x.flip(0)), FINITE),
    "or": (lambda x: x.logical_or(x.flip(0)), FINITE),
    "any": (lambda x: x.any(1), FINITE),
    "all": (lambda x: x.all(1), FINITE),
    "kept by a mask": (lambda x: torch.where(torch.eye(4) < 1, x, torch.zeros(())), X.flip(1)),
    "replaced": (lambda x: torch.where(x.isnan(), 0.0, x), FINITE),
    "nan_to_num": (lambda x: x.nan_to_num(), FINITE),
    "the sign decides": (lambda x: torch.where(x > 0, x, -x), FINITE),
}

REDUCED: Mapping[str, Case] = {
    **{
        f"{name} along {dim}": (lambda x, name=name, dim=dim: getattr(torch, name)(x, dim), x)
        for name, x in (*((n, X) for n in ("sum", "mean", "amax", "amin", "logsumexp", "softmax", "log_softmax")),
                        *((n, FINITE) for n in ("argmax", "argmin", "max", "min", "sort", "argsort", "cumsum",
                                                "cumprod", "prod", "var", "std")))
        for dim in (0, 1)
    },
    "max": (lambda x: x.max(), X),
    "argmax": (lambda x: x.argmax(), FINITE),
    "topk": (lambda x: x.topk(2, 1), UNTIED),
    "the least": (lambda x: x.topk(2, 1, largest=False), UNTIED),
    "max of a dimension": (lambda x: x.max(1, keepdim=True).values, X),
    "min of a dimension": (lambda x: x.min(1).values, X),
    **{
        f"norm {order}": (lambda x, order=order: torch.linalg.vector_norm(x, order, 1), FINITE)
        for order in (INF, -INF, 0, 1, 2)
    },
    **{
        f"scattered {what}": (lambda x, what=what: torch.zeros(4, 4).scatter_reduce(0, (x > 1).long(), x, what), FINITE)
        for what in ("amax", "amin", "sum", "mean")
    },
    "masked softmax": (lambda x: x.masked_fill(torch.ones(4, 4).tril() < 1, -INF).softmax(1), FINITE),
}  # fmt: skip

LAYERS: Mapping[str, Case] = {
    "max pool": (lambda x: F.max_pool2d(x, 2), IMAGE),
    "padded max pool": (lambda x: F.max_pool2d(x, 3, 2, 1), IMAGE),
    "max pool behind relu": (lambda x: F.max_pool2d(x.relu(), 3, 2, 1), IMAGE),
    "max pool in one dimension": (lambda x: F.max_pool1d(x[0], 2), FINITE_IMAGE),
    "max pool in three dimensions": (lambda x: F.max_pool3d(x, 2), FINITE_IMAGE),
    "global max pool": (lambda x: F.adaptive_max_pool2d(x, 1), FINITE_IMAGE),
    "adaptive max pool": (lambda x: F.adaptive_max_pool2d(x, 4), FINITE_IMAGE),
    "average pool": (lambda x: F.avg_pool2d(x, 2), IMAGE),
    "average pool with gaps": (lambda x: F.avg_pool2d(x, 1, 2), IMAGE),
    "max pool of one element": (lambda x: F.max_pool2d(x, 1, 2), IMAGE),
    "padded average pool": (lambda x: F.avg_pool2d(x, 3, 1, 1), IMAGE),
    "adaptive pool": (lambda x: F.adaptive_avg_pool2d(x, 3), IMAGE),
    "convolution": (lambda x: F.conv2d(x, WEIGHT, padding=1), FINITE_IMAGE),
    **{
        f"convolution and {name}": (lambda x, then=then: then(F.conv2d(x, WEIGHT, padding=1)), x)
        for name, x, then in (("relu", IMAGE, F.relu), ("relu6", FINITE_IMAGE, F.relu6),
                              ("hardswish", FINITE_IMAGE, F.hardswish), ("leaky relu", FINITE_IMAGE, F.leaky_relu),
                              ("max pool", FINITE_IMAGE, lambda y: F.max_pool2d(y.relu(), 2)))
    },
    "linear": (lambda x: F.linear(x, torch.eye(4)), FINITE),
    "linear and relu": (lambda x: F.linear(x, torch.eye(4)).relu(), FINITE),
    "linear of zeros": (lambda x: F.linear(x, torch.zeros(2, 4)), FINITE),
    "attention": (lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]), FINITE),
    "layer norm": (lambda x: F.layer_norm(x, (4,)), FINITE),
    "instance norm": (F.instance_norm, FINITE_IMAGE),
    "normalize": (F.normalize, FINITE),
    "bilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), FINITE_IMAGE),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), FINITE_IMAGE),
    "sampled at NaN": (
        lambda x: F.grid_sample(x, torch.tensor([[[[NAN, 0.0], [0.5, 0.0]]]]), align_corners=False),
        IMAGE.nan_to_num(0, 9, -9),
    ),
    "codebook": (lambda x: torch.cdist(x, torch.eye(4)).argmin(-1), FINITE),
}  # fmt: skip

CASES: Mapping[str, Case] = {**ELEMENTWISE, **COMPARED, **REDUCED, **LAYERS}
