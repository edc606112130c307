"""Rows of OpInfo that portable kernels do not pass, with the reasons, and some entries of every family."""

import math

EXOTIC = "no inference model is known to hold it"
EXTRA = "plugins/kernels-extra has its kernel"
LOSS = "computes losses in training"
TRAINING = "normalization in training changes statistics in place: refused, with the remedy"
ROUNDS_IN_BETWEEN = "torch accumulates in the half type and rounds at every step; the kernel rounds once"
FIXED_POINT = "torch resizes bytes in fixed point of its own making"
COMPLEX = "torch takes complex numbers here; no inference model is known to hold it"
STRIDES = "strides of the argument mean nothing in an edge program: it is taken as contiguous"
INFINITE = "NaN or infinity in the parts of infinite complex numbers differ"
# Rows that do not pass, as patterns of "overload[dtype of its first tensor]", with the reason.
KNOWN = {
    "aten.as_strided*": STRIDES,
    "aten.resize*": "changes the size of its argument; a functional graph has no such operator",
    "aten.hash_tensor.*": EXOTIC,
    "aten.geqrf.*": EXOTIC,
    "aten.ormqr.*": EXOTIC,
    "aten.linalg_householder_product.*": EXOTIC,
    "aten.linalg_ldl*": EXOTIC,
    "aten.linalg_lstsq.*": "which results it has depends on LAPACK's driver",
    "aten.special_*": EXTRA,
    "aten.i0.*": EXTRA,
    "aten.igamma*": EXTRA,
    "aten.polygamma.*": EXTRA,
    "aten.histogram.*": EXTRA,
    "aten._histogramdd_*": EXTRA,
    "aten.segment_reduce.*": EXTRA,
    "aten.fractional_max_pool*": EXTRA,
    "aten._ctc_loss.*": LOSS,
    "torch_nn._linear_cross_entropy*": LOSS,
    "aten.batch_norm.*": TRAINING,
    "aten.instance_norm.*": TRAINING,
    "aten.native_batch_norm.*": TRAINING,
    "aten.addbmm.default[[]bfloat16]": ROUNDS_IN_BETWEEN,
    "aten.*index_put.default[[]bfloat16]": ROUNDS_IN_BETWEEN,
    "aten.conv*[[]*float16]": ROUNDS_IN_BETWEEN,
    "aten.grid_sampler_*[[]*float16]": ROUNDS_IN_BETWEEN,
    **dict.fromkeys(
        (
            "aten._linalg_det.*",
            "aten._linalg_slogdet.*",
            "aten.linalg_lu.*",
            "aten.linalg_lu_solve.*",
            "aten.lu_unpack.*",
            "aten.cholesky_inverse.*",
            "aten.cholesky_solve.*",
            "aten.triangular_solve.*",
            "aten.linalg_pinv.*",
            "aten.linalg_matrix_exp.*",
            "aten.lgamma.*",
            "aten.digamma.*",
            "aten.cauchy.*",
            "aten.geometric.*",
            "aten.log_normal.*",
            "aten.put.*",
            "aten.index_reduce.*",
            "aten.embedding_renorm.*",
            "aten.nonzero_static.*",
            "aten.frexp.*",
            "aten.nextafter.*",
        ),
        EXTRA,
    ),
    "aten.grid_sampler_2d.default[[]float32]": "the last bit of a coordinate decides between pixels of a large image",
    "aten.upsample_bicubic2d.vec[[]uint8]": FIXED_POINT,
    "aten.pow.Tensor_Scalar[[]complex64]": INFINITE,
    "aten.square.default[[]complex64]": INFINITE,
    "aten.sgn.default[[]complex64]": INFINITE,
    "aten.linspace.default[[]complex64]": COMPLEX,
    "aten.logspace.default[[]complex64]": COMPLEX,
    "aten.log_softmax.int[[]complex64]": COMPLEX,
    "aten.softmax.int[[]complex64]": COMPLEX,
    "aten.logaddexp.default[[]complex64]": COMPLEX,
    "aten.logcumsumexp.default[[]complex64]": COMPLEX,
    "aten.logsumexp.default[[]complex64]": COMPLEX,
    "aten.rms_norm.default[[]complex64]": COMPLEX,
    "aten.uniform.default[[]complex64]": COMPLEX,
}
# The same for rows that fail with some CPUs only: torch has vectorized code for AVX2 and for AVX-512.
KNOWN_OF_SOME_CPUS = {
    "aten.addr.default[[]bfloat16]": ROUNDS_IN_BETWEEN,
    "aten.div.Tensor_mode[[]bfloat16]": "torch rounds the quotient to bfloat16 before it cuts off the fraction",
    "aten.log1p.default[[]complex64]": INFINITE,
    "aten.reciprocal.default[[]complex64]": INFINITE,
}
# NaN and infinity among the floats; of what matrices are taken apart into, torch says nothing then.
NOT_NUMBERS = {"nan": [math.nan], "infinity": [math.inf, -math.inf]}
WITHOUT = ("linalg", "cholesky", "det", "fft", "geqrf", "inverse", "istft", "logdet", "lu", "matrix_exp", "ormqr",
           "pca", "pinv", "qr", "slogdet", "stft", "svd", "triangular_solve")  # fmt: skip
NOT_SORTED = "boundaries with NaN or infinities among them are not sorted"
OF_INFINITY = "torch's mean beside a variance of infinities is NaN"
KNOWN_OF_NOT_NUMBERS = {
    "aten.bucketize.Tensor*": NOT_SORTED,
    "aten.searchsorted.Tensor*": NOT_SORTED,
    "aten.???_mean.*": OF_INFINITY,
    "aten.native_*_norm.default*": OF_INFINITY,
    "aten.gelu.default*": "torch gives NaN for infinity on CPUs with AVX-512",
    "aten._trilinear.default*": "torch multiplies in another order",
}
# Some entries of every family; their samples take some seconds in all.
SOME = [
    "add", "sub", "mul", "div", "remainder", "floor_divide", "pow", "maximum", "eq", "where", "clamp", "bitwise_and",
    "exp", "round", "abs", "sum", "mean", "var", "amax", "argmax", "cumsum", "sort", "topk", "median", "softmax",
    "nn.functional.gelu", "nn.functional.layer_norm", "nn.functional.conv2d", "nn.functional.max_pool2d",
    "nn.functional.avg_pool2d",
    "nn.functional.rrelu", "special.log_ndtr", "special.erfcx",
    "nn.functional.embedding", "nn.functional.pad", "bmm", "addmm", "linalg.solve",
    "gather", "scatter_reduce", "index_put", "index_select", "masked_fill", "cat", "split", "expand", "permute",
    "reshape", "roll", "tril", "fft.rfft", "bernoulli",
]  # fmt: skip

# Without gelu, whose every sample may be a known row: it depends on the CPU. `*` has it.
NO_FLOATS = ("bitwise", "nn.functional.gelu", *WITHOUT)
SOME_OF_FLOATS = [*(n for n in SOME if not n.startswith(NO_FLOATS)), "cdist", "nn.functional.grid_sample"]
