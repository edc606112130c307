"""Arrays from untrusted .npy and .npz files: nothing is unpickled, and there are two kinds of errors."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from delegate.common.files import open_to_read
from delegate.plugins import one_line

_ALWAYS = 1 << 22  # elements of an array that is unpacked, however few are needed
Array = np.ndarray[Any, np.dtype[Any]]
_BEGINNINGS = (b"\x93NUM", b"PK\x03\x04", b"PK\x05\x06")  # of .npy, of an archive, and of an empty one


def map_array(path: str | Path) -> Array:
    """Return the array of a .npy file, mapped.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a file of numpy.save.
    """
    with open_to_read(path) as file:
        if (begin := file.read(4)) != _BEGINNINGS[0]:
            raise ValueError("it is not a .npy file" if begin else "it is empty")
    try:
        return np.lib.format.open_memmap(path, "r")
    except (OSError, ValueError):
        raise
    except Exception as error:  # as below
        raise ValueError(one_line(error)) from error


def load_arrays(path: str | Path, most: int | None = None) -> Array | dict[str, Array]:
    """Return the array of a .npy file, or name -> array of a .npz file.

    Args:
        path: the path of the file.
        most: the most elements of an array that is needed; arrays in an archive that are much larger are not unpacked.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a file of numpy.save or numpy.savez, or too large for the memory of this machine.
    """
    try:
        with open_to_read(path) as file:
            if file.read(4) not in _BEGINNINGS:  # NumPy would read it as a pickle
                raise ValueError("it is not a .npy or .npz file")
            file.seek(0)
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return loaded
            if most is not None:
                for member in loaded.zip.namelist():
                    _require_size(loaded.zip, member, max(most, _ALWAYS))
            arrays = {name: loaded[name] for name in loaded.files}
    except (OSError, ValueError):
        raise
    except Exception as error:  # NumPy's and zipfile's are of many kinds: TokenError, MemoryError, zlib.error
        raise ValueError(one_line(error)) from error
    if other := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
        raise ValueError(f"{other[0]!r} in it is not an array")
    return arrays


def _require_size(archive: zipfile.ZipFile, member: str, most: int) -> None:
    """Raise ValueError if an array of an archive has more elements, by its header."""
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, _ = read(file)
    if math.prod(shape) > most:
        raise ValueError(f"{member!r} in it has the shape {list(shape)}, which is more than is needed")
