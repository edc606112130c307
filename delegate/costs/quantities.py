"""What the seconds of a node depend on: its kind, its units of work, and the bytes that it moves.

The operations of a node are its multiply-adds, else its elements; operators that only change layouts have none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from torch.fx import Node

from delegate.edge.node import arguments, elements, is_compute, is_constant, nbytes, op_name, size, tensor, tensors
from delegate.edge.torch_private import HigherOrderOperator

PRODUCT, CONVOLUTION, POINTWISE = "product", "convolution", "1x1 convolution"
DEPTHWISE, WIDE_DEPTHWISE = "depthwise convolution", "wide depthwise convolution"
VOLUME, TRANSPOSED = "3-D convolution", "transposed convolution"
ATTENTION, SIMPLE, FUNCTION, REDUCTION = "attention", "simple", "function", "reduction"
SOFTMAX, NORM, GATHER, SCATTER, COPY, WINDOW, SORT = "softmax", "norm", "gather", "scatter", "copy", "window", "sort"
INDEX, ELEMENT_GATHER, SCAN, TOPK, RESIZE = "index", "element gather", "scan", "topk", "resize"
POWER = "power"  # and other functions that few libraries vectorize
SPECIAL = "special function"  # many operations for each element
SAMPLE, AVERAGE = "sample", "average"
PERMUTE = "permute"  # a view for the portable kernels, and a copy for others
VIEW = "view"

# The operators of each kind without their overloads and the namespace "aten.". Others are functions of each element.
OPERATORS = {
    PRODUCT: "linear mm bmm matmul addmm baddbmm lstm gru rnn_tanh rnn_relu",
    CONVOLUTION: "convolution conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d",
    ATTENTION: "scaled_dot_product_attention",
    SIMPLE: (
        "add sub mul div neg abs relu clamp clamp_min clamp_max minimum maximum where eq ne lt le gt ge logical_and "
        "logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not bitwise_xor square rsub leaky_relu "
        "hardtanh threshold masked_fill floor ceil round trunc sign full zeros ones arange full_like zeros_like "
        "ones_like scalar_tensor isnan _to_copy to hardsigmoid hardswish relu6 fill addcmul isinf"
    ),
    REDUCTION: (
        "sum mean amax amin var std prod any all argmax argmin max min norm linalg_vector_norm logsumexp var_mean"
    ),
    SOFTMAX: "softmax _softmax log_softmax _log_softmax",
    NORM: (
        "layer_norm native_layer_norm group_norm native_group_norm rms_norm instance_norm batch_norm "
        "_native_batch_norm_legit_no_training"
    ),
    GATHER: "embedding index_select embedding_bag _embedding_bag",
    INDEX: "index take",
    ELEMENT_GATHER: "gather take_along_dim",
    SCATTER: "scatter scatter_add scatter_reduce index_put index_add index_copy index_fill masked_scatter",
    COPY: (
        "clone contiguous cat stack pad constant_pad_nd reflection_pad1d reflection_pad2d roll "
        "flip replication_pad2d repeat select_scatter slice_scatter copy lift_fresh_copy pixel_shuffle "
        "pixel_unshuffle tril triu"
    ),
    WINDOW: (
        "max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d "
        "im2col col2im"
    ),
    AVERAGE: (
        "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d "
        "_adaptive_avg_pool2d _adaptive_avg_pool3d"
    ),
    RESIZE: (
        "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d "
        "_upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d "
        "_upsample_bilinear2d_aa upsample_bicubic2d _upsample_bicubic2d_aa upsample_trilinear3d"
    ),
    SORT: "sort argsort median kthvalue searchsorted bucketize nonzero histc",
    SCAN: "cumsum cumprod cummax cummin logcumsumexp",
    TOPK: "topk",
    POWER: "pow sin cos tan asin acos atan atan2 sinh cosh asinh acosh atanh log log2 log10 log1p expm1",
    SPECIAL: "erfinv erfc lgamma digamma polygamma i0 fmod remainder",
    SAMPLE: "grid_sampler_2d grid_sampler_3d",
    PERMUTE: "permute transpose t movedim swapaxes expand",
    VIEW: (
        "view _unsafe_view reshape squeeze unsqueeze slice select split split_with_sizes chunk unbind flatten "
        "unflatten alias detach narrow as_strided"
    ),
}  # fmt: skip
# How many times as long as others of its kind an operator takes on the portable kernels, which call NumPy step by step.
ON_KERNELS = {
    0.4: "tanh sqrt reciprocal argmax argmin any all rms_norm index_put upsample_nearest1d upsample_nearest2d fmod",
    2: (
        "relu relu6 clamp clamp_min clamp_max hardtanh leaky_relu sign softplus mish log_sigmoid logsumexp prod "
        "log_softmax _log_softmax tril roll constant_pad_nd"
    ),
    3: "triu var std var_mean gelu erf elu selu celu",
    4: "hardswish hardsigmoid glu",
}
BY_RESULT = frozenset({GATHER, INDEX, ELEMENT_GATHER, RESIZE, SPECIAL, SAMPLE})  # what they do not read takes no time
BY_ROW = frozenset({SOFTMAX, SORT, TOPK, SCAN})  # along one dimension, so that short rows take longer
LIKE = {PERMUTE: COPY, VOLUME: CONVOLUTION, TRANSPOSED: CONVOLUTION}  # a kind that was not measured -> a similar one
KINDS = (*OPERATORS, POINTWISE, DEPTHWISE, WIDE_DEPTHWISE, VOLUME, TRANSPOSED, FUNCTION)
_KIND_OF = {f"aten.{name}": kind for kind, names in OPERATORS.items() for name in names.split()}
_ON_KERNELS = {f"aten.{name}": factor for factor, names in ON_KERNELS.items() for name in names.split()}

_WORD = 4  # bytes of the numbers whose operations a rate counts; those of float64 take twice the time
_CACHE = 2**20  # bytes of a cache that is fast; only what a node moves beyond them costs by bytes
_NARROW = 25  # elements of a window for which libraries have a depthwise convolution of their own
_LANES = 16  # channels that vector instructions compute at once: with fewer, much of their work is thrown away
_EXPONENTIAL = 96  # multiply-adds that one exponential of attention takes as long as
# A word in the name of a resize -> the elements that it reads for one of its result.
_TAPS = {"nearest": 1, "trilinear": 8, "bilinear": 4, "linear": 2, "bicubic": 16}


class Quantities(NamedTuple):
    """What the seconds of a node depend on; see `Rate`.

    Args:
        kind: what its time depends on; a row of `OPERATORS` names those whose rates are alike.
        units: multiply-adds; or elements, times how often each is worked on.
        nbytes: the bytes that a product or a resize moves; those that another operator moves beyond a fast cache; or
            the rows of one that works row by row.
        on_kernels: how many times as long as others of its kind it takes on the portable kernels.
    """

    kind: str
    units: float
    nbytes: int
    on_kernels: float = 1.0


FREE = Quantities(VIEW, 0, 0)


def quantities_of(node: Node, nbytes: Callable[[Node], int]) -> Quantities:
    """Return what the seconds of a node depend on.

    Args:
        node: A node of an edge graph.
        nbytes: returns the bytes of a node's results.
    """
    if not is_compute(node) or isinstance(node.target, HigherOrderOperator):
        return FREE
    kind = kind_of(op_name(node))
    if kind == VIEW or (kind in (COPY, PERMUTE) and all(map(is_constant, node.all_input_nodes))):
        return FREE  # copies of weights are made when the program is loaded
    own, sources = nbytes(node), [nbytes(source) for source in node.all_input_nodes]
    if "expand" in op_name(node) and [own] == sources:
        return FREE
    moved = own + sum(sources)
    count = multiply_adds(node)
    if count is not None:
        args, units = arguments(node), count * max(tensors(node)[0].element_size() / _WORD, 1)
        if kind == CONVOLUTION:
            kind, units = _convolution_kind(args), units * (1 + _LANES / max(size(tensor(node).shape[1]), 1))
        elif kind == ATTENTION:
            units *= 1 + _EXPONENTIAL / max(sum(size(tensor(args[name]).shape[-1]) for name in ("query", "value")), 1)
        return Quantities(kind, units, moved)
    elements = (own if kind in BY_RESULT else max(own, *sources, 0)) / _WORD
    if kind in (WINDOW, AVERAGE) and "kernel_size" in (args := arguments(node)) and "im" not in op_name(node):
        elements = own / _WORD * math.prod(map(size, args["kernel_size"]))
    elif kind == RESIZE:
        elements *= _taps(node)
    elif kind in BY_ROW:
        return _by_row(kind, node)
    beyond = moved if kind == RESIZE else max(moved - _CACHE, 0)
    return Quantities(kind, elements, beyond, on_kernels(op_name(node)))


def kind_of(op: str) -> str:
    """Return the kind of an operator by its full name, e.g. "aten.add.Tensor"; convolutions are not yet told apart."""
    name = op.rpartition(".")[0]
    return _KIND_OF.get(name) or _KIND_OF.get(name.removesuffix("_copy"), FUNCTION)


def on_kernels(op: str) -> float:
    """Return how many times as long as others of its kind an operator takes on the portable kernels."""
    return _ON_KERNELS.get(op.rpartition(".")[0], 1.0)


def _convolution_kind(args: Mapping[str, Any]) -> str:
    """Return the kind of a convolution: transposed, depthwise, with a kernel of one element, 3-D, or any other."""
    weight, groups = tensor(args["weight"]), args.get("groups", 1)
    if args.get("transposed"):
        return TRANSPOSED
    if isinstance(groups, int) and groups > 1 and size(weight.shape[1]) == 1:
        return DEPTHWISE if math.prod(size(number) for number in weight.shape[2:]) <= _NARROW else WIDE_DEPTHWISE
    if all(size(number) == 1 for number in weight.shape[2:]):
        return POINTWISE
    return VOLUME if weight.dim() == 5 else CONVOLUTION


def _by_row(kind: str, node: Node) -> Quantities:
    """Return the elements and rows of what an operator works on along one dimension."""
    shape, dim = tensors(node.all_input_nodes[0])[0].shape, arguments(node).get("dim", -1)
    length = max(size(shape[dim]), 1) if shape and isinstance(dim, int) else 1
    elements = math.prod(map(size, shape))
    units = elements * (max(math.log2(length), 1) if kind == SORT else 1)
    return Quantities(kind, units, elements // length, on_kernels(op_name(node)))


def _taps(node: Node) -> float:
    """Return how many elements a resize reads for one of its result; antialiased ones read all that they shrink."""
    name = op_name(node)
    taps = next((count for word, count in _TAPS.items() if word in name), 1)
    if "_aa" not in name:
        return taps
    source = tensors(node.all_input_nodes[0])[0]
    return taps * max(math.prod(map(size, source.shape)) / max(math.prod(map(size, tensor(node).shape)), 1), 1)


_VIEW_OPERATORS = frozenset(
    f"aten.{name}"
    for name in (
        "view.default", "_unsafe_view.default", "reshape.default", "permute.default", "transpose.int", "t.default",
        "squeeze.default", "squeeze.dim", "squeeze.dims", "unsqueeze.default", "expand.default", "slice.Tensor",
        "select.int", "split.Tensor", "split_with_sizes.default", "chunk.default", "unbind.int", "flatten.using_ints",
        "unflatten.int", "alias.default", "detach.default", "view_copy.default", "permute_copy.default",
        "expand_copy.default", "slice_copy.Tensor", "select_copy.int", "squeeze_copy.dims", "unsqueeze_copy.default",
        "split_copy.Tensor", "split_with_sizes_copy.default", "unbind_copy.int", "alias_copy.default",
    )
)  # fmt: skip
_COPY_OPERATORS = frozenset(
    {"aten.clone.default", "aten.contiguous.default", "aten.lift_fresh_copy.default", "aten.detach_copy.default"}
)


def is_layout(node: Node) -> bool:
    """Return if the node only changes the layout of data; a partition of such nodes does no work."""
    name = op_name(node)
    return name in _VIEW_OPERATORS or name in _COPY_OPERATORS


def traffic(node: Node) -> int:
    """Return the bytes of the inputs and outputs of a node."""
    return sum(map(nbytes, node.all_input_nodes)) + nbytes(node)


def multiply_adds(node: Node) -> int | None:
    """Return the multiply-adds of a product, a convolution or attention; None for other operators."""
    count = _MULTIPLY_ADDS.get(op_name(node))
    return None if count is None else count(node)


def work(node: Node) -> int:
    """Return the estimated operations of a node: 2 per multiply-add, else 1 per element read or written.

    Views have none, and neither has control flow, since the nodes of its graphs are counted.
    """
    name = op_name(node)
    if name in _VIEW_OPERATORS or isinstance(node.target, HigherOrderOperator):
        return 0
    count = _MULTIPLY_ADDS.get(name)
    if count is not None:
        return 2 * count(node)
    read = sum(elements(t) for source in node.all_input_nodes for t in tensors(source))
    return read + sum(elements(t) for t in tensors(node))


def _convolution(node: Node) -> int:
    """Return the multiply-adds of a convolution: one filter per element of the result (transposed: of the input)."""
    args = arguments(node)
    weight = tensor(args["weight"])
    moved = tensor(args["input"]) if args.get("transposed") or "transpose" in op_name(node) else tensor(node)
    return elements(moved) * math.prod(size(s) for s in weight.shape[1:])


def _attention(node: Node) -> int:
    """Return the multiply-adds of attention on query (..., L, E), key (..., S, E) and value (..., S, V)."""
    args = arguments(node)
    query, key, value = (tensor(args[name]) for name in ("query", "key", "value"))
    rows = elements(query) // max(size(query.shape[-1]), 1)
    return rows * size(key.shape[-2]) * (size(query.shape[-1]) + size(value.shape[-1]))


def _product(argument: str, node: Node) -> int:
    """Return the multiply-adds of a matrix product over the last dimension of one argument."""
    left = tensor(arguments(node)[argument])
    return elements(tensor(node)) * (size(left.shape[-1]) if left.shape else 1)


def _recurrent(node: Node) -> int:
    """Return the multiply-adds of a recurrent layer: each weight once for each step and sequence."""
    args = arguments(node)
    steps = elements(tensor(args["input"])) // max(size(tensor(args["input"]).shape[-1]), 1)
    return steps * sum(elements(tensor(weight)) for weight in args["params"])


_MULTIPLY_ADDS: dict[str, Callable[[Node], int]] = {
    "aten.convolution.default": _convolution,
    "aten.conv1d.default": _convolution,
    "aten.conv2d.default": _convolution,
    "aten.conv3d.default": _convolution,
    "aten.conv_transpose2d.input": _convolution,
    "aten.linear.default": partial(_product, "input"),
    "aten.mm.default": partial(_product, "self"),
    "aten.bmm.default": partial(_product, "self"),
    "aten.matmul.default": partial(_product, "self"),
    "aten.addmm.default": partial(_product, "mat1"),
    "aten.baddbmm.default": partial(_product, "batch1"),
    "aten.scaled_dot_product_attention.default": _attention,
    **{f"aten.{name}.input": _recurrent for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
}
