"""Signal handlers of the program that raise an error during calls of a program."""

from __future__ import annotations

import functools
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import delegate
from delegate.plugins import PORTABLE
from delegate.testing import assert_same


class TooSlow(Exception):
    """An error of the program."""


class _Object:
    def __call__(self, *_: Any) -> None:
        raise TooSlow("object")

    def method(self, *_: Any) -> None:
        raise TooSlow("method")


def _function(*_: Any) -> None:
    raise TooSlow("function")


HANDLERS = {
    "function": _function,
    "object": _Object(),
    "method": _Object().method,
    "partial": functools.partial(_function, 1),
    "lambda": lambda *_: _function(),
}


def check(backend: str, handler: str, *, keep: bool) -> None:
    """Assert that what a handler raises during calls reaches the caller, who can call again.

    Args:
        backend: that runs the program; "portable" for kernels.
        handler: a name of HANDLERS.
        keep: save a fallback, which must not be used.
    """
    torch.manual_seed(0)
    module, x = nn.Sequential(*[nn.Linear(300, 300) for _ in range(6)]).eval(), torch.rand(200, 300)
    chosen = [] if backend == PORTABLE else [backend]
    program = delegate.to_backend(
        torch.export.export(module, (x,)), config={"backends": chosen, "fallback": {"keep": keep}}
    )
    assert_same(program(x), module(x))  # its library is loaded: an import in native code need not survive an exception
    before = signal.signal(signal.SIGALRM, HANDLERS[handler])
    try:
        for turn in range(5):
            with pytest.raises(TooSlow):
                _call_until(program, x, 0.002 + 0.003 * turn)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert_same(program(x), module(x))
    assert {n.backend for n in program.report.nodes if n.verdicts or not chosen} == {backend}


def _call_until(program: Callable[..., Any], x: torch.Tensor, seconds: float) -> None:
    end = time.monotonic() + 20
    signal.setitimer(signal.ITIMER_REAL, seconds)
    while time.monotonic() < end:
        program(x)
