"""Plans, lockfiles and costs as files of text, and what is said where such a file cannot be read or written."""

from __future__ import annotations

import os
from pathlib import Path

from delegate.errors import PartitionError

PathLike = str | os.PathLike[str]


def write_text(path: PathLike, text: str, what: str) -> None:
    """Write a file; raises PartitionError where that cannot be. `what` it holds is for the message."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        message = f"{what} cannot be written: {error}"
        raise PartitionError(message, where=str(path), remedy="name a file in a folder that is there") from error


def read_text(path: PathLike, what: str, remedy: str) -> str:
    """Read a file; raises PartitionError where that cannot be. `what` it holds and `remedy` are for the message."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PartitionError(f"{what} cannot be read: {error}", where=str(path), remedy=remedy) from error
