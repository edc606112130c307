"""A program keeps its weights: training that continues after the lowering changes neither it nor its file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import delegate
from delegate.testing import assert_same
from tests.support import zoo


def _float() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 64))


def _int8() -> nn.Module:
    with zoo.libraries():
        from torchao.quantization import Int8DynamicActivationIntxWeightConfig, PerAxis, quantize_
    module = _float().eval().requires_grad_(False)
    quantize_(module, Int8DynamicActivationIntxWeightConfig(torch.int8, PerAxis(0)))
    return module


def _set_to_zero(tensor: torch.Tensor) -> None:
    names = tensor.__tensor_flatten__()[0] if hasattr(tensor, "__tensor_flatten__") else []
    for name in names:
        _set_to_zero(getattr(tensor, name))
    if not names:
        tensor.data.zero_()


CASES = {
    "floats on xnnpack": (_float, "xnnpack"),
    "integers on xnnpack": (_int8, "xnnpack"),
    "floats on kernels": (_float, []),
}


@pytest.mark.parametrize(("build", "backends"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("has_run", [False, True], ids=["before the first run", "after it"])
def test_later_changes_of_weights(
    build: Callable[[], nn.Module], backends: str | list[str], has_run: bool, tmp_path: Path
) -> None:
    module, x = build().eval(), torch.randn(4, 64)
    exported, expected = torch.export.export(module, (x,)), module(x).detach()
    program = delegate.to_backend(exported, backends, cache=False)
    assert bool(program.report.partitions) == bool(backends)
    if has_run:
        program(x)
    for tensor in exported.state_dict.values():
        _set_to_zero(tensor)
    tolerance = 0.02 if build is _int8 else 1e-5
    assert_same(program(x), expected, tolerance=tolerance)
    program.save(tmp_path / "model.dlg")
    assert_same(delegate.load(tmp_path / "model.dlg")(x.numpy()), expected, tolerance=tolerance)
