"""Inputs of a run from archives of NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from delegate.cli.arrays import input_names, read_inputs
from delegate.errors import InputError
from tests.program.samples import dynamic

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
