"""A registry with the backend of these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from delegate.registry import Registry
from tests.runtime import stranger
from tests.support.plugins import registered


@pytest.fixture
def with_stranger() -> Iterator[Registry]:
    """The default registry, with the backend `stranger`."""
    yield from registered(stranger.INFO)
