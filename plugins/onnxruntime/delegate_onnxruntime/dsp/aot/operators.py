"""The ONNX operators that QNN's provider runs on the HTP, with the dtypes that it supports for all their tensors.

Sources: https://github.com/onnxruntime/onnxruntime-qnn, docs/execution_providers/QNN-ExecutionProvider.md, and the
provider 2.7 itself, queried for each operator and dtype.

- The HTP truncates int64 to int32, so only indices run there. Sums and products of int32 saturate, so they do not.
- Its padded pools are wrong: averages of small images, and all windows of even sizes. So are averages of overlapping
  windows after a concatenation. Here averages are convolutions of each channel, except integers in disjoint windows.
- Its Pad is wrong before most operators but convolutions. So is a concatenation with constants in place of Pad.

Its quantization schemes are 8 bits, and activations of 16 bits with weights of 8. The HTP runs an operator in integers
if its operands and its result are encoded and computes everything else in float16.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch.fx import Node

from delegate.backend.inexact import returns_to_half
from delegate.backend.lowering import every
from delegate.backend.quantizable import INT8_WEIGHT, IntegerType, QuantizationScheme, QuantizedOperator
from delegate.edge.node import arguments, decodes, is_constant, tensor
from delegate.verdict import YES, Reason, Verdict, no
from delegate_onnxruntime.onnx.aot.translations import Operators
from delegate_onnxruntime.onnx.aot.translations.row import plain

_FLOAT = frozenset({torch.float32, torch.float16})
_NUMBER = _FLOAT | {torch.int32}
_BOOL = frozenset({torch.bool})
_QUANTIZED = frozenset({torch.int8, torch.uint8, torch.int16, torch.uint16})

OPERATORS: Operators = {
    **dict.fromkeys(
        (
            "Add", "Atan", "BatchNormalization", "Ceil", "Conv", "ConvTranspose", "Cos", "CumSum", "Elu",
            "Exp", "Floor", "Gelu", "Gemm", "GlobalAveragePool", "GridSample", "HardSigmoid", "HardSwish",
            "InstanceNormalization", "LayerNormalization", "LeakyRelu", "Log", "MatMul", "MaxPool", "Mul", "Neg",
            "PRelu", "Pad(reflect)", "Pow", "Reciprocal", "ReduceL2", "ReduceMean", "Relu", "Resize", "Round",
            "ScatterND(add)", "ScatterND(mul)", "Sigmoid", "Sign", "Sin", "Softmax", "Sqrt", "Sub", "Tanh", "TopK",
        ),
        _FLOAT,
    ),
    **dict.fromkeys(
        (
            "Abs", "ArgMax", "ArgMin", "Clip", "Div", "Equal", "GatherND", "Greater", "GreaterOrEqual", "Less",
            "LessOrEqual", "Max", "Min", "ReduceMax", "ReduceMin", "ReduceSum", "ScatterElements", "Tile", "Where",
        ),
        _NUMBER,
    ),
    **dict.fromkeys(
        (
            "Cast", "Concat", "Expand", "Gather", "GatherElements", "Reshape", "ScatterND", "Slice", "Split", "Squeeze",
            "Transpose", "Unsqueeze",
        ),
        _NUMBER | _BOOL,
    ),
    **dict.fromkeys(("And", "Or", "Not", "Xor"), _BOOL),
    "QuantizeLinear": _QUANTIZED | {torch.float32},
    "DequantizeLinear": _QUANTIZED | {torch.float32, torch.int32},
}  # fmt: skip


def _plain_transposed(node: Node) -> Verdict:
    """A transposed convolution has no groups, dilation or output_padding."""
    args = arguments(node)
    if not args["transposed"]:
        return YES
    if args["groups"] == 1 and all(d == 1 for d in args["dilation"]) and not any(args["output_padding"]):
        return YES
    what = ", ".join(f"{name}={args[name]}" for name in ("groups", "dilation", "output_padding"))
    return no(Reason.ATTRIBUTE, f"transposed with {what}")


def _no_long_steps(node: Node) -> Verdict:
    """A convolution from one channel to one has steps of at most 2: else QNN 2.7 returns uninitialised memory."""
    args, weight = arguments(node), tensor(node.all_input_nodes[1])
    single = weight.shape[:2] == (1, 1) and not args["transposed"]
    return _few_steps(args["stride"]) if single else YES


def _no_wide_padding(node: Node) -> Verdict:
    """A window of several pixels is larger than the padding of its side: else QNN 2.7 returns uninitialised memory."""
    args, window = arguments(node), tensor(node.all_input_nodes[1]).shape[2:]
    dilation, padding = (_each(args[name], len(window)) for name in ("dilation", "padding"))
    extents = [(size - 1) * step + 1 for size, step in zip(window, dilation, strict=True)]
    if max(window) > 1 and any(pad >= size for pad, size in zip(padding, extents, strict=True)):
        return no(Reason.INACCURATE, f"a window of {list(window)} with padding={list(args['padding'])}")
    return YES


def _each(values: Sequence[int], dimensions: int) -> Sequence[int]:
    """Return an argument of a convolution with a value per dimension; torch accepts a single value for all."""
    return list(values) * dimensions if len(values) == 1 else values


def _no_long_steps_of_averages(node: Node) -> Verdict:
    """An average over one channel has steps of at most 2: else QNN 2.7 returns uninitialised memory."""
    image, args = tensor(node.all_input_nodes[0]), arguments(node)
    if image.shape[-3] != 1:
        return YES
    if "output_size" in args:
        return _few_steps([a // b for a, b in zip(image.shape[-2:], args["output_size"], strict=True) if b != 1])
    return _few_steps(args["stride"] or args["kernel_size"])


def _few_steps(stride: Sequence[int]) -> Verdict:
    if max(stride, default=1) > 2:
        return no(Reason.INACCURATE, f"from one channel to one, with stride={list(stride)}")
    return YES


def _no_few_channels_of_bytes(node: Node) -> Verdict:
    """An 8-bit depthwise convolution is not one of the small ones that QNN 2.7 computes wrongly.

    These have windows of 1x1 or 2x2, a stride of 2x2, and 1 to 4 channels beyond a multiple of 32.
    """
    args, source = arguments(node), node.all_input_nodes[0]
    channels, each, *window = tensor(node.all_input_nodes[1]).shape
    is_of_bytes = decodes(source) and tensor(source.all_input_nodes[0]).dtype.itemsize == 1
    is_depthwise = not args["transposed"] and channels == args["groups"] > 1 and each == 1
    is_small = list(_each(args["stride"], len(window))) == [2, 2] and window in ([1, 1], [2, 2])
    if is_of_bytes and is_depthwise and is_small and 1 <= channels % 32 <= 4:
        what = f"{channels} channels apart in 8 bits, with a window of {window} and stride={args['stride']}"
        return no(Reason.INACCURATE, what)
    return YES


def _finite(node: Node) -> Verdict:
    """The value is finite: the HTP has no infinity."""
    value = arguments(node)["value"]
    return _no_infinity(node) if isinstance(value, float) and not math.isfinite(value) else YES


def _no_padded_volumes(node: Node) -> Verdict:
    """Less than 5 dimensions are padded: the pad chooses elements by a constant mask (`_no_mask_of_volumes`)."""
    widths = arguments(node)["pad"]
    is_wider = any(isinstance(width, int) and width > 0 for width in widths)
    return _no_volume(node) if is_wider else YES


def _no_mask_of_volumes(node: Node) -> Verdict:
    """A constant condition in 5 dimensions has the shape of the result: else QNN 2.7 reads wrong conditions."""
    condition = node.all_input_nodes[0]
    is_broadcast = is_constant(condition) and tensor(condition).shape != tensor(node).shape
    return _no_volume(node) if is_broadcast else YES


def _no_volume(node: Node) -> Verdict:
    rank = tensor(node).dim()
    return YES if rank < 5 else no(Reason.INACCURATE, f"chosen by a smaller constant mask in {rank} dimensions")


def _plain_pool(node: Node) -> Verdict:
    """A pool has 2 dimensions and no dilation, and steps exceed no window of several pixels: QNN 2.7 has no others."""
    source, args = node.all_input_nodes[0], arguments(node)
    if tensor(source).dim() != 4:
        return no(Reason.RANK, f"{source.name} has {tensor(source).dim()} dimensions, but QNN's pools have 4")
    dilation = args.get("dilation") or [1]
    if any(d != 1 for d in dilation):
        return no(Reason.ATTRIBUTE, f"dilation={list(dilation)}")
    window = args.get("kernel_size") or [1]
    step = args.get("stride") or window
    if max(window) > 1 and any(s > w for s, w in zip(step, window, strict=False)):
        return no(Reason.ATTRIBUTE, f"kernel_size={list(window)} with stride={list(step)}")
    return YES


def _no_infinity(node: Node) -> Verdict:
    """No node is supported: the HTP has neither NaN nor infinity, only its largest numbers."""
    return no(Reason.INACCURATE, "the HTP has neither NaN nor infinity")


def _bilinear(node: Node) -> Verdict:
    """The interpolation is bilinear: the HTP rounds coordinates half away from zero, where torch rounds to even."""
    mode = arguments(node)["interpolation_mode"]
    if mode == 1:
        return no(Reason.INACCURATE, "nearest: the HTP selects another pixel for coordinates in the middle of two")
    return YES if mode == 0 else no(Reason.ATTRIBUTE, "QNN does not sample bicubic")


def _by_sizes(node: Node) -> Verdict:
    """The factors are the quotients of the sizes, or corners are aligned: QNN resizes by sizes only."""
    args, old, new = arguments(node), tensor(node.all_input_nodes[0]).shape[2:], tensor(node).shape[2:]
    factors = args["scale_factors"] if "scale_factors" in args else [args["scales_h"], args["scales_w"]]
    if args.get("align_corners") or all(
        f is None or a * f == b for f, a, b in zip(factors or (), old, new, strict=False)
    ):
        return YES
    return no(Reason.INACCURATE, f"factors {list(factors)} from {list(old)} to {list(new)}")


def _no_gathered_images(node: Node) -> Verdict:
    """Several indices of a result with 4 dimensions start at dimension 0: else QNN 2.7 moves some widths wrongly."""
    places = [d for d, index in enumerate(arguments(node)["indices"]) if index is not None]
    if len(places) > 1 and places[0] > 0 and tensor(node).dim() > 3:
        return no(Reason.INACCURATE, f"indices of dimensions {places} in a result of {tensor(node).dim()}")
    return YES


def _require_other_cast(node: Node) -> Verdict:
    """No cast from floats to integers, which QNN 2.7 drops before a cast back; to float16 as in `returns_to_half`.

    QNN's float16 has no infinity and rounds ties away from zero.
    """
    new, old = tensor(node).dtype, tensor(node.all_input_nodes[0]).dtype
    if old.is_floating_point and not new.is_floating_point and new is not torch.bool:
        return no(Reason.INACCURATE, "QNN drops casts from floats to integers before casts back to floats")
    return returns_to_half(node)


def _small_power(node: Node) -> Verdict:
    """The exponent is -1, or a whole or a half number from 0.5 to 5: QNN 2.7 computes powers as 2**(exponent * log2).

    This formula wraps around beyond float16, whose log2 is from -24 to 16. It is wrong for 0, -0.0 and negative bases.
    """
    exponent = arguments(node)["exponent"]
    if exponent in (-1, 0.5) or power_factors(exponent):
        return YES
    return no(Reason.INACCURATE, f"the exponent {exponent}: {_WRAPS}")


def power_factors(exponent: object) -> tuple[int, bool] | None:
    """Return the number of bases that a power multiplies, and whether the root of the base is one more factor.

    Return None if the exponent is not a whole or half number from 1 to 5.
    """
    if not isinstance(exponent, int | float) or not 1 <= exponent <= 5 or exponent * 2 % 1:
        return None
    return int(exponent), bool(exponent % 1)


def _no_power(node: Node) -> Verdict:
    """No node is supported: on the HTP, powers beyond float16 wrap around, 0**0 is 0, and negative bases lose signs."""
    return no(Reason.INACCURATE, f"powers of tensors: {_WRAPS}")


def _positive_base(node: Node) -> Verdict:
    """The base is a positive number."""
    base = arguments(node)["self"]
    if isinstance(base, int | float) and 0 < base < math.inf:
        return YES
    return no(Reason.INACCURATE, f"powers of {base}: {_WRAPS}")


_WRAPS = "the HTP computes 2**(exponent * log2(base)), which wraps around beyond float16 and has no sign"
_POOLS = (
    "avg_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_avg_pool1d", "adaptive_avg_pool3d",
    "_adaptive_avg_pool3d", "adaptive_max_pool2d", "adaptive_max_pool3d",
)  # fmt: skip
_AVERAGES = ("avg_pool2d", "adaptive_avg_pool2d", "_adaptive_avg_pool2d")
LIMITS: Mapping[str, Callable[[Node], Verdict]] = {
    "aten.convolution.default": every(_plain_transposed, _no_long_steps, _no_wide_padding, _no_few_channels_of_bytes),
    "aten._to_copy.default": _require_other_cast,
    "aten.constant_pad_nd.default": every(_finite, _no_padded_volumes),
    "aten.where.self": _no_mask_of_volumes,
    "aten.addmm.default": plain(beta=1, alpha=1),
    "aten.grid_sampler_2d.default": _bilinear,
    "aten.pow.Tensor_Scalar": _small_power,
    "aten.pow.Tensor_Tensor": _no_power,
    "aten.pow.Scalar": _positive_base,
    "aten.index.Tensor": _no_gathered_images,
    **{f"aten.upsample_{mode}2d.{form}": _by_sizes for mode in ("bilinear", "nearest") for form in ("vec", "default")},
    **dict.fromkeys((f"aten.{name}.default" for name in _POOLS), _plain_pool),
    **dict.fromkeys((f"aten.{name}.default" for name in _AVERAGES), _no_long_steps_of_averages),
    **dict.fromkeys((f"aten.{name}.default" for name in ("isnan", "isinf")), _no_infinity),
}  # fmt: skip


# The rows of the schemes. Every operator here has a row in OPERATORS.

MAX_RANK = 5  # of the HTP's tensors
_CLAMPS = ("aten.relu.default", "aten.hardtanh.default")
UINT8 = IntegerType(torch.uint8, 0, 255)  # hardsigmoid is not taken in int8
UINT16 = IntegerType(torch.uint16, 0, 65535)  # products of two activations are not taken in int16


def _plain(node: Node) -> str:
    """Return the reason to reject a layer: a transposed convolution with groups, dilation or output_padding."""
    if "transpose" not in str(node.target):
        return ""
    args = arguments(node)
    is_unsupported = args["groups"] != 1 or any(d != 1 for d in args["dilation"]) or any(args["output_padding"])
    return "a transposed convolution with groups, dilation or output_padding" if is_unsupported else ""


def _few_dimensions(node: Node) -> str:
    dims = max(
        value.dim() for n in (node, *node.all_input_nodes) if isinstance(value := n.meta.get("val"), torch.Tensor)
    )
    return f"{dims} dimensions, but the HTP supports {MAX_RANK}" if dims > MAX_RANK else ""


def _rows(*names: str, inputs: tuple[int, ...] = (0,), moves: bool = False) -> list[QuantizedOperator]:
    return [QuantizedOperator(f"aten.{n}", inputs, moves=moves, accepts=_few_dimensions) for n in names]


ROWS = (
    QuantizedOperator("aten.convolution.default", weight=1, fuses=_CLAMPS, accepts=_plain),
    QuantizedOperator("aten.linear.default", weight=1, fuses=_CLAMPS),
    QuantizedOperator("aten.add.Tensor", (0, 1), fuses=_CLAMPS),
    *_rows("sub.Tensor", "mul.Tensor", "matmul.default", "bmm.default", inputs=(0, 1)),
    *_rows(
        "_adaptive_avg_pool2d.default", "avg_pool2d.default", "elu.default", "gelu.default", "hardsigmoid.default",
        "hardswish.default", "hardtanh.default", "layer_norm.default", "leaky_relu.default", "mean.dim", "relu.default",
        "sigmoid.default", "silu.default", "softmax.int", "sum.dim_IntList", "tanh.default",
    ),
    *_rows(
        "cat.default", "clone.default", "expand.default", "max_pool2d_with_indices.default", "permute.default",
        "select.int", "slice.Tensor", "split_with_sizes.default", "squeeze.dims", "transpose.int", "unsqueeze.default",
        "view.default", moves=True,
    ),
)  # fmt: skip

SCHEMES = (
    QuantizationScheme("static_int8", ROWS, UINT8, INT8_WEIGHT),
    QuantizationScheme("static_a16w8", ROWS, UINT16, INT8_WEIGHT),
)
