"""Programs whose weights are subclasses of Tensor, as torchao's quantize_ makes them."""

from __future__ import annotations

import pytest
import torch

import delegate
from tests.support import zoo
from tests.support.kernels import sample
from tests.support.lowering import assert_runs, assert_same
from tests.support.sampling import every

# torchao's configuration -> the operators that XNNPACK refuses, with the number of their nodes.
CONFIGS = {
    "Int8WeightOnlyConfig": {},
    "Int8DynamicActivationInt8WeightConfig": {},
    "Int8DynamicActivationIntxWeightConfig": {  # its ranges are computed in parts
        "aten.full_like.default": 4, "aten._to_copy.default": 8, "aten.view.default": 4, "aten.add.Tensor": 2,
        "aten.clamp.default": 2,
    },
    "IntxWeightOnlyConfig": {},
}  # fmt: skip


def quantized(name: str) -> torch.nn.Module:
    with zoo.libraries():
        import torchao.quantization
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.ReLU(), torch.nn.Linear(96, 32)).eval()
    torchao.quantization.quantize_(module, getattr(torchao.quantization, name)())
    return module


@pytest.mark.parametrize(("name", "backends"), every(3, CONFIGS, [[], ["xnnpack"]]), ids=str)
def test_torchao(name, backends, tmp_path):
    with zoo.libraries():
        module, x = quantized(name), sample(5, 64, scale=1.0)
        exported = torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=2, max=512)},))
        program = delegate.to_backend(exported, backends)
        if backends:
            assert_runs(program, "xnnpack", CONFIGS[name])
        program.save(tmp_path / "model.dlg")
        loaded = delegate.load(tmp_path / "model.dlg")
        own = name == "Int8DynamicActivationInt8WeightConfig" and backends  # XNNPACK's ranges are finer: not about 0
        tolerance = 2e-2 if own else 1e-6  # 9.7e-3 and 3.6e-7 are measured
        for rows in (5, 64):
            given = sample(rows, 64, scale=1.0)
            expected = module(given).detach()
            assert_same(program(given), expected, tolerance)
            assert_same(loaded(given.numpy()), expected, tolerance)


def test_a_buffer_that_is_not_saved():
    class Held(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", quantized("Int8WeightOnlyConfig")[0].weight.detach(), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.linear(x, self.weight)

    with zoo.libraries():
        module, x = Held(), sample(5, 64, scale=1.0)
        exported = torch.export.export(module, (x,))
        assert_same(delegate.to_backend(exported, [])(x), module(x), 1e-6)
