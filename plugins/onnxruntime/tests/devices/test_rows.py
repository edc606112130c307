"""Every row of the translations on the real libraries: QNN's emulator of the HTP, and WebGPU on whatever GPU is here.

All cases of a family go through the compiler as one program, so that few sessions are made.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from delegate_onnxruntime.onnx.aot.translations import TRANSLATIONS

import delegate
from delegate.testing import assert_same
from tests.support.availability import require
from tests.support.cases.operators import CASES, FAMILIES, IN_ORDER, All
from tests.support.sampling import every


def operator(case: str) -> str:
    """The operator that a case is named after."""
    return case.partition(",")[0]


FLOAT_QUOTIENTS = [
    *(f"aten.{name}.Tensor{what}" for name in ("fmod", "remainder") for what in ("", ", broadcast")),
    *("aten.remainder.Scalar", "aten.remainder.Scalar_Tensor", "aten.fmod.Scalar"),
    *(f"aten.div.Tensor_mode, {what}" for what in ("floor", "trunc", "brinks")),
]
# Case -> why a backend leaves it to others.
PORTABLE: dict[str, dict[str, str]] = {
    "dsp": {
        **dict.fromkeys([f"aten.{n}.default" for n in ("isnan", "isinf")], "the HTP has neither NaN nor infinity"),
        **dict.fromkeys(
            [
                *(f"aten.{n}.Tensor, integers" for n in ("add", "sub", "mul")),
                *(f"aten.add.Tensor, {what}" for what in ("overflow", "large", "number")),
                "aten.mul.Tensor, overflow",
            ],
            "integers saturate on the HTP",
        ),
        "aten._to_copy.default, from bool": "QNN returns 1.0000001 for 1",
        "aten._to_copy.default, from uint8": "QNN reads uint8 as quantized",
        "aten._to_copy.default, int32": "QNN drops casts from floats to integers in front of casts back",
        "aten.prod.default": "QNN has no ReduceProd for the HTP",
        "aten.prod.dim_int": "QNN has no ReduceProd for the HTP",
        **dict.fromkeys(
            [
                f"aten.convolution.default, transposed {what}"
                for what in ("dilated", "groups", "groups of one result", "depthwise", "output_padding")
            ],
            "QNN transposes plain kernels alone",
        ),
        "aten.addmm.default, factors": "QNN's Gemm has no factors",
        "aten.layer_norm.default, two dimensions": "QNN normalises the last dimension alone",
        "aten._native_batch_norm_legit_no_training.default, 3-D": "QNN has it up to 4 dimensions",
        **dict.fromkeys(
            [
                "aten.avg_pool3d.default",
                "aten.adaptive_max_pool3d.default",
                "aten.adaptive_avg_pool3d.default, uneven",
                "aten.max_pool3d_with_indices.default",
                "aten.adaptive_avg_pool3d.default, 2",
                "aten.max_pool2d_with_indices.default, dilated",
            ],
            "QNN pools over 2 dimensions, not dilated",
        ),
        "aten._pad_circular.default": "its decomposition writes to an empty tensor",
        "aten.constant_pad_nd.default, integers": "QNN pads no integers",
        "aten.constant_pad_nd.default, infinite": "the HTP has no infinity",
        **dict.fromkeys(
            ["aten.constant_pad_nd.default, of 5 dimensions", "aten.where.self, a mask of volumes"],
            "QNN reads a broadcast constant condition wrongly in 5 dimensions",
        ),
        **dict.fromkeys(
            [
                f"aten.{name}.default, one channel in long steps"
                for name in ("convolution", "avg_pool2d", "adaptive_avg_pool2d")
            ]
            + ["aten.convolution.default, padding beyond the window"],
            "QNN returns uninitialised memory",
        ),
        **dict.fromkeys(["aten.sort.stable", "aten.sort.stable, down"], "QNN may exchange equal elements"),
        "aten.grid_sampler_2d.default, bicubic zeros": "QNN does not sample bicubic",
        "aten.grid_sampler_2d.default, nearest zeros": "QNN takes another pixel in the middle of two",
        "aten.elu.default, scaled within": "ONNX's Elu has no scale within",
        **dict.fromkeys(
            [f"aten.upsample_{mode}2d.vec, 1.3 times" for mode in ("nearest", "bilinear")], "QNN resizes by sizes alone"
        ),
        "aten.index.Tensor, of images": "QNN moves some widths wrongly",
        **dict.fromkeys(
            ["aten.pow.Tensor_Tensor", "aten.pow.Tensor_Scalar, 1.7"],
            "powers beyond float16 wrap around on the HTP",
        ),
        **dict.fromkeys(FLOAT_QUOTIENTS, "the provider has no exact remainder of floats"),
        **dict.fromkeys(
            [f"aten.{name}.default" for name in ("acos", "acosh", "asin", "asinh", "atanh", "cosh", "sinh", "tan")],
            "QNN has no such function",
        ),
        **dict.fromkeys(IN_ORDER, "the exporter drops sums into constant places that are all in order"),
    },
    "webgpu": {
        **dict.fromkeys(FLOAT_QUOTIENTS, "the provider has no exact remainder of floats"),
        "aten.asinh.default": "large negative numbers are wrong",
        **dict.fromkeys(
            [name for name in CASES if operator(name).startswith("aten.sort.")],
            "the index of the lowest float32 is lost",
        ),
        "aten.convolution.default, 3-D groups": "the plugin has no groups over 3 dimensions",
        "aten.convolution.default, transposed groups of one result": "the plugin's numbers are wrong",
        "aten.elu.default, scaled within": "ONNX's Elu has no scale within",
        "aten.convolution.default, transposed 3-D": "the plugin does not transpose it over 3 dimensions",
        **dict.fromkeys(
            [name for name in CASES if operator(name) == "aten.grid_sampler_2d.default"],
            "the plugin has GridSample of opset 16 alone, and the model has a later one",
        ),
        **dict.fromkeys(FAMILIES["quantization"], "quantized programs are for other backends"),
        **dict.fromkeys(IN_ORDER, "the exporter drops sums into constant places that are all in order"),
    },
}
VERDICTS_ALONE = {("dsp", "aten.max_pool2d_with_indices.default, skipping")}  # see test_backends: nothing compiles it
# Largest error, of all cases ("") and of some. The HTP computes in float16, which has no 1e-6 to be relative to.
TOLERANCE = {
    "dsp": {
        "": 5e-3,
        "aten.expm1.default, relative": 0.2,
        "aten.erfc.default, relative": 0.3,
        "aten.log1p.default, relative": 0.6,
    },
    "webgpu": {
        "": 2e-6,
        **dict.fromkeys(["aten.sin.default", "aten.cos.default"], 5e-4),  # WGSL promises 2**-11
        **dict.fromkeys(["aten.acos.default", "aten.tan.default"], 6e-5),
    },
}
# float16 on the HTP: a value that is rounded across a whole number jumps by 1.
JUMPS = {"aten.ceil.default", "aten.floor.default", "aten.round.default"}


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize(("backend", "family"), every(2, ("dsp", "webgpu"), FAMILIES))
def test_every_row_runs_on_the_library_and_is_right(backend, family):
    require(backend)
    cases = {name: case for name, case in FAMILIES[family].items() if (backend, name) not in VERDICTS_ALONE}
    module, inputs = All(cases).eval(), tuple(x.clone() for _, example in cases.values() for x in example)
    with torch.no_grad():
        config = {"backends": [backend], "partitioning": {"min_partition_size": 0}}
        program = delegate.to_backend(torch.export.export(module, inputs), config=config)
        expected, actual = module(*inputs), program(*inputs)
    nodes = {(n.module.split(".")[0], n.op): n for n in program.report.nodes}
    places = {f"case{number}": set[str]() for number in range(len(cases))}
    for n in program.report.nodes:
        places[n.module.split(".")[0]].add(n.backend)
    portable, wrong = set(), {}
    for number, (case, wanted, got) in enumerate(zip(cases, expected, actual, strict=True)):
        node = nodes.get((f"case{number}", operator(case)))
        if ({node.backend} if node else places[f"case{number}"]) != {backend}:  # without a node, it is decomposed
            portable.add(case)
        try:
            _compare(backend, case, got, wanted)
        except AssertionError as error:
            wrong[case] = str(error)
    assert not wrong
    assert portable == {case for case in cases if case in PORTABLE[backend]}


def _compare(backend: str, case: str, actual: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
    """Assert that a backend's results are right, on the HTP to the precision of float16."""
    if backend == "dsp" and operator(case) in JUMPS:
        (got,), (wanted,) = actual, expected
        assert_same(got, got.round(), 5e-7)
        assert_same(got.round().int(), wanted.int(), steps=1)
        assert (got.round() != wanted).float().mean() < 0.01
        return
    assert_same(tuple(actual), tuple(expected), TOLERANCE[backend].get(case, TOLERANCE[backend][""]))


def test_every_row_has_a_case():
    assert set(TRANSLATIONS) - {operator(case) for case in CASES} == WITHOUT_CASE


RESIZED = (
    "upsample_linear1d", "upsample_trilinear3d", "upsample_bicubic2d", "upsample_nearest1d", "upsample_nearest3d",
    "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "_upsample_nearest_exact1d", "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d",
)  # fmt: skip
WITHOUT_CASE = {
    "aten.add.Scalar", "aten.sub.Scalar", "aten.mul.Scalar", "aten.div.Scalar",  # exported as .Tensor with a number
    "aten.div.Scalar_mode",
    # What other rows, which are kept whole, decompose to.
    *(f"aten.{n}.default" for n in RESIZED),
    "aten.native_layer_norm.default", "aten._adaptive_avg_pool2d.default", "aten._adaptive_avg_pool3d.default",
    "aten._prelu_kernel.default", "aten.upsample_nearest2d.default", "aten.upsample_bilinear2d.default", "aten.var.dim",
}  # fmt: skip
