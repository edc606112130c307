"""Fixtures of these tests."""

from tests.plugins import site
from tests.silence import silence

__all__ = ["silence", "site"]
