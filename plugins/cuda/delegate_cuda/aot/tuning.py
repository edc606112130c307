"""The fastest schedule of every function of a region: from a database, or measured on the target.

TVM's MetaSchedule has the same purpose, but took minutes before its first measurement here (0.27). Here, every rule of
`schedules.rules` is tried once per function, starting with the functions with the most arithmetic.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from delegate.common.files import read_bytes
from delegate.errors import BackendUnavailable, LoweringError
from delegate_cuda.runtime import library
from delegate_cuda.runtime.library import CudaTarget


@dataclass(frozen=True, slots=True)
class TuningRecord:
    """A measurement.

    Args:
        function: its structural hash in TVM, which includes shapes and dtypes.
        target: architecture of the measurement.
        tvm: version of TVM.
        schedule: a name of `schedules.rules`.
        seconds: duration of a call; None if it did not compile or run.
    """

    function: str
    target: str
    tvm: str
    schedule: str
    seconds: float | None


_TYPES: Mapping[str, tuple[type, ...]] = {
    "function": (str,), "target": (str,), "tvm": (str,), "schedule": (str,), "seconds": (float, int, type(None)),
}  # fmt: skip


class Database:
    """The records of a file; a missing file has none.

    Args:
        path: path of the file.

    Raises:
        LoweringError: the file cannot be read, or a line of it is not a record.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._records: list[TuningRecord] = []
        self._times: dict[tuple[str, str, str], dict[str, float | None]] = {}
        for record in _read(path) if path.exists() else ():
            self.add(record)

    def times(self, function: str, target: str, tvm: str) -> Mapping[str, float | None]:
        """Return the last measurement of each schedule of a function: schedule -> seconds."""
        return self._times.get((function, target, tvm), {})

    def add(self, record: TuningRecord) -> None:
        self._records.append(record)
        of_function = self._times.setdefault((record.function, record.target, record.tvm), {})
        of_function[record.schedule] = record.seconds

    def save(self) -> None:
        """Replace the old file atomically; raise LoweringError if that fails."""
        temporary = self.path.with_name(f".{self.path.name}-{secrets.token_hex(8)}.tmp")
        try:
            temporary.write_text("".join(f"{json.dumps(asdict(r))}\n" for r in self._records), encoding="utf-8")
            os.replace(temporary, self.path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise _unusable(self.path, error) from error


def _read(path: Path) -> list[TuningRecord]:
    try:
        text = read_bytes(path).decode()
    except (OSError, ValueError) as error:
        raise _unusable(path, error) from error
    return [_record(line, f"{path}:{number}") for number, line in enumerate(text.splitlines(), 1)]


def _record(line: str, where: str) -> TuningRecord:
    try:
        record: Any = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    names = [f.name for f in fields(TuningRecord)]
    if (
        not isinstance(record, dict)
        or sorted(record) != sorted(names)
        or not all(isinstance(record[name], _TYPES[name]) for name in names)
    ):
        raise LoweringError("a line of the tuning database is not a record", where=where, remedy="delete that line")
    return TuningRecord(**record)


def _unusable(path: Path, error: Exception) -> LoweringError:
    return LoweringError(
        "the tuning database cannot be read or written",
        where=f"{path}: {error}",
        remedy="give the path of a file in a directory that you may write to",
    )


class Tuner:
    """A tuner, which schedules functions by measurements.

    Args:
        target: the architecture to compile for.
        trials: greatest number of measurements.
        path: path of the database.

    Raises:
        LoweringError: the database is absent or broken, or this machine cannot run the measurements.
    """

    def __init__(self, target: CudaTarget, trials: int, path: Path) -> None:
        if trials:
            _require_here(target, path)
        elif not path.exists():
            raise LoweringError("there is no tuning database", where=str(path), remedy="set trials to create one")
        self._target, self._left, self._database, self._version = target, trials, Database(path), library.version()
        self.path, self.measured = path, 0

    def schedule(self, functions: Sequence[Any]) -> list[Any]:
        """Return every function with its fastest known schedule, or with the default one."""
        from delegate_cuda.aot.schedules import apply_rule, by_default, rules

        if self._left:
            for function in sorted(functions, key=_work, reverse=True):
                self._measure(function)
        table, scheduled = rules(self._target), []
        for function in functions:
            times = {name: t for name, t in self._times(function).items() if t is not None and name in table}
            best = apply_rule(table[min(times, key=times.__getitem__)], function, self._target) if times else None
            scheduled.append(by_default(function, self._target) if best is None else best)
        return scheduled

    def _times(self, function: Any) -> Mapping[str, float | None]:
        return self._database.times(_name(function), self._target.arch, self._version)

    def _measure(self, function: Any) -> None:
        """Measure the schedules without a measurement, as long as trials are left."""
        from delegate_cuda.aot.schedules import apply_rule, rules

        if not _is_static(function):
            return
        known, before, hashed = self._times(function), self.measured, _name(function)
        for name, rule in rules(self._target).items():
            scheduled = None if name in known or not self._left else apply_rule(rule, function, self._target)
            if scheduled is not None:
                seconds = _seconds(scheduled, self._target)
                self._database.add(TuningRecord(hashed, self._target.arch, self._version, name, seconds))
                self._left -= 1
                self.measured += 1
        if self.measured > before:
            self._database.save()


def _require_here(target: CudaTarget, path: Path) -> None:
    if target.is_host:
        return
    try:
        gpu, name = library.local_gpu()
        here = f"this machine's {name} is {gpu}"
    except BackendUnavailable:
        gpu, here = None, "no NVIDIA GPU was found"
    if gpu is None or not target.runs_on(gpu):
        raise LoweringError(
            f"schedules for {target} are measured on such a GPU, but {here}",
            remedy=f"lower it on a machine with one, copy {path} here, and set trials: 0 to use its measurements",
        )


def _name(function: Any) -> str:
    import tvm_ffi

    return f"{tvm_ffi.structural_hash(function) % 2**64:016x}"


def _work(function: Any) -> float:
    import tvm
    from tvm.s_tir.analysis import estimate_tir_flops

    return float(estimate_tir_flops(tvm.IRModule({"main": function}))) if _is_static(function) else 0.0


def _is_static(function: Any) -> bool:
    """Return true if all arguments are tensors of known sizes, so that inputs can be made for a measurement."""
    return all(all(hasattr(size, "value") for size in getattr(p.ty, "shape", [None])) for p in function.params)


def _seconds(function: Any, target: CudaTarget) -> float | None:
    """Return the seconds of one call; None if it does not compile or run."""
    import tvm

    device = tvm.cpu() if target.is_host else tvm.cuda()
    try:
        words = tvm.target.Target(dict(target.for_tvm()), host="llvm")
        module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
        built = tvm.compile(module, words)
        arrays = [
            tvm.runtime.tensor(np.zeros([int(s) for s in p.ty.shape], str(p.ty.dtype)), device) for p in function.params
        ]
        measure = built.mod.time_evaluator("main", device, number=1, repeat=3, min_repeat_ms=30)
        return float(min(measure(*arrays).results))
    except Exception:  # a rule tries what it cannot know to compile, and TVM says no by errors of many kinds
        return None
