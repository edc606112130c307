"""Programs whose weights are subclasses of Tensor, as torchao's quantize_ makes them."""

from __future__ import annotations

import pytest
import torch

import delegate
from delegate.testing import assert_same
from tests import zoo
from tests.kernels.compare import sample

CONFIGS = {
    "Int8WeightOnlyConfig": {},
    "Int8DynamicActivationInt8WeightConfig": {},
    "Int8DynamicActivationIntxWeightConfig": {},
    "IntxWeightOnlyConfig": {},
}


def quantized(name: str) -> torch.nn.Module:
    with zoo.libraries():
        import torchao.quantization
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.ReLU(), torch.nn.Linear(96, 32)).eval()
    torchao.quantization.quantize_(module, getattr(torchao.quantization, name)(**CONFIGS[name]))
    return module


@pytest.mark.parametrize("backends", [[], ["xnnpack"]], ids=str)
@pytest.mark.parametrize("name", CONFIGS)
def test_torchao(name, backends, tmp_path):
    with zoo.libraries():
        module, x = quantized(name), sample(5, 64, scale=1.0)
        exported = torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=2, max=512)},))
        program = delegate.to_backend(exported, backends)
        program.save(tmp_path / "model.dlg")
        loaded = delegate.load(tmp_path / "model.dlg")
        own = name == "Int8DynamicActivationInt8WeightConfig" and backends  # XNNPACK's ranges are finer: not about 0
        tolerance = 2e-2 if own else 1e-6  # 9.7e-3 and 3.6e-7 are measured
        for rows in (5, 64):
            given = sample(rows, 64, scale=1.0)
            expected = module(given).detach()
            assert_same(program(given), expected, tolerance)
            assert_same(loaded(given.numpy()), expected, tolerance)
