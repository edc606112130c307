"""Faults of plugins while a program is bound: delegates that were made before are closed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import delegate
from delegate.errors import BackendFailed
from delegate.program.model import MethodDefinition
from delegate.registry import default_registry
from delegate.runtime import context
from tests.runtime import stranger

CLOSED: list[object] = []


class Bang(BaseException):
    """What nobody catches."""


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    CLOSED.clear()

    def close(self: stranger.Adder) -> None:
        CLOSED.append(self)

    monkeypatch.setattr(stranger.Adder, "close", close)
    default_registry.cache_clear()
    default_registry().register(stranger.INFO)
    yield
    default_registry.cache_clear()


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
