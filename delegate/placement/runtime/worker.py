"""The process that runs one program during its measurement. Without torch.

The first question opens the program.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from delegate.processes.answering import Questions
from delegate.processes.limits import call_times, seconds_without_core
from delegate.runtime.loaded import LoadedProgram, load
from delegate.runtime.profile import Profile

_WARM = 0.003  # seconds of warm-up calls before each round, since other programs ran in between
_NUMBERS = (np.ndarray, np.generic, bool, int, float)
_LEAST = 2  # calls that count in a round


def questions() -> Questions:
    """Return the questions about one program, which the first of them opens."""
    work = _Work()
    return {
        "open": lambda message, _: work.open(**message),
        "measure_round": lambda seconds, _: work.measure_round(seconds),
        "memory": lambda *_: work.memory(),
        "outputs": lambda message, _: work.outputs(**message),
    }


class _Work:
    program: LoadedProgram
    profile: Profile | None = None

    def __init__(self) -> None:
        self.watching = contextlib.ExitStack()  # to the end of the process

    def open(
        self,
        path: str,
        method: str,
        inputs: str,
        kernels: list[str] | None,
        trusted: bool,
        watched: bool,
        options: dict[str, Any],
    ) -> Mapping[str, Any]:
        """Load a program and run it once.

        Args:
            path: Where the program's file is.
            method: the method to call.
            inputs: see `leaves`.
            kernels: names of the kernel libraries.
            trusted: True if partitions of machine code may run.
            watched: True if its steps are timed.
            options: The options of `delegate.load`.
        """
        before = _memory()
        self.program = load(path, kernels=kernels, trust_code=trusted, options=options, fallback="error")
        self.method, self.leaves = method, leaves(inputs)
        if watched:
            self.profile = self.watching.enter_context(self.program.profile())
        self.run = self.program.method(method).run
        self.run(self.leaves)
        self.base = before
        return {}

    def measure_round(self, seconds: float) -> Mapping[str, Any]:
        """Call the method for some time and return seconds per call, and per watched step.

        Args:
            seconds: The seconds of calls that count; at least `_LEAST` calls do.
        """
        reset = self.program.reset if self.program.states else None
        call_times(lambda: self.run(self.leaves), _WARM, 1, reset)
        before, waited = self._steps(), seconds_without_core()
        times = call_times(lambda: self.run(self.leaves), seconds, _LEAST, reset)
        share = (seconds_without_core() - waited) / sum(times)
        cost = median(times)
        typical = 1e-9 * cost / sum(times)  # scale to the median call: delayed calls only determine the shares
        steps = {name: (spent - before.get(name, 0)) * typical for name, spent in self._steps().items()}
        return {"cost": cost, "steps": steps, "waited": max(share, 0.0)}

    def memory(self) -> Mapping[str, Any]:
        """Return the peak bytes of the process since before the program was loaded."""
        return {"cost": max(_memory() - self.base, 0)}

    def outputs(self, inputs: str, path: str) -> Mapping[str, Any]:
        """Write the results of a call in a new context to an .npz file, and return their number.

        The results are the outputs, then the inputs that the method writes to, then the states by name.
        """
        context, arguments = self.program.context(), leaves(inputs)
        method = context.method(self.method)
        results = [*method.run(arguments), *(arguments[number] for number in sorted(method.written))]
        results += [state for _, state in sorted(context.snapshot().items())]
        arrays = {str(i): np.asarray(r) for i, r in enumerate(results) if isinstance(r, _NUMBERS)}
        np.savez(path, **arrays)  # type: ignore[arg-type]
        return {"count": len(results)}

    def _steps(self) -> dict[str, int]:
        """Return the nanoseconds so far, by the name of a partition or of the first value of a step."""
        spent: dict[str, int] = {}
        for timing in () if self.profile is None else self.profile.timings:
            what = timing.what.removeprefix("copy for ")
            name = what.removeprefix("partition ") if what.startswith("partition ") else timing.name
            spent[name] = spent.get(name, 0) + timing.nanoseconds
        return spent


def _memory() -> int:
    """Return the peak bytes of this process."""
    with contextlib.suppress(OSError, LookupError, ValueError):  # Linux has the peak of this program alone,
        text = Path("/proc/self/status").read_text().partition("VmHWM:")[2]
        return int(text.split()[0]) * 1024
    import resource  # and this includes the memory of the parent at the start

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def leaves(path: str | Path) -> list[Any]:
    """Return the arguments in a file of `trials.save_leaves`: arrays and plain values."""
    with np.load(path) as stored:
        plain = json.loads(str(stored["plain"]))
        return [stored.get(str(i), value) for i, value in enumerate(plain)]
