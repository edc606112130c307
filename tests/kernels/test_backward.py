"""Gradient kernels against torch."""

import pytest
import torch

import delegate
from delegate.testing import assert_same
from tests.support.kernels import check, sample

aten = torch.ops.aten
ALL = [True, True, True]

CONVOLUTIONS = {
    "1d": ((2, 4, 9), (6, 4, 3), [1], [0], [1], False, [0], 1),
    "2d": ((2, 4, 7, 8), (6, 4, 3, 2), [2, 1], [1, 0], [1, 2], False, [0, 0], 1),
    "3d": ((1, 2, 5, 5, 5), (3, 2, 2, 3, 1), [1, 2, 1], [0, 1, 0], [1, 1, 1], False, [0, 0, 0], 1),
    "grouped": ((2, 4, 7, 7), (6, 2, 3, 3), [2, 2], [1, 1], [1, 1], False, [0, 0], 2),
    "depthwise": ((1, 4, 7, 7), (4, 1, 3, 3), [1, 1], [1, 1], [1, 1], False, [0, 0], 4),
    "transposed": ((2, 4, 5, 6), (4, 3, 3, 2), [2, 3], [1, 0], [1, 2], True, [1, 0], 1),
    "transposed grouped": ((1, 4, 5, 5), (4, 3, 3, 3), [2, 2], [1, 1], [1, 1], True, [0, 0], 2),
}


@pytest.mark.parametrize("mask", [ALL, [False, True, False]], ids=str)
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolution(case, mask):
    shape, kernel, stride, padding, dilation, transposed, output_padding, groups = CONVOLUTIONS[case]
    x, weight = sample(*shape), sample(*kernel, seed=1)
    options = (stride, padding, dilation, transposed, output_padding, groups)
    grad = sample(*aten.convolution(x, weight, None, *options).shape, seed=2)
    channels = kernel[1] * groups if transposed else kernel[0]
    check(aten.convolution_backward.default, grad, x, weight, [channels], *options, mask, rtol=1.6e-5, atol=1.6e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("weighted", [True, False])
def test_layer_norm(weighted, dtype):
    x, grad = sample(3, 4, 5, dtype=dtype), sample(3, 4, 5, dtype=dtype, seed=1)
    weight, bias = (sample(4, 5, dtype=dtype), sample(4, 5, dtype=dtype)) if weighted else (None, None)
    _, mean, rstd = aten.native_layer_norm(x, [4, 5], weight, bias, 1e-5)
    mask = [True, weighted, weighted]
    check(aten.native_layer_norm_backward.default, grad, x, [4, 5], mean, rstd, weight, bias, mask, atol=1e-4)


@pytest.mark.parametrize("weighted", [True, False])
def test_group_norm(weighted):
    x, grad = sample(3, 6, 4, 5), sample(3, 6, 4, 5, seed=1)
    weight, bias = (sample(6), sample(6)) if weighted else (None, None)
    _, mean, rstd = aten.native_group_norm(x, weight, bias, 3, 6, 20, 2, 1e-5)
    mask = [True, weighted, weighted]
    check(aten.native_group_norm_backward.default, grad, x, mean, rstd, weight, 3, 6, 20, 2, mask, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("size", "count"), [((2, 3, 7, 9), (3, 4)), ((3, 4, 4), (4, 1)), ((1, 2, 3, 3), (5, 2))])
def test_adaptive_avg_pool(size, count, dtype):
    grad = sample(*size[:-2], *count, dtype=dtype)
    check(
        aten._adaptive_avg_pool2d_backward.default,
        grad,
        sample(*size, dtype=dtype),
        atol=2e-2 if dtype is torch.bfloat16 else None,
    )


AVERAGES = [
    ([3, 2], [2, 2], [1, 1], False, True, None),
    ([3, 2], [2, 2], [1, 1], True, False, None),
    ([2, 2], [], [0, 0], True, True, 3),
    ([3, 3], [2, 1], [1, 0], True, True, None),
]


@pytest.mark.parametrize("options", AVERAGES, ids=str)
def test_avg_pool(options):
    x = sample(2, 3, 7, 8)
    grad = sample(*aten.avg_pool2d(x, *options).shape, seed=1)
    check(aten.avg_pool2d_backward.default, grad, x, *options)


@pytest.mark.parametrize("shape", [(2, 3, 7, 8), (3, 6, 5)])
def test_max_pool(shape):
    options = ([3, 3], [2, 1], [1, 1], [1, 1], True)
    values, indices = aten.max_pool2d_with_indices(sample(*shape), *options)
    grad = sample(*values.shape, seed=1)
    check(aten.max_pool2d_with_indices_backward.default, grad, sample(*shape), *options, indices)


@pytest.mark.parametrize("by_frequency", [True, False])
@pytest.mark.parametrize("padding_idx", [-1, 2])
def test_embedding(padding_idx, by_frequency):
    indices = torch.tensor([[0, 2, 2], [5, 0, 0]])
    check(aten.embedding_dense_backward.default, sample(2, 3, 4), indices, 7, padding_idx, by_frequency)


@pytest.mark.parametrize("kernels", ["portable", "aten"])
@pytest.mark.parametrize("mask", [[False, True, True], [False, True, False], [True, False, True], ALL], ids=str)
def test_gradients_that_nobody_wants(mask, kernels):
    """Check that a program has only the other gradients, each in its place."""

    class Gradients(torch.nn.Module):
        def forward(self, grad, x, weight):
            gradients = aten.convolution_backward(grad, x, weight, [6], [1], [0], [1], False, [0], 1, mask)
            return tuple(g for g, used in zip(gradients, mask, strict=True) if used)

    inputs = (sample(2, 6, 7, seed=2), sample(2, 4, 9), sample(6, 4, 3, seed=1))
    program = delegate.to_backend(torch.export.export(Gradients(), inputs), [], kernels=kernels)
    for mine, theirs in zip(program(*inputs), Gradients()(*inputs), strict=True):
        assert_same(mine, theirs)
