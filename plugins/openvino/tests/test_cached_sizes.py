"""OpenVINO's cache of kernels for dynamic sizes is bounded by the size of the model."""

from __future__ import annotations

import numpy as np
import openvino
import pytest
from delegate_openvino.settings import settings
from openvino import opset13 as opset

SPECS = {"group": 0, "device": "CPU", "precision": "f32", "cache": "", "threads": 0}


@pytest.mark.parametrize(("sizes", "device", "layers", "expected"), [
    ([-1, 4], "CPU", 1, 192), ([-1, 4], "CPU", 400, 5000), ([2, 4], "CPU", 1, None), ([-1, 4], "GPU", 1, None),
])  # fmt: skip
def test_capacity(sizes: list[int], device: str, layers: int, expected: int | None) -> None:
    x = opset.parameter(sizes, np.float32)
    result = x
    for _ in range(layers):
        result = opset.relu(result)
    properties = settings({**SPECS, "device": device}, openvino.Model([result], [x]))
    assert properties.get("CPU_RUNTIME_CACHE_CAPACITY") == expected
    if device == "CPU":
        compiled = openvino.Core().compile_model(openvino.Model([result], [x]), device, properties)
        assert (compiled([np.full((2, 4), -1, np.float32)])[0] == 0).all()
