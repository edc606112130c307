"""Sources for the bytes of a program file: a path, memory, a file object, a member of an archive."""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import stat
import struct
from typing import TYPE_CHECKING, BinaryIO, Protocol

from delegate.errors import ProgramError
from delegate.program.segments import ALIGNMENT, flat

if TYPE_CHECKING:
    import zipfile

MAGIC = b"\x89DLG\r\n\x1a\n"  # not ASCII, and damaged by any transfer that converts line ends
MAX_RATIO = 10  # of a compressed member: weights hardly compress
_LEAST_UNPACKED = 1 << 26  # bytes that a member may always unpack to
_LOCAL_HEADER = struct.Struct("<26xHH")  # of a member of a zip archive: the sizes of its name and of its extra field
_KINDS = "a path, bytes, a binary file object, or a file in an archive or a package (zipfile.Path, importlib.resources)"


class Readable(Protocol):
    """An object that returns all its bytes at once: a `zipfile.Path`, a file of `importlib.resources`."""

    def is_file(self) -> bool:
        """Return True if the file exists."""

    def read_bytes(self) -> bytes:
        """Return all its bytes."""


Source = str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO | Readable


def open_source(source: Source, *, copy: bool = False) -> tuple[memoryview, str]:
    """Return the bytes of a source, and its name for messages.

    A file given by path is mapped, and so is an uncompressed member of a zip archive on the disk, if it is aligned.
    Anything else is read: a file object from its position to its end.

    Args:
        source: the source of the bytes.
        copy: read the bytes into memory of this process, which nothing else changes; do not map or share them.

    Raises:
        ProgramError: it cannot be read, or is not a source.
    """
    if isinstance(source, bytes | bytearray | memoryview):
        return _copy_bytes(flat(source)) if copy else flat(source), ""
    name = _name(source)
    try:
        if copy and isinstance(source, str | os.PathLike):
            return _read(source), name
        return _copy_bytes(flat(_contents(source))) if copy else flat(_contents(source)), name
    except ProgramError:
        raise
    except Exception as error:  # archives and file objects raise many types: zlib.error, BadZipFile, RuntimeError
        reason = getattr(error, "strerror", None) or error
        raise ProgramError(f"cannot read the program file: {reason}", where=name, remedy=_remedy(error)) from error


def _name(source: object) -> str:
    if isinstance(source, str | os.PathLike):
        return str(os.fspath(source))
    if hasattr(source, "read_bytes"):
        with contextlib.suppress(TypeError):  # raised by zipfile.Path where the archive lies in memory
            return str(source)
    return str(getattr(source, "name", ""))


def _contents(source: object) -> memoryview | bytes:
    if isinstance(source, str | os.PathLike):
        return _map_file(source)
    if hasattr(source, "read_bytes") and hasattr(source, "is_file"):
        import zipfile  # most programs are not in archives

        if not source.is_file():
            raise ProgramError(
                "there is no such file", where=_name(source), remedy="check its name, and that it is not a folder"
            )
        if not isinstance(source, zipfile.Path):
            return bytes(source.read_bytes())
        member = _map_member(source)
        return _unpack_member(source) if member is None else member
    if not hasattr(source, "read"):
        raise ProgramError(f"a program file cannot be read from {type(source).__name__}", remedy=f"pass {_KINDS}")
    data = source.read()
    if not isinstance(data, bytes | bytearray | memoryview):
        raise ProgramError(
            f"this file object returns {type(data).__name__}, not bytes", remedy='open it with mode "rb"'
        )
    return data if isinstance(data, bytes) else memoryview(data)


def _map_file(path: str | os.PathLike[str]) -> memoryview:
    """Return the bytes of a regular file, mapped."""
    with _regular(path) as file:
        return _map(file.fileno())


def _read(path: str | os.PathLike[str]) -> memoryview:
    """Return the bytes of a regular file, read, because a mapping would break if the file is truncated meanwhile."""
    with _regular(path) as file:
        memory = _memory(os.fstat(file.fileno()).st_size)
        count = 0
        while more := file.readinto(memory[count:]):
            count += more
    return memory[:count].toreadonly()


def _copy_bytes(data: memoryview) -> memoryview:
    memory = _memory(data.nbytes)
    memory[:] = data
    return memory.toreadonly()


def _memory(size: int) -> memoryview:
    """Return `size` bytes, aligned like a mapped file."""
    return memoryview(mmap.mmap(-1, size)) if size else memoryview(bytearray())


def _regular(path: str | os.PathLike[str]) -> io.FileIO:
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ProgramError("this is not a file", where=os.fspath(path), remedy="pass the path of a program file")
    return open(path, "rb", buffering=0)


class MappedFile(mmap.mmap):
    """A mapped file, distinguishable from other memory of this process."""


def release_pages(data: memoryview) -> None:
    """Release the pages of a mapped file until they are read again. Other memory is left unchanged."""
    if isinstance(data.obj, MappedFile) and hasattr(mmap, "MADV_DONTNEED"):
        data.obj.madvise(mmap.MADV_DONTNEED)


def _map(descriptor: int) -> memoryview:
    if os.fstat(descriptor).st_size == 0:
        return memoryview(b"")
    return memoryview(MappedFile(descriptor, 0, access=mmap.ACCESS_READ))


def _map_member(member: zipfile.Path) -> memoryview | None:
    """Return the mapped bytes of an uncompressed, aligned member of an archive; None for any other member.

    Its CRC is not checked: the checksums of the program file are stronger.
    """
    archive = member.root
    info = archive.NameToInfo.get(member.at)
    if info is None or info.compress_type or info.flag_bits & 1 or archive.fp is None:  # absent, compressed, encrypted
        return None
    try:
        data = _map(archive.fp.fileno())
    except io.UnsupportedOperation:  # the archive lies in memory
        return None
    start = info.header_offset + 30 + sum(_LOCAL_HEADER.unpack_from(data, info.header_offset))
    return None if start % ALIGNMENT else data[start : start + info.file_size]


def _unpack_member(member: zipfile.Path) -> bytes:
    """Return the bytes of a compressed member, if it begins like a program file and its ratio is plausible."""
    info = member.root.NameToInfo[member.at]
    if info.file_size > _LEAST_UNPACKED + MAX_RATIO * info.compress_size:
        what = f"this member expands from {info.compress_size} to {info.file_size} bytes, a ratio above {MAX_RATIO}"
        raise ProgramError(what, where=str(member), remedy="store it in the archive uncompressed")
    with member.open("rb") as file:
        begin = file.read(len(MAGIC))
        if begin != MAGIC:
            return bytes(begin)
        return bytes(begin + file.read(info.file_size - len(begin)))


def _remedy(error: Exception) -> str:
    if isinstance(error, OSError | ValueError):
        return "check the path and its permissions"
    return "check the archive or the object that the program is read from"
