"""The surroundings of the project's own tests."""

from __future__ import annotations

import tests.conftest  # noqa: F401
