"""The program file: header, tables, segments. It is saved completely or not at all, and loaded by mapping.

docs/reference/file-format.md describes the layout. All numbers are little-endian.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

from delegate.common.files import replacing
from delegate.errors import ProgramError
from delegate.program.decode import decode, decode_debug_info
from delegate.program.instructions import DebugInfo
from delegate.program.model import FORMAT_VERSION, Program
from delegate.program.segments import Directory, align, flat, layout, pieces, split
from delegate.program.source import MAGIC, Source, open_source
from delegate.program.verifier import verify

_FIRST_RELEASE = b"0.1.0"  # that reads FORMAT_VERSION; reported to users of older releases
_HEADER = struct.Struct("<8sII16sQQQQ32x32s")
_DIGEST_AT = _HEADER.size - 32
_DAMAGED = "the file is damaged: copy it again, or lower the model again"


class _Header(NamedTuple):
    magic: bytes
    version: int
    flags: int
    first_release: bytes
    tables: int  # offset
    tables_size: int
    segments: int  # offset
    size: int  # of the file
    digest: bytes


def save(program: Program, path: str | os.PathLike[str]) -> None:
    """Write a program to a file: completely, or not at all.

    The new file is written next to the old one, flushed to the disk, and renamed. A program mapped from the old file
    stays valid. Segments are written one after the other, never joined in memory.

    Raises:
        ProgramError: the program is not valid, or the file cannot be written, and the old file is then untouched.
    """
    if not isinstance(path, str | os.PathLike):
        raise ProgramError(f"a program cannot be saved to a {type(path).__name__}", remedy="pass the path of a file")
    parts = _parts(program)
    target = os.fspath(path)
    try:
        target = os.path.realpath(target)
        if os.path.exists(target) and not os.path.isfile(target):
            raise ProgramError(
                "cannot save a program here: this is not a file", where=target, remedy="use another path"
            )
        with replacing(target) as file:
            for part in parts:
                file.write(part)
    except (OSError, ValueError) as error:
        problem = f"cannot save the program: {getattr(error, 'strerror', None) or error}"
        raise ProgramError(problem, where=target, remedy=_save_remedy(error, target)) from error


def serialize(program: Program) -> bytes:
    """Return the bytes that `save` writes. Equal programs give equal bytes. Raise ProgramError if the program is
    invalid.
    """
    return b"".join(_parts(program))


def load(source: Source, *, copy: bool = False) -> Program:
    """Read a program and check all of it: structure, checksums, and meaning. Nothing in it is run.

    The segments are read-only views of the source, not copies, and a file given by path is mapped. The mapping lives as
    long as any view of it (a segment, an array over one). Until then the file must not be changed in place; replacing
    it, as `save` does, is safe. A binary file object is read from its position to its end, and can be closed
    afterwards. A member of a zip archive is given as a `zipfile.Path`, a file of a package as returned by
    `importlib.resources`.

    Args:
        source: the source of the bytes.
        copy: read the bytes into memory of this process before the checks. Use it for a file that somebody else may
            truncate or overwrite: that would crash a process with a mapping, or change its results.

    Raises:
        ProgramError: the file does not exist, it has another format version, or it is damaged.
    """
    return parse(*open_source(source, copy=copy))


def parse(data: memoryview, name: str = "") -> Program:
    """Return the program of these bytes, checked as in `load`; `name` is for messages."""
    try:
        header = _read_header(data)
        program, directory = decode(data[header.tables : header.tables + header.tables_size])
        segments = split(directory, data[header.segments :], lambda index: _owner(program, index, directory))
        if directory.debug:
            program = decode_debug_info(segments[-1]).add_to(program)
            segments = segments[:-1]
        program = program._replace(segments=segments)
        verify(program)
    except ProgramError as error:
        where = ", ".join(part for part in (name, error.where) if part)
        raise ProgramError(error.what, where=where, remedy=error.remedy) from error.__cause__
    return program


def _parts(program: Program) -> Iterator[memoryview | bytes]:
    """Return the pieces of a program's file, after verifying it."""
    verify(program)
    return iter(assemble(program))


def assemble(program: Program) -> Iterator[memoryview | bytes]:
    """Yield the pieces of a program's file without checking it."""
    from delegate.program.encode import encode, encode_debug_info  # not needed to read a file

    info = DebugInfo.of(program)
    segments = [flat(s) for s in (*program.segments, *([encode_debug_info(info)] if info else []))]
    directory = layout(segments)._replace(debug=bool(info))

    tables = encode(program, directory)
    start = align(_HEADER.size + len(tables))
    header = _Header(
        MAGIC, FORMAT_VERSION, 0, _FIRST_RELEASE, _HEADER.size, len(tables), start, start + directory.size, b""
    )
    unsigned = _HEADER.pack(*header)[:_DIGEST_AT]
    yield unsigned + _sha256(unsigned, tables)
    yield tables
    yield bytes(start - _HEADER.size - len(tables))
    yield from pieces(directory, segments)


def _read_header(data: memoryview) -> _Header:
    if data[: len(MAGIC)] != MAGIC:
        raise ProgramError("this is not a delegate program file", remedy=_foreign(data))
    if data.nbytes < _HEADER.size:
        raise ProgramError(f"the file ends inside its header, after {data.nbytes} bytes", remedy=_DAMAGED)
    header = _Header(*_HEADER.unpack_from(data))
    _check_version(header)
    if header.size != data.nbytes:
        problem = f"the file has {data.nbytes} bytes, but its header declares {header.size}"
        raise ProgramError(problem, remedy=_DAMAGED)
    end = _HEADER.size + header.tables_size
    if header.tables != _HEADER.size or header.segments != align(end) or header.segments > header.size:
        raise ProgramError("the sizes in the header are inconsistent", remedy=_DAMAGED)
    if _sha256(data[:_DIGEST_AT], data[header.tables : end]) != header.digest:
        raise ProgramError("the header or the tables were altered: their checksum does not match", remedy=_DAMAGED)
    if header.flags or any(data[_DIGEST_AT - 32 : _DIGEST_AT]) or any(data[end : header.segments]):
        raise ProgramError("bytes of the file that must be zero are not zero", remedy=_DAMAGED)
    return header


def _foreign(data: memoryview) -> str:
    if data.nbytes < len(MAGIC):
        return "the file is truncated or empty"
    if bytes(data[:4]) == b"PK\x03\x04":
        return "it is a zip archive: pass the program in it as a zipfile.Path; if it is a .pt2 file, lower it first"
    return "pass a file that was saved by delegate"


def _check_version(header: _Header) -> None:
    if header.version == FORMAT_VERSION:
        return
    problem = f"the file has format version {header.version}, but this delegate reads version {FORMAT_VERSION}"
    remedy = "lower the model again with this delegate, and save it"
    if header.version > FORMAT_VERSION:
        release = header.first_release.rstrip(b"\0")
        newer = f"delegate {release.decode()} or newer" if re.fullmatch(rb"[0-9.]+", release) else "a newer delegate"
        remedy = f"install {newer}, or {remedy}"
    raise ProgramError(problem, remedy=remedy)


def _sha256(*parts: memoryview | bytes) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.digest()


def _owner(program: Program, segment: int, directory: Directory) -> str:
    """Return the owner of a segment, for messages."""
    if directory.debug and segment == len(directory.sizes) - 1:
        return "debug info"
    tables = (("constant", program.constants), ("state", program.states), ("delegate", program.delegates))
    owners = [f"{kind} {row.name!r}" for kind, rows in tables for row in rows if row.segment == segment]
    owners += [f"data of delegate {spec.name!r}" for spec in program.delegates if segment in spec.data]
    return next(iter(owners), f"segment {segment}")


def _save_remedy(error: Exception, target: str) -> str:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return f"create the directory {os.path.dirname(target)} first"
    if isinstance(error, PermissionError):
        return "use a path that you can write to, or close the programs that use this file"
    return "free some space on this disk, or use a path on another disk; an older file of this name is unchanged"
