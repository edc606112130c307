"""Delegates that report the operators of a context binary, from QNN's own profile.

QNN writes a row of CSV per operator of a call, in cycles, and rows for the whole call in cycles and in microseconds.
https://onnxruntime.ai/docs/execution-providers/QNN-ExecutionProvider.html, option profiling_level
"""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Iterable, Sequence
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

from delegate.runtime.backend import Delegate, ReportOperator
from delegate_onnxruntime.onnx.runtime.blob import OnnxModel
from delegate_onnxruntime.onnx.runtime.provider import Provider
from delegate_onnxruntime.onnx.runtime.session import OnnxDelegate, OpenSession

_TIME = "Accelerator (execute) time"
_CYCLES = f"{_TIME} (cycles)"


class DspDelegate(OnnxDelegate):
    """A context binary, whose operators QNN can report."""

    def profiled(self, report: ReportOperator) -> Delegate | None:
        return _ProfiledDelegate(self._open, self._model, self._provider, report)


class _ProfiledDelegate(OnnxDelegate):
    """A context binary that reports its operators after each call."""

    def __init__(self, open_: OpenSession, model: OnnxModel, provider: Provider, report: ReportOperator) -> None:
        self._folder = TemporaryDirectory(prefix="delegate-profile-")
        self._path, self._position = os.path.join(self._folder.name, "qnn.csv"), 0
        self._calls = _Calls(report)
        super().__init__(partial(open_, profile=self._path), model, provider)

    def execute(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        start = time.perf_counter_ns()
        super().execute(inputs, outputs)
        self._calls.add(csv.reader(self._new_lines()), start)

    def _new_lines(self) -> list[str]:
        """Return the lines that QNN has written since the last call; a new session may write the file anew."""
        try:
            with open(self._path, encoding="utf-8", errors="replace", newline="") as file:
                if self._position <= os.path.getsize(self._path):
                    file.seek(self._position)
                text = file.read()
                self._position = file.tell()
        except FileNotFoundError:  # this version of QNN writes none
            return []
        return text.splitlines()

    def close(self) -> None:
        super().close()
        self._folder.cleanup()


class _Calls:
    """A reader of a profile's rows, which reports the operators at the end of each call."""

    def __init__(self, report: ReportOperator) -> None:
        self._report = report
        self._total = 0
        self._operators: list[tuple[str, str, int]] = []

    def add(self, rows: Iterable[Sequence[str]], start: int) -> None:
        """Add rows of a call that began at `start`.

        Args:
            rows: timestamp, kind, value, unit, source, level, and what the value measures.
            start: nanoseconds.
        """
        for row in rows:
            if len(row) != 7 or not row[2].isdigit():  # the header
                continue
            kind, value, unit, what = row[1], int(row[2]), row[3], row[6]
            if kind == "NODE" and unit == "CYCLES":
                name, _, number = what.removesuffix(" (cycles)").rpartition("OpId_")
                self._operators.append((f"OpId_{number}", name.rstrip(": "), value))
            elif what == _CYCLES:
                self._total = value
            elif what == _TIME and unit == "US":
                for number, name, cycles in self._operators:
                    duration = value * 1000 * cycles // max(self._total, 1)
                    self._report(number, name, start, duration)
                    start += duration
                self._operators.clear()
