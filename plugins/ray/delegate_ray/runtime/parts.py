"""Parts: the files of a job's input, their checksums, and the rows of each output file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from delegate.common.files import open_to_read
from delegate.errors import InputError

IMAGES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp"})
FIRST = 64  # rows of which one must be good
Batch = tuple[int, Mapping[str, Any]]  # the number of rows, and columns by name
Limits = Mapping[str, int | None]  # column of an input -> the most elements of a cell that is decoded; None: no limit


class Contents(NamedTuple):
    """The facts that a scan of a file finds.

    Args:
        digest: SHA-256 of its bytes.
        rows: their number.
        columns: the names of the columns.
        places: The offset of each part in a text file, in bytes.
    """

    digest: str
    rows: int
    columns: tuple[str, ...]
    places: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class InputFile:
    """An input file as a job has scanned it.

    Args:
        path: absolute; a folder if the rows are images.
        size: The size in bytes.
        modified: time of the last change, in nanoseconds.
        contents: what the scan found.
    """

    path: str
    size: int
    modified: int
    contents: Contents

    def require_unchanged(self) -> None:
        """Raise InputError if the file has another size or time than during the scan."""
        try:
            status = os.stat(self.path)
        except OSError as error:
            what = f"the input cannot be read: {error.strerror}"
            raise InputError(what, where=self.path, remedy="give each node the file at this path") from error
        if (status.st_size, status.st_mtime_ns) != (self.size, self.modified):
            raise _input_changed_error(self.path)

    def require_same_bytes(self) -> None:
        """Raise InputError if the checksum differs from the scan's."""
        try:
            digest = digest_of_input(self.path)
        except OSError:
            digest = ""
        if digest != self.contents.digest:
            raise _input_changed_error(self.path)


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows of an input file, whose results are one output file.

    Args:
        number: The part's number in the job.
        file: the number of its input file.
        index: The part's index in its file.
        start: its first row in its file.
        first: its first row among the rows of all files.
        rows: the number of its rows.
    """

    number: int
    file: int
    index: int
    start: int
    first: int
    rows: int


def digest_of_input(path: str) -> str:
    """Return the SHA-256 of a file, or of the names and bytes of the images in a folder."""
    if not os.path.isdir(path):
        with open_to_read(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    all_digests = hashlib.sha256()
    for image in images_of(path):
        digest = digest_of_input(image) if os.path.isfile(image) else ""
        all_digests.update(os.fsencode(f"{os.path.basename(image)}\0{digest}\n"))
    return all_digests.hexdigest()


def images_of(folder: str) -> list[str]:
    """Return the paths of the images in a folder, in the order of their names."""
    names = sorted(name for name in os.listdir(folder) if is_visible(name) and suffix_of(name) in IMAGES)
    return [os.path.join(folder, name) for name in names]


def suffix_of(name: str) -> str:
    """Return the suffix of a path in small letters, such as ".csv"."""
    return os.path.splitext(name)[1].lower()


def is_visible(name: str) -> bool:
    """Return False for the name of a hidden file, such as those that systems add to folders."""
    return not name.startswith(".")


def _input_changed_error(path: str) -> InputError:
    what = "the input changed during the job, or is not the file that the job has scanned"
    return InputError(what, where=path, remedy="start the job again with another output folder")
