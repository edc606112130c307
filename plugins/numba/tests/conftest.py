"""The surroundings of the project's own tests, but for the plugins, which those leave out."""

from __future__ import annotations

import os

os.environ.setdefault("DELEGATE_BLOCK_PLUGINS", "")

import tests.conftest  # noqa: F401
