"""A fixture for modules whose every test uses libraries that warn, and log, as they please: import it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import zoo


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    """torchao and what it imports; torch's decompositions, which subclasses of Tensor need, warn of its tree specs."""
    with zoo.libraries():
        yield
