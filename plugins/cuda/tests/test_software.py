"""test_on_gpu.py on the GPU that the CPU plays, its threads taking turns in either order: one of them meets a race."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .software.build import build

pytest.importorskip("tvm_ffi", reason="TVM is not installed: pip install delegate-cuda")
pytestmark = pytest.mark.skipif(
    shutil.which("nvcc") is None or shutil.which("g++") is None or platform.machine() != "x86_64",
    reason="the software GPU needs CUDA's headers, g++ and x86-64",
)


@pytest.fixture(scope="module")
def software(tmp_path_factory):
    """The environment of a process that has one."""
    added = build(tmp_path_factory.mktemp("cuda") / "software")
    return {**os.environ, **{n: os.pathsep.join(filter(None, (v, os.environ.get(n)))) for n, v in added.items()}}


def pytest_on(software, *arguments, **variables):
    tests = Path(__file__).with_name("test_on_gpu.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests), *arguments]
    done = subprocess.run(command, env={**software, **variables}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


@pytest.mark.extended
def test_steps_memory_sizes_and_masks(software):
    pytest_on(
        software, "-k", "steps_within_steps or stay_on_the_gpu or sizes_that_change or (any_dtype and bool and tf32)"
    )


@pytest.mark.slow
@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_all(software, order):
    pytest_on(software, SOFTWARE_CUDA_ORDER=order)
