"""Every case of the project's table: OpenVINO runs it and gives what eager gives, or refuses it for a known reason."""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch
from torch import nn

import delegate
from delegate.verdict import Reason
from tests.support.cases.operators import FAMILIES, All
from tests.support.lowering import assert_same

# A part of the reason -> the cases that OpenVINO leaves to others for it.
REFUSED: dict[str, list[str]] = {
    "does not convert it": [
        "aten.exp2.default", "aten.trunc.default", "aten.trunc.default, halves", "aten.hypot.default",
        "aten.fmax.default", "aten.fmin.default", "aten.mul.Tensor, of booleans",
        "aten.elu.default, scaled within", "aten.linalg_vector_norm.default, 0", "aten.dist.default",
        "aten.addmv.default", "aten.addbmm.default", "aten._trilinear.default", "aten.avg_pool2d.default, divisor",
        "aten._upsample_bilinear2d_aa.vec, smaller", "aten._upsample_bicubic2d_aa.vec, smaller",
        "aten.diagonal.default", "aten.diagonal.default, inner", "aten.index_put.default, a mask",
        "aten.index_put.default, a mask of rows",
    ],
    "computes integers in 32 bits": [
        "aten.add.Tensor, integers", "aten.add.Tensor, overflow", "aten.add.Tensor, large",
        "aten.add.Tensor, number", "aten.sub.Tensor, integers", "aten.mul.Tensor, integers",
        "aten.mul.Tensor, overflow", "aten.eq.Tensor, integers", "aten.eq.Tensor, large", "aten.ne.Tensor, integers",
        "aten.gt.Tensor, integers", "aten.lt.Tensor, integers", "aten.ge.Tensor, integers",
        "aten.le.Tensor, integers", "aten.maximum.default, large", "aten.maximum.default, integers",
        "aten.remainder.Tensor, integers", "aten.fmod.Tensor, integers", "aten.remainder.Scalar, integers",
        "aten.div.Tensor_mode, floor integers", "aten.div.Tensor_mode, trunc integers",
        "aten.div.Tensor_mode, a number", "aten.copy.default", "aten._to_copy.default, int32",
        "aten._to_copy.default, from int32", "aten._to_copy.default, bool from int32",
        "aten._to_copy.default, from uint8", "aten.minimum.default, integers", "aten.clamp.default, integers",
        "aten.where.self, integers", "aten.logical_not.default, numbers", "aten.logical_and.default, numbers",
        "aten.logical_or.default, numbers", "aten.logical_xor.default, numbers", "aten.amax.default, integers",
        "aten.max.default, integers", "aten.argmax.default, integers", "aten.constant_pad_nd.default, integers",
        "aten.index.Tensor, two from the end", "aten.scatter.src", "aten.scatter.src, less", "aten.scatter.value",
        "aten.scatter_add.default", "aten.scatter_add.default, first", "aten.scatter_add.default, in order",
        "aten.scatter_reduce.two, sum", "aten.scatter_reduce.two, sum anew", "aten.scatter_reduce.two, prod",
        "aten.scatter_reduce.two, prod anew", "aten.scatter_reduce.two, amax", "aten.scatter_reduce.two, amax anew",
        "aten.scatter_reduce.two, amin", "aten.scatter_reduce.two, amin anew", "aten.index_put.default",
        "aten.index_put.default, sums", "aten.index_put.default, sums in order",
        "aten.index_put.default, numbers in order", "aten.index_put.default, negative",
        "aten.index_put.default, second", "aten.index_put.default, two apart", "aten.kthvalue.default",
        "aten.kthvalue.default, kept",
    ],
    "rounds quotients close to a whole number": [
        "aten.div.Tensor_mode, floor", "aten.div.Tensor_mode, trunc", "aten.div.Tensor_mode, brinks",
    ],
    "loses the digits of small results": [
        "aten.expm1.default", "aten.expm1.default, relative", "aten.log1p.default", "aten.log1p.default, relative",
        "aten.erfc.default", "aten.erfc.default, relative", "aten.softplus.default", "aten.softplus.default, beta",
    ],
    "from a rounded quotient": [
        "aten.remainder.Tensor", "aten.remainder.Tensor, broadcast", "aten.remainder.Scalar",
        "aten.remainder.Scalar_Tensor", "aten.fmod.Tensor", "aten.fmod.Tensor, broadcast", "aten.fmod.Scalar",
    ],
    "treats -0.0 as 0.0": [
        "aten.atan2.default", "aten.atan2.default, signs of zeros", "aten.atan2.default, axes",
    ],
    "overflows": [
        "aten.log_sigmoid.default",
    ],
    "for all dimensions, OpenVINO 2026.4.1 ignores the correction": [
        "aten.var.correction, all", "aten.var_mean.correction, all",
    ],
    "rounds the correction": [
        "aten.var_mean.correction, a half",
    ],
    "for the exponents 0 and infinity": [
        "aten._cdist_forward.default", "aten._cdist_forward.default, sums",
    ],
    "counts elements beyond the padding": [
        "aten.avg_pool2d.default, ceil_mode pads counted", "aten.avg_pool2d.default, ceil_mode 1-D",
        "aten.avg_pool2d.default, ceil_mode beyond",
    ],
    "counts no index from the end": [
        "aten.index.Tensor, two", "aten.index.Tensor, two from the end", "aten.index.Tensor, two apart",
        "aten.index.Tensor, of images", "aten.index.Tensor, broadcast",
        "aten.im2col.default",
    ],
    "before the transposition": ["aten.as_strided.default", "aten.as_strided.default, transposed"],
    "loses the signs of zeros": [
        "aten.slice.Tensor, unbind",
    ],
    "no conversion between float32 and uint16": [
        "quantized_decomposed.dequantize_per_channel.default",
    ],
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("family", FAMILIES)
def test_every_row_runs_on_the_library_and_is_right(family: str) -> None:
    cases = FAMILIES[family]
    module = All(cases).eval()
    inputs = tuple(x.clone() for _, example in cases.values() for x in example)
    config = {"backends": ["openvino"], "partitioning": {"min_partition_size": 0}}
    with torch.no_grad():
        program = delegate.to_backend(torch.export.export(module, inputs), config=config)
        results, expected = program(*inputs), module(*inputs)
    names, result = list(cases), defaultdict(set)
    for node in program.report.nodes:
        if node.backend != "openvino" and node.verdicts["openvino"].reason is not Reason.BORDER:
            message = node.verdicts["openvino"].message
            reason = next((reason for reason in REFUSED if reason in message), message)
            result[reason].add(names[int(node.module.split(".")[0].removeprefix("case"))])
    known = {reason: cases.keys() & refused for reason, refused in REFUSED.items()}
    assert result == {reason: refused for reason, refused in known.items() if refused}
    assert_same(dict(zip(names, results, strict=True)), dict(zip(names, expected, strict=True)), 2e-6)


@pytest.mark.parametrize("shape", [(2, 4), (2, 4, 3), (2, 4, 3, 5)], ids=str)
def test_group_norms_over_dynamic_batches(shape: tuple[int, ...]) -> None:
    """OpenVINO's CPU has none of two dimensions: a kernel runs it."""
    norm, x = nn.GroupNorm(2, 4).eval(), torch.randn(shape)
    exported = torch.export.export(norm, (x,), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    program = delegate.to_backend(exported, "openvino")
    assert [n.backend for n in program.report.nodes] == ["portable" if len(shape) == 2 else "openvino"]
    for rows in (2, 5):
        inputs = torch.randn(rows, *shape[1:])
        assert_same(program(inputs), norm(inputs))


def test_what_openvino_converts_and_does_not_open() -> None:
    """OpenVINO 2026.4 makes another model of a sum and a look-up behind it than it can open: a kernel looks up."""
    places = torch.tensor([0, 3])

    class Sums(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sum([1])[:, places]

    x = torch.randn(1, 5, 4)
    program = delegate.to_backend(torch.export.export(Sums(), (x,)), "openvino")
    assert {n.op: n.backend for n in program.report.nodes}["aten.sum.dim_IntList"] == "openvino"
    assert_same(program(x), Sums()(x), 1e-6)
