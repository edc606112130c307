"""A process that never imports torch and runs one saved program after another."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np

from tests.support.processes import AHEAD_OF_TIME

_SERVE = """
import json, sys
sys.modules.update(dict.fromkeys(json.loads(sys.argv[1])))  # they cannot be imported
import numpy as np
import delegate

for line in sys.stdin:
    program, inputs, outputs = json.loads(line)
    try:
        with np.load(inputs) as given, delegate.load(program) as loaded:
            results = loaded.method(loaded.default_method).run(list(given.values()))
        np.savez(outputs, *results)
        print(json.dumps(""), flush=True)
    except Exception as error:
        print(json.dumps(f"{type(error).__name__}: {error}"), flush=True)
"""


class Worker:
    """The process; it is started when first needed, and again after a crash.

    Args:
        folder: for files of its own.
        seconds: what one run may take.
    """

    def __init__(self, folder: Path, seconds: float = 120) -> None:
        self._folder, self._seconds = folder, seconds
        self._process: subprocess.Popen[str] | None = None

    def run(self, program: Path, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The flat results of a program file on flat inputs; raises RuntimeError where it fails, crashes or hangs."""
        paths = [str(program), str(self._folder / "inputs.npz"), str(self._folder / "outputs.npz")]
        np.savez(paths[1], *inputs)
        problem = self._ask(json.dumps(paths))
        if problem:
            raise RuntimeError(problem)
        with np.load(paths[2]) as results:
            return list(results.values())

    def _ask(self, line: str) -> str:
        if self._process is None:
            command = [sys.executable, "-W", "error", "-c", _SERVE, json.dumps(AHEAD_OF_TIME)]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], self._seconds)
        answer = self._process.stdout.readline() if ready else ""
        if answer:
            return str(json.loads(answer))
        code = self._process.poll()
        self.close()
        return f"the process crashed: exit code {code}" if ready else f"no answer after {self._seconds} s"

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
