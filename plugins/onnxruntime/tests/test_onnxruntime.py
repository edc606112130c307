"""The backend on ONNX Runtime itself: the tests that every backend has to pass, on each kind of provider."""

from __future__ import annotations

from typing import ClassVar

import pytest

from delegate.testing import BackendTests
from tests.support.blocks import BLOCKS


class TestCpu(BackendTests):
    backend = "onnxruntime"
    tolerance = 1e-5
    examples = 4
    options: ClassVar = {"threads": 1}
    cases: ClassVar = BLOCKS

    def another_version(self, blob: bytes) -> bytes:
        return b"\x08\x63" + blob[2:]  # the field of the IR version


@pytest.mark.slow
class TestMoreExamples(TestCpu):
    examples = 25
