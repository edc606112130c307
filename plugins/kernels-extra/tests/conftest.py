"""This package's kernels beside the portable ones in the tests of kernels."""

from __future__ import annotations

from delegate_kernels_extra.library import TABLE

from tests.support.kernels import LIBRARIES

LIBRARIES.append(TABLE)
