"""The runtime part: dynamic shapes, threads, damage, failures, absence of the library."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

import delegate
from delegate.backends.xnnpack.info import INFO
from delegate.backends.xnnpack.runtime import delegate as runtime
from delegate.backends.xnnpack.runtime.delegate import XnnpackRuntime
from delegate.backends.xnnpack.runtime.interpreted import open_interpreter
from delegate.errors import BackendFailed, BackendUnavailable, ProgramError
from delegate.program.cores import cores
from delegate.program.file import load
from delegate.runtime.backend import TensorType
from tests.backends.xnnpack.harness import assert_as_eager, lower
from tests.support.functions import Function


@pytest.mark.parametrize("threads", [1, 2])
def test_threads(threads):
    torch.manual_seed(0)
    module, x = nn.Conv2d(3, 8, 3), torch.randn(1, 3, 16, 16)
    lowered = lower(module, (x,), threads=threads)
    assert lowered.result.compile_specs["threads"] == threads
    assert_as_eager(module, (x,), lowered, 1e-4, 1e-5)


def test_delegates_of_one_blob_do_not_share_memory():
    module = Function(lambda x: x * 2)
    lowered = lower(module, (torch.ones(4),))
    other = XnnpackRuntime().init(memoryview(lowered.result.blob), lowered.result.compile_specs)
    result = np.zeros(4, np.float32)
    other.execute([np.full(4, 5, np.float32)], [result])
    assert lowered(torch.ones(4))[0].tolist() == [2] * 4
    assert result.tolist() == [10] * 4
    other.close()
    assert lowered(torch.ones(4))[0].tolist() == [2] * 4


def test_next_call_after_a_failure_is_right():
    module = Function(lambda a, b: a + b)
    n = Dim("n", min=1, max=8)
    lowered = lower(module, (torch.ones(2), torch.ones(2)), (({0: n}, {0: n}),))
    with pytest.raises(BackendFailed):
        lowered(torch.ones(2), torch.ones(3), shapes=[(3,)])
    assert lowered(torch.ones(3), torch.ones(3), shapes=[(3,)])[0].tolist() == [2] * 3


def test_a_flipped_bit_of_a_saved_model_is_noticed(tmp_path):
    """Both parts of a model are covered by the file's checksums: its tables, and its constants."""
    path = tmp_path / "model.dlg"
    delegate.to_backend(torch.export.export(nn.Linear(64, 64), (torch.randn(2, 64),)), "xnnpack").save(path)
    content, program = path.read_bytes(), load(path.read_bytes())
    (spec,) = program.delegates
    for segment in (spec.segment, *spec.data):
        stored = bytes(program.segments[segment])
        for at in range(0, len(stored), len(stored) // 7):
            damaged = bytearray(content)
            damaged[content.index(stored) + at] ^= 1 << at % 8
            path.write_bytes(damaged)
            with pytest.raises(ProgramError, match=rf"segment {segment} was altered.*delegate '{spec.name}'"):
                delegate.load(path)


def test_bytes_that_are_not_a_model():
    with pytest.raises(BackendFailed, match="LiteRT rejects the model"):
        XnnpackRuntime().init(memoryview(b"nonsense" * 100), {"threads": 1, "dynamic": False})


def tensor_type(shape, dtype=np.float32):
    return TensorType(shape, np.dtype(dtype))


CALLS = {
    "as it is": ([tensor_type((3, 6))], [tensor_type((3, 5))], ""),
    "too few outputs": ([tensor_type((3, 6))], [], "it has 1 outputs, but the program has 0"),
    "too many inputs": ([tensor_type((3, 6))] * 2, [tensor_type((3, 5))], "it has 1 inputs, but the program has 2"),
    "a larger output": ([tensor_type((3, 6))], [tensor_type((3, 50))], r"outputs are float32\[3, 5\]"),
    "another rank": ([tensor_type((3, 6))], [tensor_type((15,))], r"has float32\[15\]"),
    "another dtype": ([tensor_type((3, 6))], [tensor_type((3, 5), np.float64)], "has float64"),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("is_large", [False, True])
def test_calls_are_compared_with_the_model(name, is_large, monkeypatch):
    monkeypatch.setattr(runtime, "LARGE", 0 if is_large else 1 << 24)
    inputs, outputs, words = CALLS[name]
    opened = lower(nn.Linear(6, 5), (torch.randn(3, 6),)).delegate
    if not words:
        opened.prepare(inputs, outputs)
        return
    with pytest.raises(BackendFailed, match=words):
        opened.prepare(inputs, outputs)


def test_threads_are_bounded_by_the_machine(monkeypatch):
    opened = []
    monkeypatch.setattr(runtime, "open_interpreter", lambda model, n: (opened.append(n), open_interpreter(model, n))[1])
    for threads in (1, cores() + 1):
        lower(nn.ReLU(), (torch.randn(3),), threads=threads)
    assert opened == [1, cores()]


def test_stderr_has_one_line_of_litert(tmp_path):
    """Check that a model adds nothing to LiteRT's one line about its delegate."""
    delegate.to_backend(torch.export.export(nn.ReLU(), (torch.randn(3),)), "xnnpack").save(tmp_path / "model.dlg")
    code = "import os, sys, delegate; delegate.load(sys.argv[1]); os.write(2, b'mine')"
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "model.dlg"], capture_output=True, check=True)
    assert done.stderr in (b"mine", b"INFO: Created TensorFlow Lite XNNPACK delegate for CPU.\nmine")


def test_absent_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", None)
    with pytest.raises(BackendUnavailable, match=r"pip install 'delegate\[xnnpack\]'"):
        XnnpackRuntime().init(memoryview(b""), {"threads": 1})
    availability = INFO.probe()
    assert not availability.ok
    assert "ai-edge-litert" in availability.reason


def test_probe():
    availability = INFO.probe()
    assert availability.ok
    assert availability.versions["ai-edge-litert"]
    assert availability.devices[0].startswith("CPU, ")


def test_runtime_part_needs_no_torch():
    code = (
        "import sys, delegate.backends.xnnpack.runtime.delegate, delegate.backends.xnnpack.info as i; i.INFO.probe();"
        "sys.exit(any(m in sys.modules for m in ('torch', 'pydantic', 'rich')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
