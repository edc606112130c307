"""Inputs of a run from archives of NumPy."""

from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest

from delegate.cli.arrays import input_names, read_inputs
from delegate.errors import InputError
from tests.support.programs import dynamic

METHOD = dynamic().methods[0]
X = np.ones((2, 3), np.float32)


@pytest.mark.parametrize("named", [True, False])
def test_an_archive(named, tmp_path):
    path = tmp_path / "all.npz"
    np.savez(path, **({"x": X} if named else {"arr_0": X}))
    found = read_inputs("forward", input_names(METHOD), [str(path)])
    assert list(found) == ["x"]
    np.testing.assert_array_equal(found["x"], X)


def test_archives_that_do_not_fit(tmp_path):
    np.savez(tmp_path / "other.npz", y=X)
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 no archive")
    for name, message in (
        ("other.npz", "holds y.*it takes x"), ("bad.npz", "cannot be read"), ("absent.npz", "there is no file"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            read_inputs("forward", input_names(METHOD), [str(tmp_path / name)])


def _npy(header: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + bytes(16)


def _npz(content: bytes, method: int = zipfile.ZIP_DEFLATED, flags: int = 0, spoil: int = 0) -> bytes:
    """An archive of one member: of another method or flags than it was packed with, or spoiled from a byte on."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", content)
    made = bytearray(held.getvalue())
    entry = made.find(b"PK\x01\x02")
    for at in (6, entry + 8):
        made[at] |= flags
        made[at + 2] = method
    made[spoil : spoil + 9] = bytes(b ^ 0x5A for b in made[spoil : spoil + 9]) if spoil else made[spoil : spoil + 9]
    return bytes(made)


_HUGE = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**60},), }}\n"
# What NumPy answers each of these with: TokenError, TypeError, MemoryError, OverflowError, BadZipFile; of archives
# zlib.error, RuntimeError and NotImplementedError, too.
HEADERS = {
    "ends too early": "{'descr': '<f4', 'shape': (\n", "no keys": "{[]: 1}\n", "deep": "-" * 9000 + "1\n",
    "huge": _HUGE,
    "beyond 64 bits": _HUGE.replace(str(2**60), str(2**70)), "booleans": _HUGE.replace(str(2**60), "True"),
    "a pickle": _HUGE.replace("<f4", "|O").replace(str(2**60), "1"),
}  # fmt: skip
ARCHIVES = {
    "spoiled": _npz(_npy(_HUGE) * 9, spoil=40), "encrypted": _npz(b"", flags=1), "of another method": _npz(b"", 99),
    "no array": _npz(b"hello"), "no archive": b"PK\x03\x04" + bytes(40),
    **{name: _npz(_npy(header)) for name, header in HEADERS.items()},
}  # fmt: skip


@pytest.mark.parametrize("name", [*HEADERS, "no archive"])
def test_an_array_that_cannot_be_read(name, tmp_path):
    path = tmp_path / "a.npy"
    path.write_bytes(_npy(HEADERS[name]) if name in HEADERS else ARCHIVES[name])
    with pytest.raises(InputError, match="'x' cannot be read"):
        read_inputs("forward", ["x"], [str(path)])


@pytest.mark.parametrize("name", ARCHIVES)
def test_an_archive_that_cannot_be_read(name, tmp_path):
    path = tmp_path / "a.npz"
    path.write_bytes(ARCHIVES[name])
    with pytest.raises(InputError, match="cannot be read"):
        read_inputs("forward", ["x"], [str(path)])


def test_one_kind_of_file_for_the_other(tmp_path):
    np.save(tmp_path / "a.npy", X)
    np.savez(tmp_path / "b.npz", x=X)
    (tmp_path / "a.npy").rename(tmp_path / "a.npz")
    (tmp_path / "b.npz").rename(tmp_path / "b.npy")
    with pytest.raises(InputError, match="one array"):
        read_inputs("forward", ["x"], [str(tmp_path / "a.npz")])
    with pytest.raises(InputError, match="several arrays"):
        read_inputs("forward", ["x"], [str(tmp_path / "b.npy")])
