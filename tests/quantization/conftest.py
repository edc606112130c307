"""Fixtures of these tests."""

from tests.support.plugins import site
from tests.support.silence import silence

__all__ = ["silence", "site"]
