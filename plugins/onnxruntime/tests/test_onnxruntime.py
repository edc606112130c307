"""The backend on ONNX Runtime itself: the tests that every backend has to pass, on each kind of provider."""

from __future__ import annotations

from typing import ClassVar

from delegate.testing import BackendTests
from tests.support.blocks import BLOCKS


class TestCpu(BackendTests):
    backend = "onnxruntime"
    tolerance = 1e-5
    options: ClassVar = {"threads": 1}
    cases: ClassVar = BLOCKS
