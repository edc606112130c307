"""The ATen operators that the backend converts correctly: one row per operator, each confirmed by a test.

Most conversions come from TVM's importer for torch (`tvm.relax.frontend.torch`, 0.27). It ignores arguments that it
does not support, so the check of a row must reject them. Operators with other faults have no row, or their own
conversion in `conversions.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.fx import Node

from delegate.backend.lowering import Check, Lowering, LoweringTable, anything, first_result_only, no_nan, one_index
from delegate.backend.resizing import keeps_operator
from delegate.edge.node import arguments, tensor
from delegate.verdict import YES, Reason, Verdict, no

_FLOATS = frozenset({torch.float32, torch.float16, torch.bfloat16})
_INTS = frozenset({torch.int32, torch.int64})
_BOOL = frozenset({torch.bool})
_ANY = _FLOATS | _INTS | _BOOL


def _no_alpha(node: Node) -> Verdict:
    """The factor alpha is 1."""
    alpha = arguments(node)["alpha"]
    return YES if alpha == 1 else no(Reason.ATTRIBUTE, f"alpha={alpha}")


def _some_factor(node: Node) -> Verdict:
    """One of beta and alpha is not 0: TVM's importer fails if both are."""
    args = arguments(node)
    return YES if args["beta"] or args["alpha"] else no(Reason.ATTRIBUTE, "beta=0 and alpha=0")


def _has_unit_scales(node: Node) -> Verdict:
    """The scale and the input_scale are 1, and alpha is finite."""
    args = arguments(node)
    if args["scale"] == args["input_scale"] == 1 and abs(args["alpha"]) < 1e38:
        return YES
    return no(Reason.ATTRIBUTE, ", ".join(f"{name}={args[name]}" for name in ("alpha", "scale", "input_scale")))


def _own_divisor(node: Node) -> Verdict:
    """The operator has no divisor_override."""
    divisor = arguments(node)["divisor_override"]
    return YES if divisor is None else no(Reason.ATTRIBUTE, f"divisor_override={divisor}")


def _whole_factor(node: Node) -> Verdict:
    """Sizes grow by whole factors, for which TVM reads the same pixels as torch."""
    old, new = tensor(node.all_input_nodes[0]).shape[2:], tensor(node).shape[2:]
    if all(m % g == 0 for g, m in zip(old, new, strict=True)) and keeps_operator(node):
        return YES
    return no(Reason.ATTRIBUTE, f"{list(old)} to {list(new)} is not a whole factor, and rounds differently from torch")


def _two_tensors(node: Node) -> Verdict:
    """The operands differ: TVM assumes that a tensor equals itself, but NaN does not."""
    if node.args[0] is not node.args[1] or not tensor(node.all_input_nodes[0]).dtype.is_floating_point:
        return YES
    return no(Reason.INACCURATE, "TVM assumes that a tensor equals itself, but NaN does not")


def _fills(node: Node) -> Verdict:
    """The source certainly has the sizes of the part: nothing checks them when it runs."""
    args = arguments(node)
    whole, part = (tensor(args[name]).shape for name in ("self", "src"))
    cut = args["dim"] % len(whole)
    for dim, (size, other) in enumerate(zip(whole, part, strict=True)):
        known = isinstance(size, int) and isinstance(other, int) if dim == cut else str(size) == str(other)
        if not known:
            return no(Reason.DYNAMIC_SHAPE, f"{other} is written to a part of {size} in dimension {dim}")
    return YES


def _attention(node: Node) -> Verdict:
    """The operands have four dimensions, without dropout or grouped heads."""
    args = arguments(node)
    for name, plain in (("dropout_p", 0.0), ("enable_gqa", False)):
        if args.get(name) not in (plain, None):
            return no(Reason.ATTRIBUTE, f"{name}={args[name]}")
    if args["is_causal"] and args["attn_mask"] is not None:
        return no(Reason.ATTRIBUTE, "is_causal=True with a mask")
    ranks = {tensor(args[name]).dim() for name in ("query", "key", "value")}
    return YES if ranks == {4} else no(Reason.RANK, f"{max(ranks)} dimensions, not 4")


@dataclass(frozen=True, slots=True)
class Conversion:
    """The properties of a row for TVM.

    Args:
        moves: the operator only moves elements, without arithmetic.
        products: its operands that are multiplied and summed up; option `precision` applies to them.
    """

    moves: bool = False
    products: tuple[str, ...] = ()


Row = Lowering[Conversion]


def _rows(
    *ops: str,
    dtypes: frozenset[torch.dtype] = _FLOATS,
    check: Check = anything,
    keep: bool = False,
    moves: bool = False,
    products: tuple[str, ...] = (),
) -> tuple[Row, ...]:
    """Return rows that differ only in their operators."""
    return tuple(Lowering(f"aten.{op}", check, Conversion(moves, products), keep, dtypes) for op in ops)


def _name(overload: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{name}.{overload}" for name in names)


_COMPARE = ("eq", "ne", "gt", "ge", "lt", "le")
_ROWS = (
    *_rows(
        *_name(
            "default", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "cos", "cosh",
            "cumsum", "erf", "exp", "floor", "leaky_relu", "log", "log10", "log2", "reciprocal", "relu",
            "round", "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh", "trunc", "amax", "amin", "_softmax",
            "_log_softmax", "_adaptive_avg_pool2d",
        ),
        "mul.Scalar", "div.Tensor", "div.Scalar", "fmod.Tensor", "fmod.Scalar", "remainder.Tensor", "remainder.Scalar",
        "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "clamp.Tensor", "sum.dim_IntList", "mean.dim",
        "var.correction",
    ),
    *_rows(
        *_name(
            "default", "adaptive_avg_pool2d", "gelu", "hardsigmoid", "hardswish", "layer_norm", "prelu", "silu",
            "softplus",
        ),
        *_name("vec", "upsample_bilinear2d", "upsample_bicubic2d"),
        keep=True,
    ),
    *_rows(
        *_name("default", "abs", "neg", "sign", "maximum", "minimum", "argmax", "argmin"),
        "mul.Tensor",
        dtypes=_FLOATS | _INTS,
    ),
    *_rows("add.Tensor", "sub.Tensor", dtypes=_FLOATS | _INTS, check=_no_alpha),
    *_rows("add.Scalar", "sub.Scalar", check=_no_alpha),
    *_rows(*_name("Tensor", *_COMPARE), dtypes=_ANY, check=_two_tensors),
    *_rows(*_name("Scalar", *_COMPARE), *_name("default", "isnan", "isinf"), dtypes=_FLOATS | _BOOL),
    *_rows(
        *_name("default", "logical_not", "logical_and", "logical_or", "logical_xor", "bitwise_not"),
        "any.dim",
        dtypes=_BOOL,
    ),
    *_rows(*_name("Tensor", "bitwise_and", "bitwise_or", "bitwise_xor"), dtypes=_BOOL | _INTS),
    *_rows("elu.default", check=_has_unit_scales),
    *_rows("clamp.default", "hardtanh.default", check=no_nan),
    *_rows("mm.default", "bmm.default", products=("self", "mat2")),
    *_rows("addmm.default", products=("mat1", "mat2"), check=_some_factor),
    *_rows("baddbmm.default", products=("batch1", "batch2"), keep=True),
    *_rows("matmul.default", products=("self", "other"), keep=True),
    *_rows("linear.default", products=("input", "weight"), keep=True),
    *_rows("convolution.default", products=("input", "weight")),
    *_rows(
        "scaled_dot_product_attention.default",
        products=("query", "key", "value"), dtypes=_FLOATS | _BOOL, check=_attention, keep=True,
    ),
    *_rows("avg_pool2d.default", check=_own_divisor),
    *_rows(
        *_name(
            "default", "max_pool2d_with_indices", "native_layer_norm", "native_group_norm",
            "_native_batch_norm_legit_no_training",
        ),
        check=first_result_only,
    ),
    *_rows("upsample_nearest2d.vec", check=_whole_factor, keep=True),
    *_rows(
        *_name(
            "default", "view", "expand", "permute", "unsqueeze", "cat", "split_with_sizes", "constant_pad_nd",
            "embedding", "index_select", "flip", "repeat", "clone",
        ),
        "squeeze.dims", "slice.Tensor", "select.int", "where.self",
        dtypes=_ANY,
        moves=True,
    ),
    *_rows("_to_copy.default", dtypes=_ANY, moves=True),
    *_rows("index.Tensor", dtypes=_ANY, check=one_index, moves=True),
    *_rows("slice_scatter.default", dtypes=_ANY, check=_fills, moves=True),
    *_rows("tril.default", "triu.default", dtypes=_FLOATS | _INTS, keep=True, moves=True),
    *_rows("masked_fill.Scalar", dtypes=_FLOATS | _BOOL, keep=True, moves=True),
)  # fmt: skip
TABLE: LoweringTable[Conversion] = LoweringTable(_ROWS)

# TVM's maxima are those of C, of which one operand's NaN is lost; its images are read at one place where a weight is 0.
LOSING_NAN = frozenset(
    f"aten.{name}"
    for name in (
        *("amax.default", "amin.default", "argmax.default", "argmin.default", "upsample_bilinear2d.vec"),
        *("max_pool2d.default", "max_pool2d_with_indices.default"),
    )
)
