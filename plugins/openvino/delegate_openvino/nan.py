"""The operators that lose NaN on OpenVINO's CPU; tests/test_special_values.py finds what is missing here."""

from __future__ import annotations

# There, NaN is greater than all numbers, and 0 in a softmax.
LOSING = frozenset(
    f"aten.{name}"
    for name in (
        *("relu.default", "hardtanh.default", "hardsigmoid.default", "exp.default", "sign.default"),
        *("clamp.default", "clamp.Tensor", "maximum.default", "minimum.default"),
        *("gt.Scalar", "gt.Tensor", "ge.Scalar", "ge.Tensor"),
        *("amax.default", "amin.default", "max.default", "min.default", "max.dim", "min.dim"),
        *("argmax.default", "argmin.default", "topk.default", "sort.default", "sort.stable", "argsort.default"),
        *("linalg_vector_norm.default", "logsumexp.default", "_softmax.default", "_log_softmax.default"),
        *("max_pool1d.default", "max_pool2d.default", "max_pool3d.default"),
        *("max_pool2d_with_indices.default", "max_pool3d_with_indices.default"),
        *("adaptive_max_pool1d.default", "adaptive_max_pool2d.default", "adaptive_max_pool3d.default"),
    )
)
