"""Threads stay inside the affinity mask and the quota of the process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.cases.cores import LIMITS, check

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="masks and control groups are Linux's")


@pytest.mark.parametrize("limit", LIMITS)
def test_one_core(limit: str, tmp_path: Path) -> None:
    check(["openvino"], limit, tmp_path)
