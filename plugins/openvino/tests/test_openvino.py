"""The backend on OpenVINO itself: the tests that every backend has to pass, and what is its own."""

from __future__ import annotations

from typing import ClassVar

import pytest

from delegate.testing import BackendTests
from tests.support.blocks import BLOCKS


class TestOpenVino(BackendTests):
    backend = "openvino"
    tolerance = 1e-5
    examples = 4
    cases: ClassVar = BLOCKS

    def another_version(self, blob: bytes) -> bytes:
        return blob.replace(b'version="11"', b'version="99"', 1)  # of the IR


@pytest.mark.slow
class TestMoreExamples(TestOpenVino):
    examples = 25
