"""The fixture `site`."""

from tests.plugins import site

__all__ = ["site"]
