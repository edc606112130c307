"""Every backend keeps the caller's rounding and flush to zero, at import, compile, load, call and close."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.availability import require
from tests.support.cases.float_environment import ENVIRONMENTS, check

BACKENDS = {"portable": [], "xnnpack": ["xnnpack"]}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the child process calls glibc")


@pytest.mark.extended
@pytest.mark.parametrize("environment", ENVIRONMENTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_it_is_kept(backend: str, environment: str, tmp_path: Path) -> None:
    require(backend)
    check(BACKENDS[backend], environment, tmp_path, keeps_subnormal=backend != "xnnpack")
