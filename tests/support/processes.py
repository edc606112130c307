"""Python code in a process of its own, where modules can be absent from the start."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

AHEAD_OF_TIME = ("torch", "pydantic", "yaml", "rich", "typer")

_RUN = """
import numpy as np
import delegate
with np.load(sys.argv[2]) as given, delegate.load(sys.argv[1]) as loaded:
    np.savez(sys.argv[3], *loaded.method(loaded.default_method).run(list(given.values())))
"""


def run_without_torch(program: Path, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the flat results of a program file on flat inputs, in a process without what compiles programs."""
    with tempfile.TemporaryDirectory() as folder:
        given, results = Path(folder, "inputs.npz"), Path(folder, "results.npz")
        np.savez(given, *inputs)
        done = run(_RUN, program, given, results, absent=AHEAD_OF_TIME)
        assert done.returncode == 0, done.stderr
        with np.load(results) as saved:
            return list(saved.values())


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
