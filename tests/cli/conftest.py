"""The fixture `site`."""

from tests.support.plugins import site

__all__ = ["site"]
