"""Fixtures of these tests."""

from tests.plugins import site

__all__ = ["site"]
