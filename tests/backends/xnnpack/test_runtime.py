"""The runtime part: dynamic shapes, threads, failures, absence of the library."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

from delegate.backends.xnnpack.info import INFO
from delegate.backends.xnnpack.runtime.delegate import XnnpackRuntime
from delegate.errors import BackendFailed, BackendUnavailable
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


def test_damaged_blob():
    with pytest.raises(BackendFailed, match="not written by this backend"):
        XnnpackRuntime().init(
            memoryview(b"nonsense" * 100), {"threads": 1, "inputs": [0], "outputs": [1], "dynamic": False}
        )


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
