"""Programs that torchao quantized, on portable kernels alone: as torch's, here and in a process without torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import ExportedProgram

import delegate
from delegate.testing import assert_same
from tests.support import zoo
from tests.support.blocks import TokenBlock
from tests.support.processes import AHEAD_OF_TIME, run
from tests.support.quantizing import by_x86, by_xnnpack, everything, in_place, pt2e

pytest.importorskip("torchao", reason="torchao quantizes the programs of these tests")
with zoo.libraries():
    from torchao.quantization.granularity import PerAxis, PerGroup, PerTensor

RUN = """
import numpy as np
import delegate
data = np.load(sys.argv[1] + "/data.npz")
for i in range(int(sys.argv[2])):
    with delegate.load(f"{sys.argv[1]}/{i}.dlg") as program:
        assert {p.backend for p in program.report.partitions} == set()
        assert np.array_equal(program(data[f"x{i}"]), data[f"y{i}"]), i
print("same")
"""


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU6(), nn.Conv2d(8, 8, 3, groups=8), nn.Hardswish(),
        nn.AvgPool2d(2), nn.ConvTranspose2d(8, 4, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5),
    )  # fmt: skip


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "block": (TokenBlock, lambda: torch.randint(0, 50, (2, 8))),
    "convolutions": (convolutions, lambda: torch.randn(2, 3, 16, 16)),
}


int4: Any = {"weight_dtype": torch.int4}
# Way to quantize -> its function, by model the largest error over the greatest result. Where torch rounds a sum of
# floats the other way, what is quantized behind it is a step off: 3.1e-3 is measured of 8 bits, and 2.7e-5 of 16.
FLOATS, STEP_8, STEP_16 = 1e-6, 1 / 127, 1e-4
WAYS: dict[str, tuple[Callable[..., ExportedProgram], dict[str, float]]] = {
    "static": (pt2e(by_xnnpack(is_per_channel=True)), {"block": STEP_8, "convolutions": STEP_8}),
    "static per tensor": (pt2e(by_xnnpack(is_per_channel=False)), {"block": STEP_8, "convolutions": STEP_8}),
    "dynamic": (pt2e(by_xnnpack(is_per_channel=True, is_dynamic=True)), {"block": STEP_8, "convolutions": STEP_8}),
    "qat": (
        pt2e(by_xnnpack(is_per_channel=True, is_qat=True), training=True), {"block": STEP_8, "convolutions": STEP_8}
    ),
    "static, u8 by s8": (pt2e(by_x86()), {"block": STEP_8, "convolutions": STEP_8}),
    "dynamic, u8 by s8": (pt2e(by_x86(is_dynamic=True)), {"block": STEP_8, "convolutions": STEP_8}),
    "qat, u8 by s8": (pt2e(by_x86(is_qat=True), training=True), {"block": STEP_8, "convolutions": STEP_8}),
    "int8": (everything(torch.int8, per_channel=True), {"block": STEP_8, "convolutions": STEP_8}),
    "uint8 per tensor": (everything(torch.uint8, per_channel=False), {"block": STEP_8, "convolutions": STEP_8}),
    "int16": (everything(torch.int16, per_channel=True), {"block": STEP_16, "convolutions": STEP_16}),
    "uint16": (everything(torch.uint16, per_channel=False), {"block": STEP_16, "convolutions": STEP_16}),
    "weights": (in_place("Int8WeightOnlyConfig"), {"block": FLOATS, "convolutions": FLOATS}),
    "weights in groups": (in_place("Int8WeightOnlyConfig", granularity=PerGroup(32)), {"block": FLOATS}),
    "int4 weights in groups": (in_place("IntxWeightOnlyConfig", granularity=PerGroup(32), **int4), {"block": FLOATS}),
    "int4 weights": (
        in_place("IntxWeightOnlyConfig", granularity=PerAxis(0), **int4), {"block": FLOATS, "convolutions": FLOATS}
    ),
    "by token": (in_place("Int8DynamicActivationInt8WeightConfig"), {"block": STEP_8, "convolutions": STEP_8}),
    "by tensor": (
        in_place("Int8DynamicActivationInt8WeightConfig", granularity=PerTensor()),
        {"block": STEP_8, "convolutions": STEP_8},
    ),
    "by token, int4 weights in groups": (
        in_place("Int8DynamicActivationIntxWeightConfig", weight_granularity=PerGroup(32), **int4), {"block": STEP_8}
    ),
    "by token, int4 weights": (
        in_place("Int8DynamicActivationIntxWeightConfig", weight_granularity=PerAxis(0), **int4),
        {"block": STEP_8, "convolutions": STEP_8},
    ),
}  # fmt: skip
CASES = [(way, model, error) for way, (_, errors) in WAYS.items() for model, error in errors.items()]
QUICK = [case for case in CASES if case[:2] in {
    ("static", "convolutions"), ("dynamic", "block"), ("int16", "block"),
    ("int4 weights in groups", "block"), ("by token", "convolutions"),
}]  # fmt: skip


def programs(cases: Sequence[tuple[str, str, float]]) -> Any:
    """Of every case the program, its input, and what torch gives."""
    for way, model, error in cases:
        torch.manual_seed(0)
        build, inputs = MODELS[model]
        x = inputs()
        with warnings.catch_warnings(), zoo.libraries():
            warnings.simplefilter("ignore")  # of torchao about itself
            exported = WAYS[way][0](build().eval(), x)
            with torch.no_grad():
                wanted = exported.module()(x)
        yield way, model, error, delegate.to_backend(exported, []), x, wanted


@pytest.mark.extended
@pytest.mark.parametrize("cases", [QUICK, pytest.param(CASES, marks=pytest.mark.slow)], ids=["some", "all"])
def test_programs_of_torchao(cases, tmp_path):
    data = {}
    for i, (way, model, error, program, x, wanted) in enumerate(programs(cases)):
        got = program(x)
        assert_same({(way, model): got}, {(way, model): wanted}, error)
        program.save(tmp_path / f"{i}.dlg")
        data |= {f"x{i}": x.numpy(), f"y{i}": got.numpy()}
    np.savez(tmp_path / "data.npz", **data)
    done = run(RUN, tmp_path, str(len(cases)), absent=AHEAD_OF_TIME)
    assert (done.returncode, done.stdout) == (0, "same\n"), done.stderr
