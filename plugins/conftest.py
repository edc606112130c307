"""The surroundings of the project's own tests for the tests of all packages here, but with every plugin."""

from __future__ import annotations

import os

os.environ.setdefault("DELEGATE_BLOCK_PLUGINS", "")

import tests.conftest  # noqa: F401
