"""What a signal handler raises during a call reaches the caller unchanged, and is no failure of the backend."""

from __future__ import annotations

import pytest

from tests.support.availability import require
from tests.support.cases.signal_handlers import HANDLERS, check


@pytest.mark.parametrize("keep", [False, True], ids=["no fallback", "fallback"])
@pytest.mark.parametrize("handler", HANDLERS)
@pytest.mark.parametrize("backend", ["portable", "xnnpack"])
def test_errors_of_handlers_pass(backend: str, handler: str, keep: bool) -> None:
    require(backend)
    check(backend, handler, keep=keep)
