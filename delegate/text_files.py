"""Text files of plans, lockfiles and costs, with errors for users."""

from __future__ import annotations

import os

from delegate.errors import PartitionError
from delegate.whole_files import open_pipe_to_write, open_to_read, replacing

PathLike = str | os.PathLike[str]
_MOST_BYTES = 2**26


def write_text(path: PathLike, text: str, what: str) -> None:
    """Write a file atomically; raises PartitionError if it cannot be written.

    `what` is its content, for the message.
    """
    try:
        if os.path.exists(path) and not os.path.isfile(path):  # a terminal or a pipe; a folder is an error
            with open_pipe_to_write(path) as stream:
                stream.write(text.encode())
            return
        with replacing(os.path.realpath(path)) as file:
            file.write(text.encode())
    except (OSError, ValueError) as error:
        message = f"{what} cannot be written: {getattr(error, 'strerror', None) or error}"
        remedy = "name a file where you may write, in a folder that is there, on a disk with space"
        raise PartitionError(message, where=str(path), remedy=remedy) from error


def read_text(path: PathLike, what: str, remedy: str, most: int = _MOST_BYTES) -> str:
    """Read a file; raises PartitionError if it cannot be read, or has more than `most` bytes.

    `what` is its content; `what` and `remedy` are for the message.
    """
    try:
        with open_to_read(path) as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise ValueError(f"it has more than {most} bytes")
        return data.decode()
    except (OSError, ValueError) as error:
        raise PartitionError(f"{what} cannot be read: {error}", where=str(path), remedy=remedy) from error
