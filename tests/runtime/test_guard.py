"""A delegate that misuses the arrays of a call damages neither the caller's arrays nor other results, and is named."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch

import delegate
from delegate.errors import BackendFailed
from delegate.program.raw import writable_view
from delegate.runtime.loaded import LoadedProgram
from tests.runtime import stranger
from tests.runtime.stranger import (
    KEEP,
    RESHAPE_INPUTS,
    RESHAPE_KEPT,
    RESHAPE_OUTPUT,
    RETYPE_OUTPUT,
    TRANSPOSE_OUTPUT,
    USE_KEPT,
    WRITE_INPUT,
)

pytestmark = pytest.mark.usefixtures("with_stranger")

READ_ONLY, SHAPE = "assignment destination is read-only", "its execute() changed the shape of an output from [2, 3] to"
# What the calls of a program ask its delegates to do, and the words of the error; none if the harm is only to views.
MISUSE = {
    "writes to an input": ((WRITE_INPUT,), READ_ONLY),
    "reshapes its inputs": ((RESHAPE_INPUTS,), ""),
    "reshapes an output": ((RESHAPE_OUTPUT,), SHAPE),
    "changes the dtype of an output": ((RETYPE_OUTPUT,), "changed the dtype of an output from float32 to int32"),
    "transposes an output": ((TRANSPOSE_OUTPUT,), "changed the strides of an output from [12, 4] to [4, 8]"),
    "writes to an earlier output": ((KEEP, USE_KEPT), READ_ONLY),
    "reshapes earlier arrays": ((KEEP, RESHAPE_KEPT), ""),
}
PLACES = [
    pytest.param(count, dynamic, isolate, id=f"{count}{' dynamic' * dynamic}{' isolated' * isolate}")
    for count, dynamic, isolate in itertools.product((1, 2), (False, True), (False, True))
]


def x(first: float, rows: int = 2) -> np.ndarray:
    array = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
    array[0, 0] = first
    return array


class Caller:
    """Calls a program, and checks every array that it has passed or received so far."""

    def __init__(self, program: LoadedProgram, partitions: int) -> None:
        self._program, self._partitions = program, partitions
        self._arrays: list[tuple[np.ndarray, np.ndarray]] = []

    def call(self, first: float) -> None:
        inputs = x(first), x(0)
        expected = inputs[0] + self._partitions * inputs[1]
        self._arrays += [(array, array.copy()) for array in inputs]
        with self._intact():
            result = self._program(*inputs)
            self._arrays.append((result, expected))

    @contextlib.contextmanager
    def _intact(self) -> Iterator[None]:
        try:
            yield
        finally:
            for array, expected in self._arrays:
                np.testing.assert_array_equal(array, expected, strict=True)
                assert array.flags.writeable


@pytest.mark.parametrize(("partitions", "dynamic", "isolate"), PLACES)
@pytest.mark.parametrize("name", MISUSE)
def test_misuse(name, partitions, dynamic, isolate):
    codes, words = MISUSE[name]
    with delegate.load(stranger.program(*[{}] * partitions, dynamic=dynamic), isolate=isolate) as program:
        caller = Caller(program, partitions)
        caller.call(1)
        for code in codes[:-1]:
            caller.call(code)
        if words:
            with pytest.raises(BackendFailed) as caught:
                caller.call(codes[-1])
            assert words in str(caught.value)
            assert "partition stranger_0 of stranger" in str(caught.value)
            assert "report it to the backend's author" in str(caught.value)
        else:
            caller.call(codes[-1])
        caller.call(2)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", MISUSE)
def test_misuse_with_a_fallback(name, dynamic):
    codes, words = MISUSE[name]
    with delegate.load(stranger.program({}, {}, dynamic=dynamic, fallback=True), fallback="warn") as program:
        caller = Caller(program, 2)
        for code in codes[:-1]:
            caller.call(code)
        with pytest.warns(RuntimeWarning, match="runs on portable kernels") if words else contextlib.nullcontext():
            caller.call(codes[-1])
        assert [words in event.reason for event in program.fallback_events] == [True, True] * bool(words)
        caller.call(2)


MEMORY = {
    "array": np.zeros((2, 3), np.float32),
    "tensor": torch.zeros(2, 3).numpy(),
    "file": np.frombuffer(bytes(24), np.float32).reshape(2, 3),
    "number": np.array(1.5),
    "number of a file": np.frombuffer(bytes(4), np.int32).reshape(()),
    "nothing": np.zeros((0, 3), np.int8),
}


@pytest.mark.parametrize("name", MEMORY)
def test_writable_views(name):
    array = MEMORY[name].view()
    array.flags.writeable = False
    view = writable_view(array)
    assert view.flags.writeable
    assert (view.shape, view.dtype) == (array.shape, array.dtype)
    assert view.ctypes.data == array.ctypes.data or not array.size
    assert not array.flags.writeable


def test_strided_arrays_have_no_writable_view():
    with pytest.raises(ValueError, match="not contiguous"):
        writable_view(np.zeros((4, 4))[:, 1])
