"""The surroundings of the project's own tests, with this package's kernels beside the portable ones."""

from __future__ import annotations

import os

os.environ.setdefault("DELEGATE_BLOCK_PLUGINS", "")

from delegate_kernels_extra.library import TABLE

import tests.conftest  # noqa: F401
from tests.support.kernels import LIBRARIES

LIBRARIES.append(TABLE)
