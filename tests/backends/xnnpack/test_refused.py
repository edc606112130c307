"""Nodes that the support checks refuse, each with the reason."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

from delegate.verdict import Reason
from tests.backends.xnnpack.harness import refusal
from tests.support.functions import Function

X, IMAGE = torch.randn(2, 3, 4, 5), torch.randn(1, 4, 9, 9)
Q, LONG = torch.randn(2, 4, 6, 8), torch.randn(100, 2)
FLAG, SCORES = torch.rand(2, 6, 6) > 0.5, torch.randn(2, 6, 6)
INTEGERS = torch.arange(24).reshape(2, 3, 4)
N, T, H = {0: Dim("n", min=2, max=64)}, {1: Dim("t", min=4, max=64)}, {2: Dim("h", min=4, max=64)}
SLICES = {3: Dim("t", min=8, max=64)}, {3: Dim("s", min=4, max=7)}
TWO = {0: Dim("n", min=2, max=64), 1: 2 * Dim("half", min=2, max=64)}
attention = F.scaled_dot_product_attention
SDPA = "scaled_dot_product_attention"
NAN, INF = torch.nan, torch.inf

# Function or module, inputs, operator, reason, words of the message, dynamic dimensions.
REFUSED: dict[str, tuple[Any, ...]] = {
    "softplus with a step": (lambda x: F.softplus(x, 1, 2), X, "softplus", Reason.INACCURATE),
    "softplus that overflows": (lambda x: F.softplus(x, 1, 1e3), X, "softplus", Reason.INACCURATE),
    "softplus beyond NaN": (lambda x: F.softplus(x, 1, NAN), X, "softplus", Reason.INACCURATE),
    "softplus by 0": (lambda x: F.softplus(x, 0.0), X, "softplus", Reason.ATTRIBUTE),
    "softplus by 1e39": (lambda x: F.softplus(x, 1e39), X, "softplus", Reason.ATTRIBUTE),
    "denormal slope": (lambda x: F.leaky_relu(x, 1e-42), X, "leaky_relu", Reason.INACCURATE),
    "infinite elu": (lambda x: F.elu(x, INF), X, "elu", Reason.ATTRIBUTE),
    "elu of the negative": (lambda x: torch.ops.aten.elu(x, 1, 1, -1), X, "elu", Reason.ATTRIBUTE),
    "clamp from NaN": (lambda x: x.clamp(NAN, 1), X, "clamp", Reason.ATTRIBUTE),
    "hardtanh to NaN": (lambda x: F.hardtanh(x, -1, NAN), X, "hardtanh", Reason.ATTRIBUTE),
    "slope is an input": (F.prelu, (torch.randn(2, 3), torch.randn(3)), "prelu", Reason.NON_CONSTANT),
    "silu, double": (F.silu, X.double(), "silu", Reason.DTYPE),
    "sum of integers": (lambda x: x + x, INTEGERS, "add.Tensor", Reason.DTYPE),
    "exponential, double": (torch.exp, X.double(), "exp", Reason.DTYPE),
    "seven dimensions": (torch.neg, torch.ones(1, 1, 1, 1, 1, 1, 2), "neg", Reason.RANK),
    "empty": (torch.neg, torch.ones(2, 0), "neg", Reason.ATTRIBUTE),
    "odd power": (lambda x: x**2.5, X, "pow.Tensor_Scalar", Reason.ATTRIBUTE),
    "infinite power": (lambda x: x**INF, X, "pow.Tensor_Scalar", Reason.ATTRIBUTE),
    "power of NaN": (lambda x: x**NAN, X, "pow.Tensor_Scalar", Reason.ATTRIBUTE),
    "unknown operator": (torch.sign, X, "sign", Reason.OPERATOR),
    "floor of halves": (torch.floor, X.half(), "floor", Reason.INACCURATE),
    "ceil of halves": (torch.ceil, X.half(), "ceil", Reason.INACCURATE),
    "round of halves": (torch.round, X.half(), "round", Reason.INACCURATE),
    "product of vectors": (torch.matmul, (torch.randn(3), torch.randn(3, 2)), "matmul", Reason.RANK),
    # attention and masks
    "attention, double": (attention, (Q.double(), Q.double(), Q.double()), SDPA, Reason.DTYPE),
    "attention, dropout": (Function(attention, dropout_p=0.5), (Q, Q.clone(), Q.clone()), SDPA, Reason.ATTRIBUTE),
    "attention, broadcast": (attention, (Q, Q[:, :1], Q[:, :1]), SDPA, Reason.ATTRIBUTE),
    "attention of ranks": (attention, (Q, Q[0], Q[0]), SDPA, Reason.RANK),
    "attention, causal of unknown length": (
        Function(attention, is_causal=True), (Q, Q.clone(), Q.clone()), SDPA, Reason.DYNAMIC_SHAPE, "", (H, H, H),
    ),
    "NaN that is taken out": (
        lambda x, m: torch.where(m, x, 0.0) @ x.mT, (SCORES, FLAG), "where.self", Reason.INACCURATE,
    ),
    "NaN of rows without any key": (
        lambda x, m: (x @ x.mT).softmax(-1).masked_fill(m, 0.0), (SCORES, FLAG), "masked_fill.Scalar",
        Reason.INACCURATE,
    ),
    "mask between two values": (
        lambda x, m: torch.where(m, x @ x.mT, x.mT @ x).softmax(-1), (SCORES, FLAG), "where.self",
        Reason.NON_CONSTANT,
    ),
    "computed mask": (lambda x: torch.where(x > 0, x, x), X, "where.self", Reason.NON_CONSTANT),
    # convolutions
    "weight is an input": (
        torch.conv2d, (IMAGE, torch.randn(4, 4, 3, 3)), "convolution", Reason.NON_CONSTANT, "weight is computed",
    ),
    "convolution, 3d": (nn.Conv3d(2, 2, 3), torch.randn(1, 2, 5, 5, 5), "convolution", Reason.RANK, "5 dimensions"),
    "convolution, double": (nn.Conv2d(4, 4, 3).double(), IMAGE.double(), "convolution", Reason.DTYPE, "float64"),
    "transposed, grouped": (
        nn.ConvTranspose2d(4, 6, 3, groups=2), IMAGE, "convolution", Reason.ATTRIBUTE, "groups or dilation",
    ),
    "transposed, dilated": (
        nn.ConvTranspose2d(4, 6, 3, dilation=2), IMAGE, "convolution", Reason.ATTRIBUTE, "groups or dilation",
    ),
    # pools
    "indices of maxima": (
        lambda x: F.max_pool2d(x, 2, return_indices=True)[1], IMAGE, "max_pool2d_with_indices", Reason.ATTRIBUTE,
        "indices",
    ),
    "dilated pool": (
        lambda x: F.max_pool2d(x, 3, dilation=2), IMAGE, "max_pool2d_with_indices", Reason.ATTRIBUTE, "dilation",
    ),
    "stride beyond the window": (
        lambda x: F.max_pool2d(x, 2, 3), IMAGE, "max_pool2d_with_indices", Reason.ATTRIBUTE, "stride",
    ),
    "pool of a dynamic extent": (
        nn.MaxPool2d(3, 2, ceil_mode=True), IMAGE, "max_pool2d_with_indices", Reason.DYNAMIC_SHAPE, "ceil_mode",
        {2: Dim.AUTO, 3: Dim.AUTO},
    ),
    "uneven windows": (
        lambda x: F.adaptive_avg_pool2d(x, 40), IMAGE, "_adaptive_avg_pool2d", Reason.SLOWER, "unequal sizes",
    ),
    "maximum of windows": (lambda x: F.adaptive_max_pool2d(x, 2), IMAGE, "adaptive_max_pool2d", Reason.ATTRIBUTE),
    "pool without a batch": (lambda x: F.avg_pool2d(x[0], 2), IMAGE, "avg_pool2d", Reason.RANK, "3 dimensions"),
    # normalisations and reductions
    "layer norm, double": (nn.LayerNorm(5).double(), X.double(), "layer_norm", Reason.DTYPE),
    "running statistics": (nn.InstanceNorm2d(3, track_running_stats=True), X, "instance_norm", Reason.ATTRIBUTE),
    "softmax of seven": (nn.Softmax(0), torch.randn(1, 1, 1, 1, 1, 2, 2), "_softmax", Reason.RANK),
    "softmax of a number": (nn.Softmax(0), torch.tensor(1.0), "_softmax", Reason.RANK),
    "statistics of a norm": (
        lambda x: torch.native_layer_norm(x, [5], None, None, 1e-5), X, "native_layer_norm", Reason.ATTRIBUTE,
    ),
    "group norm of dynamic channels": (
        lambda x: F.group_norm(x, 1), IMAGE, "group_norm", Reason.DYNAMIC_SHAPE, "", T,
    ),
    "mean, double": (lambda x: x.mean(1), X.double(), "mean.dim", Reason.DTYPE),
    "sum into double": (lambda x: x.sum(1, dtype=torch.float64), X, "sum.dim_IntList", Reason.DTYPE),
    "maximum of integers": (lambda x: x.amax(1), INTEGERS, "amax", Reason.DTYPE),
    "positions of maxima": (lambda x: x.max(1), X, "max.dim", Reason.DTYPE),
    "norm of order 3": (lambda x: torch.linalg.vector_norm(x, 3), X, "linalg_vector_norm", Reason.ATTRIBUTE),
    "correction of dynamic": (lambda x: x.var(0), X, "var.correction", Reason.DYNAMIC_SHAPE, "", N),
    "variance of one": (lambda x: x[:1].var(0), X, "var.correction", Reason.DYNAMIC_SHAPE),
    # sizes of images
    "nearest of unknown": (
        Function(F.interpolate, scale_factor=2.0), IMAGE, "upsample_nearest2d.vec", Reason.DYNAMIC_SHAPE, "", H,
    ),
    "nearest of many": (
        Function(F.interpolate, size=(300, 301)), torch.randn(1, 1, 170, 171), "upsample_nearest2d.vec",
        Reason.SLOWER,
    ),
    "bilinear by a fraction": (
        Function(F.interpolate, scale_factor=1.3, mode="bilinear"), IMAGE, "upsample_bilinear2d.vec",
        Reason.INACCURATE,
    ),
    "bilinear of unknown": (
        Function(F.interpolate, scale_factor=2.0, mode="bilinear"), IMAGE, "upsample_bilinear2d.vec",
        Reason.DYNAMIC_SHAPE, "", H,
    ),
    "padding with a number": (Function(F.pad, (0, 0, 1, 1), value=2.0), X, "constant_pad_nd", Reason.ATTRIBUTE),
    "cut of unknown": (Function(F.pad, (0, 0, -1, 1)), IMAGE, "constant_pad_nd", Reason.DYNAMIC_SHAPE, "", H),
    "padding, double": (Function(F.pad, (1, 1)), X.double(), "constant_pad_nd", Reason.DTYPE),
    # parts
    "slice of integers": (lambda x: x[:, 1:], INTEGERS, "slice.Tensor", Reason.DTYPE),
    "step of unknown": (lambda x: x[:, ::2], IMAGE, "slice.Tensor", Reason.DYNAMIC_SHAPE, "", T),
    "end of unknown": (
        lambda x, y: x[..., : y.shape[3]], (IMAGE, IMAGE[..., :5].clone()), "slice.Tensor", Reason.DYNAMIC_SHAPE, "",
        SLICES,
    ),
    "step of six": (lambda x: x[..., ::2], torch.randn(1, 1, 1, 1, 2, 4), "slice.Tensor", Reason.RANK),
    "computed index": (lambda x, i: x[:, i], (X, torch.tensor([1, 2])), "index.Tensor", Reason.NON_CONSTANT),
    "boolean index": (lambda x: x[:, torch.tensor([True, False, True])], X, "index.Tensor", Reason.DTYPE),
    "points": (lambda x: x[[0, 1], [2, 1]], X, "index.Tensor", Reason.ATTRIBUTE),
    "long flip": (lambda x: x.flip(0), LONG, "flip", Reason.SLOWER),
    "flip of unknown": (lambda x: x.flip(1), IMAGE, "flip", Reason.DYNAMIC_SHAPE, "", T),
    "write to unknown": (
        lambda x: x.slice_scatter(x[:, :2].neg(), 1, 1, 3), IMAGE, "slice_scatter", Reason.DYNAMIC_SHAPE, "", T,
    ),
    "write to many": (lambda x: x.slice_scatter(x[:50].neg(), 0, step=2), LONG, "slice_scatter", Reason.SLOWER),
    "written integers": (lambda x: x.select_scatter(x[:, 0], 1, 1), INTEGERS, "select_scatter", Reason.DTYPE),
    "empty part": (lambda x: x.split([0, 3], 1), X, "split_with_sizes", Reason.ATTRIBUTE),
    # views
    "view of integers": (lambda x: x.view(24), INTEGERS, "view", Reason.DTYPE),
    "view of seven": (lambda x: x.view(1, 1, 2, 3, 4, 5, 1), X, "view", Reason.RANK),
    "view of two unknown": (
        lambda x: x.view(x.shape[0], x.shape[1] // 2, 2, 6), torch.randn(2, 4, 6), "view", Reason.DYNAMIC_SHAPE, "",
        TWO,
    ),
    "dynamic expand": (
        lambda x: x[:1].expand(x.shape[0], 3).exp(), torch.randn(2, 3), "expand", Reason.DYNAMIC_SHAPE, "", N,
    ),
    "view of nothing": (lambda x: x.view(0, 5), torch.empty(5, 0), "view", Reason.ATTRIBUTE),
    "permute, double": (lambda x: x.permute(1, 0), torch.randn(2, 3).double(), "permute", Reason.DTYPE),
    "cast to half": (lambda x: x.half(), X, "_to_copy", Reason.INACCURATE),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:method forward was exported in training mode", "ignore:var():UserWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    given, inputs, op, reason, *more = REFUSED[name]
    words, dims = (*more, *("", None)[len(more) :])
    module = given if isinstance(given, nn.Module) else Function(given)
    shapes = dims if dims is None or isinstance(dims, tuple) else (dims,)
    if shapes is not None and isinstance(module, Function):
        shapes = (shapes,)
    inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    verdict = refusal(module, inputs, f"aten.{op}" if "." in op else f"aten.{op}.default", shapes)
    assert verdict.reason is reason, str(verdict)
    assert verdict.message
    assert words in verdict.message
