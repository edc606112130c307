"""Cases of the operators that the backend cuda takes beside those of tests/support/cases/operators.py.

Several cases of one operator stand in a list: each is an argument that an importer may have wrong.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from delegate_cuda.aot.operators import TABLE
from torch import nn

from tests.support.cases.operators import BATCHED, CASES, INDEX, MATRIX, OTHER, POSITIVE, Case, Constant, X, weight

NEGATIVE = torch.tensor([2, -1, 0, 1])
HALVES = torch.tensor([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5])
BITS, MORE = MATRIX > 0, OTHER > 0


def frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False).eval()


OWN: dict[str, list[Case]] = {
    **{f"aten.{n}.default": [(getattr(torch, n), (x,))] for n, x in (
        ("log2", POSITIVE), ("log10", POSITIVE), ("sign", X), ("trunc", X), ("isnan", X), ("isinf", X),
    )},
    "aten.round.default": [(torch.round, (HALVES,))],
    "aten.atan2.default": [(torch.atan2, (MATRIX, OTHER))],
    "aten.fmod.Tensor": [(torch.fmod, (MATRIX, OTHER))],
    "aten.fmod.Scalar": [(lambda x: torch.fmod(x, 0.3), (MATRIX,))],
    "aten.remainder.Tensor": [(torch.remainder, (MATRIX, OTHER))],
    "aten.remainder.Scalar": [(lambda x: x % 0.3, (MATRIX,))],
    "aten.pow.Scalar": [(lambda x: torch.pow(2.0, x), (MATRIX,))],
    "aten.ne.Tensor": [(torch.ne, (MATRIX, OTHER))],
    "aten.ne.Scalar": [(lambda x: x.round() != 0, (MATRIX,))],
    "aten.clamp.Tensor": [(lambda x, y: x.clamp(y, y + 1), (MATRIX, OTHER))],
    "aten.clamp.default": [(lambda x: x.clamp(min=-0.5), (X,)), (lambda x: x.clamp(max=0.5), (X,))],
    "aten.logical_xor.default": [(torch.logical_xor, (BITS, MORE))],
    "aten.bitwise_not.default": [(torch.bitwise_not, (BITS,))],
    **{f"aten.bitwise_{n}.Tensor": [
        (getattr(torch, f"bitwise_{n}"), pair) for pair in ((BITS, MORE), (INDEX, INDEX + 1))
    ] for n in ("and", "or", "xor")},
    "aten.add.Tensor": [(lambda x: x + 3, (INDEX,)), (lambda x: x + 0.5, (MATRIX,))],
    "aten.elu.default": [(lambda x: F.elu(x, 2.0), (X,))],
    "aten.gelu.default": [(lambda x: F.gelu(x, approximate="tanh"), (X,))],
    "aten.prelu.default": [(frozen(nn.PReLU()), (X,))],
    "aten.softplus.default": [(lambda x: F.softplus(x * 20, 2.0, 5.0), (X,))],
    "aten.var.correction": [(lambda x: x.var(1), (X,)), (lambda x: x.var(1, correction=0, keepdim=True), (X,))],
    "aten.any.dim": [(lambda x: x.any(1), (BITS,))],
    "aten.argmax.default": [(lambda x: x.argmax(1), (MATRIX,)), (lambda x: x.argmax(), (MATRIX,))],
    "aten.argmin.default": [(lambda x: x.argmin(1, keepdim=True), (MATRIX,))],
    "aten.cumsum.default": [(lambda x: x.cumsum(1), (MATRIX,))],
    "aten.baddbmm.default": [
        (lambda a, c: torch.baddbmm(c, a, a.transpose(1, 2), beta=0.5, alpha=2), (BATCHED, torch.ones(3, 5, 5)))
    ],
    "aten.addmm.default": [
        (Constant(lambda x, b, w: torch.addmm(b, x, w, beta=0.5, alpha=2), weight(4), weight(7, 4)), (MATRIX,))
    ],
    "aten.convolution.default": [
        (frozen(nn.Conv1d(8, 4, 3, padding=1)), (X[:, :, 0].contiguous(),)),
        (frozen(nn.Conv3d(2, 4, 3, padding=1)), (X.view(2, 2, 4, 6, 6),)),
        (frozen(nn.Conv2d(8, 16, (3, 2), (2, 1), (2, 1), dilation=2, groups=2)), (X,)),
        (frozen(nn.Conv2d(8, 16, 3, 2, 1, groups=8, bias=False)), (X,)),
        (frozen(nn.ConvTranspose2d(8, 4, 3, 2, 1, output_padding=1, groups=2)), (X,)),
    ],
    "aten.max_pool2d_with_indices.default": [(lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), (X,))],
    "aten.avg_pool2d.default": [
        (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), (X,)),
        (lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), (X,)),
    ],
    "aten.adaptive_avg_pool2d.default": [(lambda x: F.adaptive_avg_pool2d(x, (4, 5)), (X,))],
    "aten.native_group_norm.default": [(frozen(nn.GroupNorm(4, 8)), (X,))],
    "aten.upsample_bilinear2d.vec": [
        (lambda x: F.interpolate(x, size=(9, 11), mode="bilinear"), (X,)),
        (lambda x: F.interpolate(x, size=(9, 11), mode="bilinear", align_corners=True), (X,)),
    ],
    "aten.upsample_bicubic2d.vec": [(lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), (X,))],
    "aten.upsample_nearest2d.vec": [(lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), (X,))],
    "aten.scaled_dot_product_attention.default": [
        (lambda x: F.scaled_dot_product_attention(x, x + 1, x - 1, is_causal=True), (X,)),
        (lambda x: F.scaled_dot_product_attention(x, x + 1, x - 1, scale=0.3), (X,)),
        (lambda x, m: F.scaled_dot_product_attention(x, x + 1, x - 1, attn_mask=m), (X, X[0, 0])),
    ],
    "aten.index.Tensor": [(lambda x, i: x[i], (MATRIX, NEGATIVE)), (lambda x, i: x[:, i], (MATRIX, NEGATIVE))],
    "aten.index_select.default": [(lambda x, i: x.index_select(1, i), (MATRIX, INDEX))],
    "aten.select.int": [(lambda x: x[:, -1], (X,))],
    "aten.slice.Tensor": [(lambda x: x[:, -7:6:2], (X,))],
    "aten.constant_pad_nd.default": [(lambda x: F.pad(x, (1, -2, 0, 1), value=3.0), (X,))],
    "aten.flip.default": [(lambda x: x.flip(1), (MATRIX,))],
    "aten.repeat.default": [(lambda x: x.repeat(2, 3), (MATRIX,))],
    "aten.clone.default": [(lambda x: x.t().clone(), (MATRIX,))],
    "aten._to_copy.default": [(lambda x: (x * 5).to(torch.int32), (X,)), (lambda x: x.to(torch.float32), (BITS,))],
    "aten.slice_scatter.default": [(lambda x, y: torch.slice_scatter(x, y[:, :3], 1, 1, 4), (MATRIX, OTHER))],
    "aten.tril.default": [(torch.tril, (MATRIX,))],
    "aten.triu.default": [(lambda x: x.triu(1), (MATRIX,))],
    "aten.masked_fill.Scalar": [
        (lambda x, mask: x.masked_fill(mask, 0.5), (MATRIX, BITS)),
        (lambda x, mask: x.masked_fill(mask, float("-inf")).relu(), (MATRIX, BITS)),
    ],
}  # fmt: skip

_FIRST: dict[str, Case] = {}  # the first case of each operator; those after it try what ONNX's providers differ at
for _name, _case in CASES.items():
    _FIRST.setdefault(_name.partition(",")[0], _case)
ALL: list[tuple[str, Case]] = [
    *((op, case) for op, case in _FIRST.items() if TABLE.get(op) is not None),
    *((op, case) for op, cases in OWN.items() for case in cases),
]
