"""Quantization and dequantization against torch's own definition of the operators."""

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # defines the operators

from tests.support.kernels import check, sample

quantized = torch.ops.quantized_decomposed
RANGES = {torch.int8: (-128, 127), torch.uint8: (0, 255), torch.int16: (-32768, 32767), torch.int32: (-500, 500)}
HALVES = torch.tensor([[0.5, 1.5, 2.5, -0.5, -1.5], [1e6, -1e6, 0.0, 3.3, -3.3]])


@pytest.mark.parametrize("dtype", RANGES, ids=str)
@pytest.mark.parametrize("scale", [1.0, 0.037])
def test_per_tensor(dtype, scale):
    arguments = (scale, 3, *RANGES[dtype], dtype)
    check(quantized.quantize_per_tensor.default, HALVES, *arguments)
    check(quantized.quantize_per_tensor.default, HALVES.bfloat16(), *arguments)
    check(quantized.dequantize_per_tensor.default, sample(3, 4, dtype=dtype), *arguments)
    check(quantized.dequantize_per_tensor.default, sample(3, 4, dtype=dtype), *arguments, out_dtype=torch.float16)


def test_per_tensor_with_parameters_in_tensors():
    scale, zero, low, high = (torch.tensor(v) for v in (0.05, 7, -128, 127))
    numbers, bits = sample(3, 4), sample(3, 4, dtype=torch.int8)
    check(quantized.quantize_per_tensor.tensor, numbers, scale, zero, -128, 127, torch.int8)
    check(quantized.quantize_per_tensor.tensor2, numbers, scale, zero, low, high, torch.int8)
    check(quantized.dequantize_per_tensor.tensor, bits, scale, zero, -128, 127, torch.int8)
    check(quantized.dequantize_per_tensor.tensor2, bits, scale, zero, low, high, torch.int8)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_per_channel(axis):
    numbers, bits = sample(3, 4, 5), sample(3, 4, 5, dtype=torch.int8)
    channels = numbers.shape[axis]
    scales, zeros = sample(channels).abs() + 0.01, torch.arange(channels) - 1
    check(quantized.quantize_per_channel.default, numbers, scales, zeros, axis, -128, 127, torch.int8)
    check(quantized.dequantize_per_channel.default, bits, scales, zeros, axis, -128, 127, torch.int8)
    check(quantized.dequantize_per_channel.default, bits, scales, None, axis, -128, 127, torch.int8)


@pytest.mark.parametrize("bits", [torch.int8, torch.uint8, torch.int16, torch.int32], ids=str)
@pytest.mark.parametrize("scale", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shift", [0, 5])
def test_dequantization_is_torchs_to_the_last_bit(bits, scale, shift):
    """Use float64 scales as PT2E does: torch multiplies in float64 and rounds the product."""
    low, high = RANGES[bits]
    x = torch.randint(low, high, (6, 40), dtype=bits)
    scales, zeros = torch.rand(6).to(scale) / 3 + 1e-3, torch.full((6,), shift)
    exact = {"rtol": 0, "atol": 0}
    for out in (torch.float32, torch.bfloat16):
        check(quantized.dequantize_per_channel.default, x, scales, zeros, 0, low, high, bits, out_dtype=out, **exact)
    check(quantized.dequantize_per_tensor.default, x, 0.1, shift, low, high, bits, **exact)
    if bits is torch.int8:
        groups, zeros = torch.rand(6, 5).to(scale) + 0.01, torch.full((6, 5), shift)
        arguments = (groups, zeros, low, high, bits, 8)
        check(quantized.dequantize_per_channel_group.default, x, *arguments, torch.float32, **exact)


@pytest.mark.parametrize("size", [1, 100_003])
@pytest.mark.parametrize("zero", [0, -7])
def test_quantization_of_any_size(size, zero):
    x = torch.linspace(-9, 9, size)
    check(quantized.quantize_per_tensor.default, x, 0.0371, zero, -128, 127, torch.int8)
    check(quantized.quantize_per_tensor.default, x.expand(3, size).T, 0.0371, zero, -128, 127, torch.int8)
    bits = torch.arange(size).to(torch.int8)
    check(quantized.dequantize_per_tensor.default, bits, 0.0371, zero, -128, 127, torch.int8, rtol=0, atol=0)


@pytest.mark.parametrize("depth", [1, 1024, 1025, 5000])
@pytest.mark.parametrize("value", [-128, 127])
def test_products_of_int8_are_exact(depth, value):
    left = torch.full((17, depth), value, dtype=torch.int8)
    check(torch.ops.aten._int_mm.default, left, torch.full((depth, 8), -128, dtype=torch.int8))
    unsigned = torch.full((17, depth), 255, dtype=torch.uint8)
    check(torch.ops.aten._int_mm.default, unsigned, torch.full((depth, 8), -128, dtype=torch.int8))
    check(torch.ops.aten._int_mm.default, sample(17, depth, dtype=torch.int8), sample(depth, 8, dtype=torch.int8))


def test_per_token():
    numbers, bits = sample(3, 4, 8), sample(3, 4, 8, dtype=torch.int8)
    check(quantized.choose_qparams_per_token.default, numbers, torch.int8)
    check(quantized.choose_qparams_per_token_asymmetric.default, numbers, torch.int8)
    scales, zeros = quantized._choose_qparams_per_token_asymmetric_impl(numbers, torch.int8)
    check(quantized.quantize_per_token.default, numbers, scales, zeros, -128, 127, torch.int8)
    check(quantized.dequantize_per_token.default, bits, scales, zeros, -128, 127, torch.int8, torch.float32)


def test_per_group():
    scales, zeros = sample(4, 2).abs() + 0.01, torch.arange(8).reshape(4, 2)
    check(quantized.quantize_per_channel_group.default, sample(4, 8), scales, zeros, -8, 7, torch.int8, 4)
    bits = sample(4, 8, dtype=torch.int8)
    for zero_points in (zeros, None):
        check(
            quantized.dequantize_per_channel_group.default,
            bits,
            scales,
            zero_points,
            -8,
            7,
            torch.int8,
            4,
            torch.float32,
        )


@pytest.mark.parametrize("shift", [0.0, 20.0, -20.0])
def test_choosing_parameters(shift):
    x = sample(4, 5) + shift
    check(quantized.choose_qparams.tensor, x, -128, 127, 1e-5, torch.int8)
    check(quantized.choose_qparams.tensor, x, 0, 255, 1e-5, torch.uint8)
    check(quantized.choose_qparams_symmetric.tensor, x, -127, 127, 1e-5, torch.int8)
