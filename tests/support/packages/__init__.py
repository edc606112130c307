"""Packages that tests install with pip, as any other package, into a folder that is put on the path."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def install(target: Path, *packages: Path) -> Path:
    """Install packages, from copies of their folders, into a folder; gives it."""
    sources = [shutil.copytree(package, target.parent / f"{package.name}-source") for package in packages]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run(
        [*command, "--disable-pip-version-check", "--target", str(target), *map(str, sources)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return target
