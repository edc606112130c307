"""Fixtures of these tests."""

from collections.abc import Iterator

import pytest

from tests import zoo
from tests.plugins import site

__all__ = ["site"]


@pytest.fixture(autouse=True)
def _silence() -> Iterator[None]:
    """torchao and what it imports warn, and log, as they please."""
    with zoo.libraries():
        yield
