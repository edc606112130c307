"""Options that name output files: their paths are checked before any work."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from delegate.destinations import require_file, require_folder
from delegate.errors import ConfigError, DelegateError, InputError, PartitionError, ProgramError

Check = Callable[[Path | None], Path | None]  # of an option, as typer takes it


def _file(what: str, error: type[DelegateError], *, streams: bool = False) -> Check:
    def check(value: Path | None) -> Path | None:
        if value is not None:
            require_file(value, what, error, streams=streams)
        return value

    return check


def _folder(what: str, error: type[DelegateError]) -> Check:
    def check(value: Path | None) -> Path | None:
        if value is not None:
            require_folder(value, what, error)
        return value

    return check


PROGRAM = _file("the program", ProgramError)
BUNDLE = _file("the bundle", ProgramError)
LOCK = _file("the lockfile", PartitionError, streams=True)
COSTS = _file("costs", PartitionError, streams=True)
OUTPUTS = _folder("the outputs", InputError)
PACKAGE = _folder("the package", DelegateError)


def require_distinct(written: Mapping[str, Path | None], read: Mapping[str, Path | None]) -> None:
    """Raise ConfigError if an output file is also an input file or another output file.

    Args:
        written: option -> the output file, if any.
        read: option -> the input file, if any.
    """
    seen: dict[str, str] = {os.path.realpath(path): option for option, path in read.items() if path is not None}
    for option, path in written.items():
        if path is None or (path.exists() and not path.is_file()):
            continue  # streams are not overwritten
        other = seen.setdefault(os.path.realpath(path), option)
        if other != option:
            raise ConfigError(f"{option} would write over {other}", where=str(path), remedy="name another file")
