"""Python code in a process of its own, where modules can be absent from the start."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

AHEAD_OF_TIME = ("torch", "pydantic", "yaml", "rich", "typer")


def run(code: str, *args: str | Path, absent: Iterable[str] = (), path: str = "") -> subprocess.CompletedProcess[str]:
    """Run code with these arguments.

    Args:
        code: Python statements.
        args: its `sys.argv[1:]`.
        absent: modules that cannot be imported there.
        path: a directory for `sys.path`.
    """
    # Of this process too: in a worktree it has the checkout, which is not the one that is installed.
    entries = filter(None, (path, os.environ.get("PYTHONPATH")))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entries)}
    with tempfile.TemporaryDirectory() as folder:
        for module in absent:  # processes that this one starts, as for probes, do without it too
            Path(folder, f"{module}.py").write_text(f"raise ModuleNotFoundError('no {module}', name={module!r})\n")
        block = f"import sys; sys.modules.update(dict.fromkeys({list(absent)!r})); sys.path.insert(1, {folder!r})\n"
        command = [sys.executable, "-W", "error", "-c", block + code, *map(str, args)]
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=120)
