"""The plugin keeps the caller's rounding and flush to zero, at import, compile, load, call and close."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.cases.float_environment import ENVIRONMENTS, check

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the child process calls glibc")


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_it_is_kept(environment: str, tmp_path: Path) -> None:
    check(["openvino"], environment, tmp_path)
