"""The kind of each operator, by what its time depends on: a row names the operators whose rates are alike."""

from __future__ import annotations

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


def kind_of(op: str) -> str:
    """Return the kind of an operator by its full name, e.g. "aten.add.Tensor"; convolutions are not yet told apart."""
    name = op.rpartition(".")[0]
    return _KIND_OF.get(name) or _KIND_OF.get(name.removesuffix("_copy"), FUNCTION)


def on_kernels(op: str) -> float:
    """Return how many times as long as others of its kind an operator takes on the portable kernels."""
    return _ON_KERNELS.get(op.rpartition(".")[0], 1.0)
