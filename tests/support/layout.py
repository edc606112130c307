"""The layout of a program file once more, from docs/reference/file-format.md, to forge files with right checksums."""

from __future__ import annotations

import hashlib
import struct

HEADER, DIGEST_AT, ALIGNMENT = 128, 96, 64
TABLES_SIZE_AT, SEGMENTS_AT, SIZE_AT = 40, 48, 56


def number(data: bytes, at: int) -> int:
    return struct.unpack_from("<Q", data, at)[0]


def tables(data: bytes) -> bytes:
    return data[HEADER : HEADER + number(data, TABLES_SIZE_AT)]


def seal(data: bytes) -> bytes:
    """The file with the checksum of its header and tables made right."""
    digest = hashlib.sha256(data[:DIGEST_AT] + tables(data)).digest()
    return data[:DIGEST_AT] + digest + data[HEADER:]


def with_tables(data: bytes, new: bytes) -> bytes:
    """The file with other tables, sealed."""
    area = data[number(data, SEGMENTS_AT) :]
    start = -(-(HEADER + len(new)) // ALIGNMENT) * ALIGNMENT
    sizes = struct.pack("<QQQ", len(new), start, start + len(area))
    padding = bytes(start - HEADER - len(new))
    return seal(data[:TABLES_SIZE_AT] + sizes + data[64:HEADER] + new + padding + area)
