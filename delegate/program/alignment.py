"""The alignment of memory blocks and of the segments of a file."""

from __future__ import annotations

ALIGNMENT = 64  # bytes: a cache line, and the preferred alignment of vendor libraries


def align(size: int) -> int:
    """Return the size in bytes, rounded up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT
