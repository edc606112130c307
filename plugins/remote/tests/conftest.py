"""Fixtures of the project's own tests."""

from __future__ import annotations

from tests.support.placing import at_once
from tests.support.plugins import site

__all__ = ["at_once", "site"]
