"""What a signal handler raises during a call reaches the caller unchanged, and is not a failure of ONNX Runtime."""

from __future__ import annotations

import pytest

from tests.support.cases.signal_handlers import HANDLERS, check


@pytest.mark.parametrize("keep", [False, True], ids=["no fallback", "fallback"])
@pytest.mark.parametrize("handler", HANDLERS)
def test_errors_of_handlers_pass(handler: str, keep: bool) -> None:
    check("onnxruntime", handler, keep=keep)
