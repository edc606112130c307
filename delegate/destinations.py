"""Check before the work that its results can be written."""

from __future__ import annotations

import os
from pathlib import Path

from delegate.errors import DelegateError, PartitionError

PathLike = str | os.PathLike[str]


def require_file(
    path: PathLike, what: str, error: type[DelegateError] = PartitionError, *, streams: bool = False
) -> None:
    """Raise an error unless a file can be written.

    Args:
        path: of the file.
        what: its content, for the message.
        error: the error class.
        streams: True if it may be a pipe or a terminal.
    """
    target = _resolved(path)
    problem = remedy = ""
    if target is None:
        problem, remedy = "this is no path", "name a file"
    elif target.is_dir():
        problem, remedy = f"{str(target)!r} is a folder", "name a file in it"
    elif target.exists() and not target.is_file() and not streams:
        problem, remedy = f"{str(target)!r} is not a file", "name another"
    elif not target.parent.is_dir():
        problem, remedy = f"there is no folder {str(target.parent)!r}", "make it first"
    elif (not target.exists() or target.is_file()) and not os.access(target.parent, os.W_OK | os.X_OK):
        problem, remedy = f"nothing can be written in {str(target.parent)!r}", "name a folder where you may write"
    if problem:
        raise error(f"{what} cannot be written: {problem}", where=str(path), remedy=remedy)


def require_folder(path: PathLike, what: str, error: type[DelegateError]) -> None:
    """Raise an error unless files can be written to a folder, which may be new; see `require_file`."""
    target = _resolved(path)
    there = next((place for place in (target, *target.parents) if place.exists()), target) if target else None
    problem = ""
    if there is None:
        problem = "this is no path"
    elif not there.is_dir():
        problem = f"{str(there)!r} is not a folder"
    elif not os.access(there, os.W_OK | os.X_OK):
        problem = f"nothing can be written in {str(there)!r}"
    if problem:
        raise error(f"{what} cannot be written: {problem}", where=str(path), remedy="give another folder")


def _resolved(path: PathLike) -> Path | None:
    """Return the path without links, or None if it is invalid, e.g. with a null character."""
    try:
        return Path(os.path.realpath(path))
    except ValueError:
        return None
