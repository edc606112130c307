"""A header for the blobs of a backend: name, version and checksum, so that damaged and foreign blobs are rejected."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from delegate.errors import BackendFailed

_HEADER = struct.Struct("<4s32sIIQ")  # magic, name, version, checksum and bytes of the content
_MAGIC = b"DLGB"
_ALIGNED = 64  # bytes of the header with its padding, so that the content is aligned like the blob
_AGAIN = "lower the model again"


@dataclass(frozen=True)
class BlobFormat:
    """The format of a backend's blobs: a header of 64 bytes, then content in the backend's own format.

    The runtime part names it as `BackendRuntime.blob_format`, so that `delegate check-backend` makes blobs of other
    versions itself.

    Args:
        name: the name of the backend, at most 32 ASCII characters.
        version: the version of the content, which is increased when `init` of an earlier package could not read the
            content.
    """

    name: str
    version: int

    def pack(self, content: bytes | memoryview) -> bytes:
        """Return the blob of a content."""
        name, checksum = self.name.encode("ascii"), zlib.crc32(content)
        header = _HEADER.pack(_MAGIC, name, self.version, checksum, memoryview(content).nbytes)
        return b"".join((header.ljust(_ALIGNED, b"\0"), content))

    def unpack(self, blob: memoryview) -> memoryview:
        """Return the content of a blob, without a copy.

        Raises:
            BackendFailed: the blob is of another backend or version, or it is damaged.
        """
        if blob.nbytes < _ALIGNED or blob[: len(_MAGIC)] != _MAGIC:
            raise BackendFailed(f"it is no blob of {self.name}", remedy=_AGAIN)
        _, name, version, checksum, size = _HEADER.unpack_from(blob)
        if name.rstrip(b"\0") != self.name.encode("ascii"):
            raise BackendFailed(f"the blob is of another backend than {self.name}", remedy=_AGAIN)
        if version != self.version:
            raise BackendFailed(f"the blob is of version {version}, not {self.version}", remedy=_AGAIN)
        content = blob[_ALIGNED:]
        if content.nbytes != size or zlib.crc32(content) != checksum:
            raise BackendFailed("the blob is damaged", remedy=_AGAIN)
        return content

    def with_version(self, blob: bytes, version: int) -> bytes:
        """Return a copy of a blob that states another version, for tests."""
        magic, name, _, checksum, size = _HEADER.unpack_from(blob)
        return _HEADER.pack(magic, name, version, checksum, size) + blob[_HEADER.size :]
