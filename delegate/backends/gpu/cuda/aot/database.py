"""The database of measured schedules: a file of JSON lines, one per measurement."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from delegate.errors import LoweringError


@dataclass(frozen=True, slots=True)
class Record:
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
        LoweringError: the file cannot be read, or a line of it is no record.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._records: list[Record] = []
        self._times: dict[tuple[str, str, str], dict[str, float | None]] = {}
        for record in _read(path) if path.exists() else ():
            self.add(record)

    def times(self, function: str, target: str, tvm: str) -> Mapping[str, float | None]:
        """Return the last measurement of each schedule of a function: schedule -> seconds."""
        return self._times.get((function, target, tvm), {})

    def add(self, record: Record) -> None:
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


def _read(path: Path) -> list[Record]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable(path, error) from error
    return [_record(line, f"{path}:{number}") for number, line in enumerate(text.splitlines(), 1)]


def _record(line: str, where: str) -> Record:
    try:
        record: Any = json.loads(line)
    except ValueError:
        record = None
    names = [f.name for f in fields(Record)]
    if (
        not isinstance(record, dict)
        or sorted(record) != sorted(names)
        or not all(isinstance(record[name], _TYPES[name]) for name in names)
    ):
        raise LoweringError("a line of the tuning database is no record", where=where, remedy="delete that line")
    return Record(**record)


def _unusable(path: Path, error: Exception) -> LoweringError:
    return LoweringError(
        "the tuning database cannot be read or written",
        where=f"{path}: {error}",
        remedy="give the path of a file in a directory where you may write",
    )
