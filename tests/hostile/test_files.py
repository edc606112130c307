"""Forged program files: what the fuzzer found before, a short run of it, and what is to be small stays small."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from benchmarks.bombs import BOMBS, unchecked
from delegate.errors import DelegateError, ProgramError
from delegate.program.dtypes import DType
from delegate.program.file import assemble, load
from delegate.program.model import (
    Constant,
    KernelCall,
    MethodDefinition,
    Program,
    Ref,
    Storage,
    StorageKind,
    Tree,
    Value,
)
from delegate.program.text import program_lines
from tests.hostile import files
from tests.hostile.mutator import forged
from tests.support.children import run_cases

F32 = DType.float32
_ROOT = Path(__file__).parents[2]


def run(module: str, *args: str) -> subprocess.CompletedProcess[str]:
    """A fuzzer as it is run by hand: NumPy's threads and forks do not go together."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-m", module, *args]
    return subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, check=False)


def test_the_seeds_run():
    data, programs = files.seeds()
    assert len(data) == len(programs) == 16
    for program in programs:
        assert all(isinstance(result, bytes | type) for result in files._results(program, 0))


def one_call(op, args, shapes, out, *, dtype=F32, data=None):
    """The file of a program that is one call of a kernel: constants of these shapes, then the other arguments."""
    content = [np.zeros(s, dtype.numpy) if data is None else np.asarray(data, dtype.numpy).reshape(s) for s in shapes]
    constants = tuple(Constant(f"c{i}", dtype, tuple(s), i) for i, s in enumerate(shapes))
    values = [Value(f"c{i}", dtype, tuple(s), Storage(StorageKind.CONSTANT, i)) for i, s in enumerate(shapes)]
    values.append(Value("out", dtype, out, Storage(StorageKind.OUTPUT, 0)))
    call = KernelCall(0, args, (len(shapes),))
    tree = Tree("tuple", (), (Tree("tuple"), Tree("dict")))
    method = MethodDefinition("forward", (), (Ref(len(shapes)),), tree, Tree("leaf"), tuple(values), (call,))
    program = Program((method,), (op,), constants, (), (), tuple(c.tobytes() for c in content))
    return b"".join(assemble(program))


X, Y = Ref(0), Ref(1)
# Calls that once ended the process, wrote or read beside their tensors, or never came back.
CONV, CONVOLVED = "aten.convolution.default", [(1, 2, 8), (4, 2, 3)]
INFINITE = [-np.inf, 0, 0, -np.inf, 0, 0.5, np.inf, 0, 0]


def conv(stride=1, dilation=1, groups=1, padding=0):
    return X, Y, None, (stride,), (padding,), (dilation,), False, (0,), groups


# Calls that once ended the process, wrote or read beside their tensors, gave what memory held, or never came back.
FOUND = {
    "strides of both signs": one_call("aten.as_strided_copy.default", (X, (3, 3), (9, -9), 9), [(12,)], (3, 3)),
    "a scatter beside": one_call(
        "aten.as_strided_scatter.default", (X, Y, (3, 3), (900, -900), 9), [(12,), (3, 3)], (12,)
    ),
    "stride": one_call(CONV, conv(stride=10**9), CONVOLVED, (1, 4, 4)),
    "negative stride": one_call(CONV, conv(stride=-1), CONVOLVED, (1, 4, 4)),
    "dilation": one_call(CONV, conv(dilation=-99999), CONVOLVED, (1, 4, 4)),
    "large result": one_call(CONV, conv(), CONVOLVED, (1, 4, 5000)),
    "large padding": one_call(CONV, conv(padding=2**40), CONVOLVED, (1, 4, 6)),
    "depthwise": one_call(CONV, conv(dilation=9**9, groups=64), [(1, 64, 8), (64, 1, 3)], (1, 64, 2)),
    "pooling": one_call("aten.avg_pool1d.default", (X, (1,), (1,), (2**40,), False, True), [(1, 1, 4)], (1, 1, 4)),
    "round": one_call("aten.round.decimals", (X, 2**62), [(4,)], (4,)),
    "diagonal": one_call("aten.diagonal.default", (X, -(2**31), 0, 1), [(5, 5)], (5,)),
    "infinities": one_call("aten.linalg_eig.default", (X,), [(3, 3)], (3, 3), data=INFINITE),
    "tril_indices": one_call(
        "aten.tril_indices.default", (2**30, 2**30, 0, None, None, None, None), [], (2, 4), dtype=DType.int64
    ),
    "softmax of nothing": one_call("aten._softmax.default", (X, 0, False), [(0,)], (5,)),
    "clamp by nothing": one_call("aten.clamp.default", (X, None, None), [(5,)], (5,)),
    "a view of no tensor": one_call("aten.permute.default", ((1,), (0,)), [(5,)], (5,)),
    "a permutation of many": one_call("aten.permute.default", (X, (0, 1, 2, 9)), [(5,)], (5,)),
    "a slice of text": one_call("aten.slice.Tensor", (X, "dim", None, 1j, 0), [(5,)], (5,)),
    "no arguments": one_call("aten.add.Tensor", (), [], (5,)),
}  # fmt: skip


@pytest.fixture(scope="module")
def harms():
    """What is wrong with what comes of each of these files, where something is."""
    data = list(FOUND.values())
    return {f.case: f.what for f in run_cases(lambda i: files.check(data[i]), iter(range(len(data))), seconds=5)}


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found(name, harms):
    assert list(FOUND).index(name) not in harms, harms


def test_a_number_gives_the_same_file_every_time():
    assert forged(*files.seeds(), 7) == forged(*files.seeds(), 7)


@pytest.mark.extended
def test_forged_files_do_no_harm():
    done = run("tests.hostile.files", "0.1", "0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 findings" in done.stdout


def test_the_fuzzer_finds(monkeypatch):
    """A check that cannot fail is none: crashes, hangs, exceptions and memory are found."""

    def harm(number):
        if number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if number == 2:
            while True:
                pass
        if number == 3:
            raise KeyError("raw")
        return "wrong" if number == 4 else None

    found = {f.case: f.what for f in run_cases(harm, iter(range(6)), seconds=0.2)}
    assert found.keys() == {1, 2, 3, 4}
    assert "SIGKILL" in found[1]
    assert "of the processor" in found[2]
    assert "KeyError" in found[3]


@pytest.mark.parametrize("bomb", BOMBS, ids=lambda b: b.__name__)
def test_bombs_stay_small(bomb):
    """The memory and the text of a file made to be large stay in proportion; the time is for the benchmark."""
    try:
        data = b"".join(assemble(bomb(300)))
    except DelegateError:
        data = b"".join(unchecked(bomb(300)))
    tracemalloc.start()
    try:
        text = "\n".join(program_lines(load(data)))
    except ProgramError:
        text = ""
    finally:
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert len(text) < 100 * len(data) + 100_000
    assert most < 40 * len(data) + 20_000_000
