"""Files on disk: atomic writes, text files with errors for users, and checks before the work that files can be written.

An atomic write replaces the old file by a complete new one.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import stat
import sys
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from delegate.errors import DelegateError, PartitionError

PathLike = str | os.PathLike[str]

_TEMPORARY = re.compile(r"\.delegate-[0-9a-f]{16}\.tmp")
_MOST_BYTES = 2**26  # of a text file
_NAME = r"""[^/\\\s"'<>|:,;()\[\]]+"""  # of a folder or file
_PATHS = re.compile(  # a quoted one, which may have spaces; or another of two names or more, unlike a division
    rf"""/(?:(?<=["']/)[^/\\"'\n]+/[^\\"'\n]+(?=["'])|(?<![\w.:/~)\]-]/){_NAME}(?:/{_NAME})+)"""
)
# Formats of other programs' models, in the first bytes of a file: where the mark begins, the mark, the name.
_FORMATS = (
    (0, b"GGUF", "GGUF"), (8, b'{"', "safetensors"), (0, b"\x89HDF\r\n", "HDF5"), (4, b"TFL3", "LiteRT"),
    (4, b"ET12", "ExecuTorch"),
)  # fmt: skip
_INSTALLED = re.compile(r".*[\\/](?:site|dist)-packages[\\/]")


def short_path(path: str) -> str:
    """Return the path of a source file as others may read it: without the folders of this machine and of its user.

    It is relative to the folder that holds its package, or to the longest entry of `sys.path` above it. A file that is
    below neither has its name alone.
    """
    return _short_path(path, tuple(sys.path))


def with_short_paths(text: str) -> str:
    """Return a message, a traceback or JSON with `short_path` of each absolute path in it."""
    return _PATHS.sub(lambda found: short_path(found[0]), text)


@functools.lru_cache(maxsize=1024)
def _short_path(path: str, entries: tuple[str, ...]) -> str:
    if installed := _INSTALLED.match(path):
        return path[installed.end() :]
    folder = top = os.path.dirname(path)
    while not _holds_home(top) and os.path.isfile(os.path.join(top, "__init__.py")):
        top = os.path.dirname(top)
    if top == folder:
        home = os.path.expanduser("~")
        roots = (root for root in map(os.path.abspath, entries) if root == home or not _holds_home(root))
        top = max((root for root in roots if path.startswith(root + os.sep)), key=len, default="")
    return path.removeprefix(top + os.sep) if top else re.split(r"[\\/]", path)[-1]


def _holds_home(folder: str) -> bool:
    """Return true if a folder is the home of the user or above it, so that paths below its parent have their name."""
    return folder in ("", os.sep) or f"{os.path.expanduser('~')}{os.sep}".startswith(f"{folder}{os.sep}")


def foreign_format(path: PathLike) -> str | None:
    """Return the name of another program's model format if a file is in one, e.g. "GGUF". The file is not parsed."""
    try:
        with open_to_read(path) as file:
            start = file.read(16)
    except (OSError, DelegateError):  # reported by whoever reads the file
        return None
    return next((name for at, mark, name in _FORMATS if start[at:].startswith(mark)), None)


@contextlib.contextmanager
def replacing(target: str) -> Iterator[BinaryIO]:
    """Open a temporary file, which is flushed and replaces the target at the end of the block. Errors change nothing.

    Args:
        target: its path, with links resolved.

    Raises:
        OSError: it cannot be written.
    """
    directory = os.path.dirname(target)
    _remove_stale(directory)
    temporary, opened = _new_temporary(directory)
    try:
        with opened as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            with contextlib.suppress(OSError):  # keep the access rights of the old file
                os.chmod(file.fileno() if os.chmod in os.supports_fd else temporary, os.stat(target).st_mode & 0o7777)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _flush_directory(Path(target).parent)


def open_to_read(path: PathLike) -> BufferedReader:
    """Open a file, or an inherited pipe without a name, as `<(command)` makes one.

    Raises:
        OSError: it cannot be opened, or it is a named pipe or a device, which may never have data, or never end.
    """
    file = open(path, "rb", opener=open_nonblocking)  # noqa: SIM115 - the caller closes it
    mode = os.fstat(file.fileno()).st_mode
    if stat.S_ISFIFO(mode) and not _is_named(path):
        os.set_blocking(file.fileno(), True)
    elif not stat.S_ISREG(mode):
        file.close()
        raise OSError(errno.EINVAL, f"this is a {'pipe' if stat.S_ISFIFO(mode) else 'device'}, not a file")
    return file


def require_regular(path: PathLike) -> None:
    """Raise OSError unless a path is a file that `open_to_read` opens: for libraries that open it themselves."""
    open_to_read(path).close()


def read_bytes(path: PathLike, most: int = _MOST_BYTES) -> bytes:
    """Return the content of a file; raise OSError if it cannot be read, ValueError if it has more than `most` bytes."""
    with open_to_read(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    return data


def open_nonblocking(path: str, flags: int) -> int:
    """Open a file without waiting for the other end of a pipe in its place: the `opener` of `open`."""
    return os.open(path, (flags & ~os.O_CREAT) | getattr(os, "O_NONBLOCK", 0), 0o666)


def _is_named(path: PathLike) -> bool:
    """Return True if a pipe has a name in a folder, as a shell's pipe does not."""
    target = os.path.realpath(path)
    return os.path.exists(target) and not target.startswith("/dev/")


def _new_temporary(directory: str) -> tuple[str, BinaryIO]:
    """Return a new file that is locked while it is open, so that no other process removes it as stale."""
    import secrets  # not needed for reading

    while True:
        path = os.path.join(directory, f".delegate-{secrets.token_hex(8)}.tmp")
        file = open(path, "xb")  # noqa: SIM115 - the caller closes it
        try:
            _lock(file)
        except BlockingIOError:
            file.close()  # another process is just removing it
            continue
        except OSError:  # a file system without locks
            return path, file
        if os.path.exists(path):
            return path, file
        file.close()


def _remove_stale(directory: str) -> None:
    """Remove temporary files of processes that were killed, which nobody has locked."""
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if _TEMPORARY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError), open(entry.path, "rb", opener=open_nonblocking) as file:
                    _lock(file)
                    os.unlink(entry.path)


def _lock(file: BinaryIO) -> None:
    """Lock a file; raises OSError if another process has locked it. Windows keeps open files from being removed."""
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _flush_directory(directory: Path) -> None:
    """Flush a directory, so that the new name survives a power failure, which some systems do not support."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_text(path: PathLike, text: str, what: str) -> None:
    """Write a text file as UTF-8; see `write_bytes`."""
    write_bytes(path, text.encode(), what)


def write_bytes(path: PathLike, data: bytes, what: str) -> None:
    """Write a file atomically; raises PartitionError if it cannot be written.

    `what` is its content, for the message.
    """
    try:
        if os.path.exists(path) and not os.path.isfile(path):  # a terminal or a pipe; a folder is an error
            with open(path, "wb", opener=open_nonblocking) as stream:
                os.set_blocking(stream.fileno(), True)
                stream.write(data)
            return
        with replacing(os.path.realpath(path)) as file:
            file.write(data)
    except (OSError, ValueError) as error:
        message = f"{what} cannot be written: {getattr(error, 'strerror', None) or error}"
        remedy = "name a file that you may write, in an existing folder, on a disk with free space"
        raise PartitionError(message, where=str(path), remedy=remedy) from error


def read_text(path: PathLike, what: str, remedy: str, most: int = _MOST_BYTES) -> str:
    """Read a file; raises PartitionError if it cannot be read, has more than `most` bytes, or the path is none.

    `what` is its content; `what` and `remedy` are for the message.
    """
    try:
        return read_bytes(path, most).decode()
    except (OSError, ValueError, TypeError) as error:
        raise PartitionError(f"{what} cannot be read: {error}", where=str(path), remedy=remedy) from error


def require_file(
    path: PathLike, what: str, error: type[DelegateError] = PartitionError, *, streams: bool = False
) -> None:
    """Raise an error unless a file can be written.

    Args:
        path: Where the file is.
        what: its content, for the message.
        error: the error class.
        streams: True if it may be a pipe or a terminal.
    """
    target = _resolve(path)
    problem = remedy = ""
    if target is None:
        problem, remedy = "this is not a path", "name a file"
    elif os.path.isdir(target):
        problem, remedy = f"{str(target)!r} is a folder", "name a file in it"
    elif os.path.exists(target) and not os.path.isfile(target) and not streams:
        problem, remedy = f"{str(target)!r} is not a file", "name another file"
    elif not os.path.isdir(target.parent):
        problem, remedy = f"there is no folder {str(target.parent)!r}", "create it first"
    elif (not os.path.exists(target) or os.path.isfile(target)) and not os.access(target.parent, os.W_OK | os.X_OK):
        problem, remedy = f"the folder {str(target.parent)!r} is not writable", "name a folder that you may write to"
    if problem:
        raise error(f"{what} cannot be written: {problem}", where=str(path), remedy=remedy)


def require_folder(path: PathLike, what: str, error: type[DelegateError]) -> None:
    """Raise an error unless files can be written to a folder, which may be new; see `require_file`."""
    target = _resolve(path)
    there = next((place for place in (target, *target.parents) if os.path.exists(place)), target) if target else None
    problem = ""
    if there is None:
        problem = "this is not a path"
    elif not os.path.isdir(there):
        problem = f"{str(there)!r} is not a folder"
    elif not os.access(there, os.W_OK | os.X_OK):
        problem = f"the folder {str(there)!r} is not writable"
    if problem:
        raise error(f"{what} cannot be written: {problem}", where=str(path), remedy="give another folder")


def _resolve(path: PathLike) -> Path | None:
    """Return the path without links, or None if it is invalid, e.g. with a null character."""
    try:
        return Path(os.path.realpath(path))
    except ValueError:
        return None
