"""Faults of plugins while a program is bound: delegates that were made before are closed."""

from __future__ import annotations

import pytest

import delegate
from delegate.errors import BackendFailed
from delegate.program.model import MethodDefinition
from delegate.registry import Registry
from delegate.runtime import context
from tests.runtime import stranger

CLOSED: list[object] = []


class Bang(BaseException):
    """What nobody catches."""


@pytest.fixture(autouse=True)
def closed(with_stranger: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    CLOSED.clear()
    monkeypatch.setattr(stranger.Adder, "close", lambda self: CLOSED.append(self))  # noqa: PLW0108 - a method


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, Bang])
def test_delegates_are_closed(error, monkeypatch):
    def method(resources: object, definition: MethodDefinition) -> None:
        raise error("bang")

    monkeypatch.setattr(context, "Method", method)
    with pytest.raises(error):
        delegate.load(stranger.program({}, {}))
    assert len(CLOSED) == 2


def test_a_delegate_that_does_not_take_the_call():
    with pytest.raises(BackendFailed, match=r"it adds two, not 3 \(partition stranger_0 of stranger"):
        delegate.load(stranger.program(inputs=3))
    assert len(CLOSED) == 1
