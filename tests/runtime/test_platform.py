"""The platform layer: memory, time, messages and failures go through the hooks of the program's own platform."""

from __future__ import annotations

import gc
import logging
import mmap
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

import delegate
from delegate.errors import DelegateError, ExecutionError, InputError, KernelError, ProgramError
from delegate.program.file import serialize
from delegate.runtime.backend import Array
from delegate.runtime.platform import Platform, allocate
from tests.support.lowering import assert_same, compiled
from tests.support.processes import AHEAD_OF_TIME, run


class Net(nn.Module):
    """A state, arena values, a result that is a copy of one, and results of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.ones(4))

    def forward(self, a: torch.Tensor) -> Any:
        self.total.add_(a.sum(0))
        hidden = torch.tanh(a) * 2
        return torch.cumsum(hidden, 0), hidden[0], self.total


A = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
DATA = serialize(compiled(Net(), (A,)).program)
DYNAMIC = serialize(compiled(Net(), (A,), dynamic_shapes=({0: Dim("rows", min=1, max=64)},)).program)


class Pages:
    """Memory of anonymous mappings, counted."""

    def __init__(self) -> None:
        self.ranges: list[range] = []

    def __call__(self, size: int) -> mmap.mmap:
        made = mmap.mmap(-1, size)
        start = np.frombuffer(made, np.uint8).ctypes.data
        self.ranges.append(range(start, start + size))
        return made

    def __contains__(self, array: Array) -> bool:
        return any(array.ctypes.data in r for r in self.ranges)


@pytest.mark.parametrize("data", [DATA, DYNAMIC], ids=["static", "dynamic"])
def test_all_memory_comes_from_the_platform(data):
    pages = Pages()
    program = delegate.load(data, platform=Platform(allocate=pages))
    module = Net()
    for _ in range(3):
        for got, wanted in zip(program(A.numpy()), module(A), strict=True):
            assert_same(got, wanted)
            assert got in pages
    assert program.states["total"] in pages
    assert program.context().states["total"] in pages
    static_arenas = sum(a > 0 for a in program.program.methods[0].arenas)
    assert len(pages.ranges) >= 2 + 3 * 3 + static_arenas


def test_memory_is_freed_with_what_lies_in_it():
    made: list[int] = []

    class Counted(bytearray):
        def __del__(self) -> None:
            made.remove(id(self))

    def count(size: int) -> memoryview:
        raw = Counted(size + 64)
        made.append(id(raw))
        start = -np.frombuffer(raw, np.uint8).ctypes.data % 64
        return memoryview(raw)[start : start + size]

    program = delegate.load(DATA, platform=Platform(allocate=count))
    before = len(made)
    for _ in range(5):
        program(A.numpy())
    gc.collect()
    assert len(made) == before
    del program
    gc.collect()
    assert made == []


def test_empty_results_need_no_memory():
    class Nothing(nn.Module):
        def forward(self, a: torch.Tensor) -> Any:
            return a[:0] * 2

    def refuse(size: int) -> bytearray:
        raise AssertionError("nobody needs memory")

    program = delegate.load(serialize(compiled(Nothing(), (A,)).program), platform=Platform(allocate=refuse))
    assert program(A.numpy()).shape == (0, 4)


def _fails(size: int) -> bytearray:
    raise MemoryError("the pool is empty")


BAD = {
    "fails": (_fails, "cannot allocate .* bytes: MemoryError: the pool is empty"),
    "too small": (lambda size: bytearray(size - 1), "cannot allocate .* bytes: ValueError: .*does not fit into"),
    "read-only": (bytes, "memory from the platform's allocate is read-only"),
    "not aligned": (lambda size: allocate(size + 1)[1:], "does not start at a multiple of 64"),
    "no buffer": (lambda size: None, "cannot allocate .* bytes: "),
}


@pytest.mark.parametrize("name", BAD)
def test_memory_that_cannot_be_used(name):
    hook, words = BAD[name]
    with pytest.raises(ExecutionError, match=words) as caught:
        delegate.load(DATA, platform=Platform(allocate=hook))
    assert "\n" not in str(caught.value)


def test_an_allocator_that_fails_later_leaves_the_program_sound():
    fail = []

    def sometimes(size: int) -> Array:
        if fail:
            raise MemoryError
        return allocate(size)

    program = delegate.load(DATA, platform=Platform(allocate=sometimes))
    fail.append(1)
    with pytest.raises(ExecutionError, match="cannot allocate"):
        program(A.numpy())
    fail.clear()
    for got, wanted in zip(program(A.numpy()), Net()(A), strict=True):
        assert_same(got, wanted)


def test_messages_and_time():
    messages: list[tuple[str, str]] = []
    ticks = iter(range(0, 10**9, 3_500_000))
    platform = Platform(log=lambda level, message: messages.append((level, message)), clock=lambda: next(ticks))
    program = delegate.load(DATA, platform=platform)
    assert messages == [("debug", "loaded forward in 3.5 ms")]
    with program.profile() as profile:
        program(A.numpy())
    assert all(t.nanoseconds == 3_500_000 * t.count for t in profile.timings)
    assert profile.timings


def test_messages_go_to_the_logger_delegate(caplog):
    with caplog.at_level(logging.DEBUG, "delegate"):
        delegate.load(DATA)
    assert [(r.name, r.levelname) for r in caplog.records] == [("delegate", "DEBUG")]
    assert caplog.records[0].message.startswith("loaded forward in ")


def test_loading_imports_no_logging(tmp_path):
    (tmp_path / "net.dlg").write_bytes(DATA)
    code = "import delegate; delegate.load(sys.argv[1]); print('logging' in sys.modules)"
    done = run(code, tmp_path / "net.dlg", absent=AHEAD_OF_TIME)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


def test_failures_reach_the_hook_before_the_caller():
    errors: list[DelegateError] = []
    platform = Platform(abort=errors.append)
    with pytest.raises(ProgramError) as caught:
        delegate.load(DATA[:-1], platform=platform)
    assert errors == [caught.value]
    program = delegate.load(DATA, platform=platform)
    with pytest.raises(InputError):
        program(A.numpy()[:1])
    assert len(errors) == 1  # wrong inputs are no failure

    class Exit(BaseException):
        pass

    def leave(error: DelegateError) -> None:
        raise Exit from error

    class Broken(nn.Module):
        def forward(self, a: torch.Tensor) -> torch.Tensor:
            return a[torch.tensor([0, 1])] if a.shape[0] == 2 else torch.gather(a, 0, a.long())

    program = delegate.load(serialize(compiled(Broken(), (A * 0,)).program), platform=Platform(abort=leave))
    with pytest.raises(Exit) as exit_:
        program(np.full((3, 4), 99, np.float32))
    assert isinstance(exit_.value.__cause__, KernelError)
