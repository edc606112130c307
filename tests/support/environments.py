"""Fresh environments with packages of this one, so that tests install this project without a network."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Environment:
    """A virtual environment without pip and without any part of the checkout.

    Args:
        folder: its folder, with `bin/python`.
    """

    folder: Path

    @classmethod
    def create(cls, folder: Path, packages: Sequence[str]) -> Environment:
        """Create an environment in which these installed packages are importable: they are links to this one's."""
        venv.create(folder, with_pip=False)
        target = next(folder.glob("lib/python3*/site-packages"))
        for name in packages:
            for file in importlib.metadata.files(name) or ():
                first = file.parts[0]
                if first != ".." and not (target / first).exists():
                    (target / first).symlink_to(Path(str(file.locate())).parents[len(file.parts) - 1] / first)
        return cls(folder)

    @property
    def python(self) -> Path:
        """The interpreter."""
        return self.folder / "bin" / "python"

    @staticmethod
    def variables() -> dict[str, str]:
        """Return the environment variables of a process in it: without those that lead to other packages."""
        return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def install(self, *what: str | Path) -> None:
        """Install a wheel or a checkout without what it requires."""
        pip = [sys.executable, "-m", "pip", "--python", self.python, "install", "--quiet", "--no-deps", "--no-index"]
        done = subprocess.run([*pip, *what], env=self.variables(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
