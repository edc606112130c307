"""Threads stay inside the affinity mask and the quota of the process, on every backend."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.availability import require
from tests.support.cases.cores import LIMITS, check

BACKENDS = {"portable": [], "xnnpack": ["xnnpack"]}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="masks and control groups are Linux's")


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_one_core(backend: str, limit: str, tmp_path: Path) -> None:
    require(backend)
    check(BACKENDS[backend], limit, tmp_path)
