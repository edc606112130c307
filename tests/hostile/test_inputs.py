"""Arguments of the caller that raise whatever they like: an InputError names the input."""

from __future__ import annotations

import json

import numpy as np
import pytest

from delegate.errors import InputError
from delegate.program import file
from delegate.runtime.loaded import LoadedProgram
from tests.hostile import files


class Raising:
    """Raises at whatever it is asked for."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def __getattribute__(self, name: str):
        if name in object.__getattribute__(self, "_names"):
            raise KeyError(name)
        return object.__getattribute__(self, name)

    def __dlpack__(self, **_):
        raise ZeroDivisionError("of the caller")

    def __dlpack_device__(self):
        raise AssertionError("of the caller")

    def __index__(self):
        raise LookupError("of the caller")

    def __repr__(self):
        raise OSError("of the caller")


class Odd(np.ndarray):
    def __array_function__(self, *args, **kwargs):
        raise AttributeError("of the caller")

    def __array_ufunc__(self, *args, **kwargs):
        raise AttributeError("of the caller")

    def __array_finalize__(self, obj):
        if obj is not None:
            raise SystemError("of the caller")


class Sequence(list):
    def __len__(self):
        raise BufferError("of the caller")


GIVEN = {
    "dlpack": Raising(), "no attribute": Raising("__dlpack__"), "class": Raising("__class__"), "list": Sequence([1.0]),
    "long text": "x" * 10**7, "object": object(), "array of objects": np.array([object()]), "nested": [[1], [2, 3]],
    "deep": json.loads("[" * 60 + "1" + "]" * 60), "large": 10**400,
    "date": np.datetime64("now"), "record": np.zeros(2, "i4,f8"),
}  # fmt: skip


@pytest.fixture(scope="module")
def program():
    return LoadedProgram(file.load(files.SEEDS / "written.dlg"))


@pytest.mark.parametrize("name", GIVEN)
def test_a_tensor(name, program):
    with pytest.raises(InputError) as raised:
        program(GIVEN[name])
    assert len(str(raised.value)) < 1000


def test_an_array_with_rules_of_its_own(program):
    strange = np.ndarray.__new__(Odd, (4,), np.float32)
    strange[...] = 0
    assert program(strange).tolist() == program(np.zeros(4, np.float32)).tolist()


@pytest.mark.parametrize("keyword", ["self", "args", "kwargs", "x"])
def test_a_keyword_of_any_name(keyword, program):
    with pytest.raises(InputError, match=f"unknown {keyword}"):
        program(**{keyword: np.zeros(4, np.float32)})
    with pytest.raises(InputError, match=f"unknown {keyword}"):
        program.method("forward")(**{keyword: 1})


@pytest.mark.parametrize("snapshot", [None, 3, {"cache": Raising()}, {1: 2}, Raising("keys")])
def test_a_snapshot(snapshot):
    program = LoadedProgram(file.load(files.SEEDS / "cached.dlg"))
    with pytest.raises(InputError):
        program.restore(snapshot)
