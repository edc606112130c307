"""Trials: programs that run in processes of their own during the measurement, since they may crash or hang."""

from __future__ import annotations

import contextlib
import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from delegate.errors import DelegateError
from delegate.plugins import one_line
from delegate.processes.process import Process, ProcessEnded
from delegate.program import file
from delegate.program.model import Program

ROUND_SECONDS = 0.04  # of calls in a round
MIN_TIMEOUT = 10.0  # seconds for an answer, for any budget
BUDGET_OVER = "the budget was spent before it ran"
_MAX_STDERR = 200  # characters in the failure message


class TrialFailed(Exception):
    """A program could not be measured; the message is the reason."""


class RoundsOver(Exception):
    """A runner has no more rounds of a program."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A program to measure.

    Args:
        name: unique in one measurement.
        program: compiled.
        method: the method to call.
        objective: a key of `delegate.report.measured.UNITS`.
        options: Backend name -> its options of `delegate.load`.
        is_watched: True if its steps are timed too.
        limit: most seconds for each answer, if its place allows more.
    """

    name: str
    program: Program
    method: str
    objective: str = "latency"
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    is_watched: bool = False
    limit: float = math.inf


@dataclass(frozen=True, slots=True)
class RoundResult:
    """One round of one program.

    Args:
        cost: seconds per call, or bytes.
        steps: seconds of each step if these are watched.
        waited: time that its threads were ready without a core, relative to the time of the round; 0 if unknown.
    """

    cost: float
    steps: Mapping[str, float] = field(default_factory=dict)
    waited: float = 0.0


class ProgramRunner(Protocol):
    """A started program that can be measured."""

    def ready(self) -> None:
        """Wait until the program can be called; raises TrialFailed."""

    def measure_round(self) -> RoundResult:
        """Measure one round; raises TrialFailed, and RoundsOver when all rounds are over of any program."""

    def outputs(self, leaves: Sequence[Any]) -> list[Any]:
        """Return the results of a call in a new context (see `worker`) as arrays, with None for non-numeric results.

        Raises TrialFailed.
        """

    def close(self) -> None:
        """End the program."""


class RunnerFactory(Protocol):
    """A place to run programs: local processes or other machines."""

    @property
    def machines(self) -> Collection[str]:
        """Descriptions of the other machines that programs have run on."""

    def start(self, trial: Trial) -> ProgramRunner:
        """Start a program; raises TrialFailed."""


class Cluster(AbstractContextManager["Cluster"], ABC):
    """A connection to a cluster. Entering it raises ConfigError without a cluster."""

    @abstractmethod
    def create_factory(
        self, leaves: Sequence[Any], kernels: Sequence[str] | None, limit: float, left: Callable[[], float]
    ) -> RunnerFactory:
        """Return the factory for a method, with the `machines` that its programs run on.

        It takes the arguments of `ProcessRunnerFactory`. Its `start` raises TrialFailed if no machine has the required
        devices.
        """


OpenCluster = Callable[[str], Cluster]
"""The runtime part of "ray": its argument is the address of the cluster."""


class ProcessRunnerFactory:
    """A factory that starts each program in a local process.

    Args:
        folder: A folder for files that the processes read.
        leaves: the flat arguments of each call; see `delegate.runtime.method.Method.leaves`.
        kernels: names of the kernel libraries.
        limit: seconds after which a process without an answer is ended.
        left: returns the remaining seconds of the budget; no answer may take more than `MIN_TIMEOUT` longer.
        trust_code: True if partitions of machine code may run; see `delegate.load`.
    """

    machines: Collection[str] = ()

    def __init__(
        self,
        folder: Path,
        leaves: Sequence[Any],
        kernels: Sequence[str] | None,
        limit: float,
        left: Callable[[], float] = lambda: math.inf,
        *,
        trust_code: bool = True,
    ) -> None:
        self.folder, self.kernels, self.limit, self.trust_code = folder, kernels, limit, trust_code
        self._left = left
        self._inputs = folder / "inputs.npz"
        save_leaves(self._inputs, leaves)
        self._count = 0

    def start(self, trial: Trial) -> ProcessRunner:
        """Start a program; raises TrialFailed if no process can be started."""
        self._count += 1
        path = self.folder / f"{self._count}.dlg"
        file.save(trial.program, path)
        request = {
            "path": str(path),
            "method": trial.method,
            "inputs": str(self._inputs),
            "kernels": None if self.kernels is None else list(self.kernels),
            "trusted": self.trust_code,
            "watched": trial.is_watched,
            "options": {name: dict(values) for name, values in trial.options.items()},
        }
        return ProcessRunner(trial, path, request, min(self.limit, trial.limit), self._left)


class ProcessRunner:
    """A program in a process of its own.

    Args:
        trial: the program.
        path: Where the program's file is.
        request: the request that opens it.
        limit: seconds for each answer.
        left: see `ProcessRunnerFactory`.
    """

    def __init__(
        self, trial: Trial, path: Path, request: Mapping[str, Any], limit: float, left: Callable[[], float]
    ) -> None:
        self._trial, self._path, self._limit, self._left = trial, path, limit, left
        try:
            self._process = Process("delegate.placement.runtime.worker:questions", is_quiet=True)
        except OSError as error:
            raise TrialFailed(f"no process can be started: {error}") from error
        self._send("open", request)

    def ready(self) -> None:
        """Wait until the program has run once."""
        self._receive()

    def measure_round(self) -> RoundResult:
        """Measure one round."""
        if self._trial.objective == "file size":
            return RoundResult(float(self._path.stat().st_size))
        self._send("measure_round", ROUND_SECONDS)
        answer = self._receive()
        if self._trial.objective == "memory":
            self._send("memory")
            answer = self._receive()
        return RoundResult(float(answer["cost"]), dict(answer.get("steps", {})), float(answer.get("waited", 0.0)))

    def outputs(self, leaves: Sequence[Any]) -> list[Any]:
        """Return the results of a call as arrays, with None for non-numeric results."""
        inputs, outputs = (self._path.with_suffix(f".{kind}.npz") for kind in ("in", "out"))
        save_leaves(inputs, leaves)
        self._send("outputs", {"inputs": str(inputs), "path": str(outputs)})
        count = int(self._receive()["count"])
        with np.load(outputs) as stored:
            return [stored.get(str(i)) for i in range(count)]

    def close(self) -> None:
        """End the process and its child processes."""
        self._process.end()

    def _send(self, question: str, message: Any = None) -> None:
        with contextlib.suppress(ProcessEnded):  # the next answer reports it
            self._process.send(question, message, limit=self._limit)

    def _receive(self) -> Mapping[str, Any]:
        most = max(self._left(), 0.0) + MIN_TIMEOUT
        try:
            return dict(self._process.receive(self._process.clock(min(self._limit, most), most)))
        except ProcessEnded as end:
            if end.is_late:
                raise TrialFailed(end.ending) from end
            line = next((text for text in end.output.splitlines() if not text.startswith("INFO")), "")
            raise TrialFailed(f"{end.ending} while measured{line and ': '}{line[:_MAX_STDERR]}") from end
        except DelegateError as error:
            raise TrialFailed(one_line(error)) from error


def answer_timeout(budget: float) -> float:
    """Return the seconds that a program has for an answer."""
    return max(MIN_TIMEOUT, budget / 2)


def seconds_until(end: float) -> Callable[[], float]:
    """Return a function for the remaining seconds until a time of `time.monotonic`."""
    return lambda: end - time.monotonic()


def save_leaves(path: Path | BinaryIO, leaves: Sequence[Any]) -> None:
    """Write arguments for `worker.leaves`: arrays (bfloat16 as its bits in uint16), and plain values."""
    arrays = {str(i): leaf for i, leaf in enumerate(leaves) if isinstance(leaf, np.ndarray)}
    plain = [None if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]
    arrays["plain"] = np.array(json.dumps(plain))
    np.savez(path, **arrays)  # type: ignore[arg-type]
