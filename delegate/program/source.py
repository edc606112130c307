"""Where the bytes of a program file come from: a path, memory, a file object, a member of an archive."""

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

MAGIC = b"\x89DLG\r\n\x1a\n"  # not ASCII, and spoiled by any transfer that converts line ends
MAX_RATIO = 10  # of a compressed member: weights hardly compress
_LEAST_UNPACKED = 1 << 26  # bytes that a member may always become
_LOCAL_HEADER = struct.Struct("<26xHH")  # of a member of a zip archive: the sizes of its name and of its extra field
_KINDS = "a path, bytes, a binary file object, or a file in an archive or a package (zipfile.Path, importlib.resources)"


class Readable(Protocol):
    """What gives all its bytes at once: a `zipfile.Path`, a file of `importlib.resources`."""

    def is_file(self) -> bool:
        """Whether there is such a file."""

    def read_bytes(self) -> bytes:
        """All its bytes."""


Source = str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO | Readable


def open_source(source: Source, *, copy: bool = False) -> tuple[memoryview, str]:
    """The bytes of a source, and its name for messages.

    A file given by its path is mapped, and so is a member that a zip archive on the disk holds uncompressed and aligned
    as segments must be. Anything else is read: a file object from where it stands to its end.

    Args:
        source: where the bytes are.
        copy: read them into memory of this process, which nothing else changes, in place of mapping or sharing them.

    Raises:
        ProgramError: it cannot be read, or is no source.
    """
    if isinstance(source, bytes | bytearray | memoryview):
        return _copied(flat(source)) if copy else flat(source), ""
    name = _name(source)
    try:
        if copy and isinstance(source, str | os.PathLike):
            return _read(source), name
        return _copied(flat(_contents(source))) if copy else flat(_contents(source)), name
    except ProgramError:
        raise
    except Exception as error:  # archives and file objects raise what they like: zlib.error, BadZipFile, RuntimeError
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
        return _mapped(source)
    if hasattr(source, "read_bytes") and hasattr(source, "is_file"):
        import zipfile  # most programs come from elsewhere

        if not source.is_file():
            raise ProgramError(
                "there is no such file", where=_name(source), remedy="check its name and that it is no folder"
            )
        if not isinstance(source, zipfile.Path):
            return bytes(source.read_bytes())
        member = _stored(source)
        return _unpacked(source) if member is None else member
    if not hasattr(source, "read"):
        raise ProgramError(f"a program file cannot be read from {type(source).__name__}", remedy=f"give {_KINDS}")
    data = source.read()
    if not isinstance(data, bytes | bytearray | memoryview):
        raise ProgramError(f"this file object gives {type(data).__name__}, not bytes", remedy='open it with mode "rb"')
    return data if isinstance(data, bytes) else memoryview(data)


def _mapped(path: str | os.PathLike[str]) -> memoryview:
    """The bytes of a regular file, mapped."""
    with _regular(path) as file:
        return _map(file.fileno())


def _read(path: str | os.PathLike[str]) -> memoryview:
    """The bytes of a regular file, read: a mapping would break where the file is cut meanwhile."""
    with _regular(path) as file:
        memory = _memory(os.fstat(file.fileno()).st_size)
        count = 0
        while more := file.readinto(memory[count:]):
            count += more
    return memory[:count].toreadonly()


def _copied(data: memoryview) -> memoryview:
    memory = _memory(data.nbytes)
    memory[:] = data
    return memory.toreadonly()


def _memory(size: int) -> memoryview:
    """So many bytes, aligned as a mapped file is."""
    return memoryview(mmap.mmap(-1, size)) if size else memoryview(bytearray())


def _regular(path: str | os.PathLike[str]) -> io.FileIO:
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ProgramError("this is not a file", where=os.fspath(path), remedy="give the path of a program file")
    return open(path, "rb", buffering=0)


class MappedFile(mmap.mmap):
    """A file that is mapped, told from memory of this process."""


def let_go(data: memoryview) -> None:
    """Have the pages of a mapped file leave this process until they are read again; nothing where it is none."""
    if isinstance(data.obj, MappedFile) and hasattr(mmap, "MADV_DONTNEED"):
        data.obj.madvise(mmap.MADV_DONTNEED)


def _map(descriptor: int) -> memoryview:
    if os.fstat(descriptor).st_size == 0:
        return memoryview(b"")
    return memoryview(MappedFile(descriptor, 0, access=mmap.ACCESS_READ))


def _stored(member: zipfile.Path) -> memoryview | None:
    """The mapped bytes of a member that lies in its archive as it is, aligned; None for another.

    Its CRC is not looked at: the checksums of the program file say more.
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


def _unpacked(member: zipfile.Path) -> bytes:
    """The bytes of a compressed member, once what it begins with is a program file of its size."""
    info = member.root.NameToInfo[member.at]
    if info.file_size > _LEAST_UNPACKED + MAX_RATIO * info.compress_size:
        what = f"this member becomes {info.file_size} bytes out of {info.compress_size}, a ratio above {MAX_RATIO}"
        raise ProgramError(what, where=str(member), remedy="store it in the archive uncompressed")
    with member.open("rb") as file:
        begin = file.read(len(MAGIC))
        if begin != MAGIC:
            return bytes(begin)
        return bytes(begin + file.read(info.file_size - len(begin)))


def _remedy(error: Exception) -> str:
    if isinstance(error, OSError | ValueError):
        return "check the path and its permissions"
    return "check the archive or the object that it is read from"
