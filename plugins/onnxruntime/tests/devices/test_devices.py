"""Tensors between partitions of a GPU stay in its memory, on the real library."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from delegate_onnxruntime.onnx.runtime.device_memory import OrtMemory
from delegate_onnxruntime.webgpu.runtime import SPACE, WebGpuRuntime

import delegate
from delegate.errors import BackendFailed
from delegate.program.model import StorageKind
from delegate.runtime.loaded import LoadedProgram
from tests.support.availability import require
from tests.support.device_models import PINNED, Residual, TwoReaders, image
from tests.support.lowering import backend_delegates, compiled, relative_error


def lower_model(**changes):
    require("webgpu")
    torch.manual_seed(0)
    module = Residual(changes.pop("shared", False)).eval()
    config = {"backends": ["webgpu", "xnnpack"], "partitioning": {"pins": {"pinned*": changes.pop("pin", "xnnpack")}}}
    config["fallback"] = {"keep": True, "policy": "allow"} if changes.pop("keep", False) else {}
    changes["portable"] = PINNED if config["partitioning"]["pins"]["pinned*"] == "portable" else None
    return module, compiled(module, (image(batch=2),), config=config, **changes)


@pytest.mark.parametrize(("pin", "shared"), [("xnnpack", False), ("portable", True)])
def test_a_residual_stays_on_the_gpu(pin, shared, tmp_path):
    module, program = lower_model(pin=pin, shared=shared)
    first, last = (p for p in program.report.partitions if p.backend == "webgpu")
    size = 2 * 8 * 16 * 16 * 4
    assert (first.copied_in, first.copied_out) == (2 * 3 * 16 * 16 * 4, size)
    assert (last.copied_in, last.copied_out) == (size, size // 2)
    assert first.space == "webgpu"
    assert len(first.stays) == 1
    assert first.stays == last.stays
    method = program.program.methods[0]
    assert method.arenas[1] == size
    kept = [v for v in method.values if v.storage.kind is StorageKind.ARENA and v.storage.index == 1]
    assert len(kept) == 1
    beside = [v for v in method.values if v.storage.kind is StorageKind.ARENA and v.storage.index == 0]
    assert method.arenas[0] <= size * len(beside)
    program.save(tmp_path / "net.dlg")
    with delegate.load(tmp_path / "net.dlg") as loaded:
        context = loaded.context()
        for seed in range(3):
            x = image(seed, 2)
            for used in (loaded, context):
                assert relative_error(used(x.numpy()), module(x)) < 1e-6


def test_an_input_of_two_partitions_is_copied_in_once(monkeypatch):
    require("webgpu")
    written: list[int] = []
    write = OrtMemory.write
    monkeypatch.setattr(OrtMemory, "write", lambda m, words: (written.append(words.nbytes), write(m, words)))
    torch.manual_seed(0)
    module = TwoReaders().eval()
    config = {"backends": ["webgpu"], "partitioning": {"pins": {"pinned*": "portable"}}}
    program = compiled(module, (image(),), config=config, portable=PINNED)
    size = 3 * 16 * 16 * 4
    assert [p.copied_in for p in program.report.partitions] == [size, size]
    assert all(p.stays == ("x",) for p in program.report.partitions)
    for seed in range(3):
        assert relative_error(program(image(seed)), module(image(seed))) < 1e-5
    assert written == [size] * 3


def test_a_dynamic_batch():
    batch = torch.export.Dim("batch", max=4)
    module, program = lower_model(dynamic_shapes=({0: batch},))
    for n in (2, 4, 1, 3):
        assert relative_error(program(image(n, n)), module(image(n, n))) < 1e-6


def test_a_partition_that_falls_back_hands_over_on_the_host():
    module, program = lower_model(keep=True)
    with LoadedProgram(program.program) as loaded:
        x = image(batch=2)
        assert relative_error(loaded(x.numpy()), module(x)) < 1e-6
        on_gpu = [d for d in backend_delegates(loaded) if "Onnx" in type(d).__name__]
        assert len(on_gpu) == 2
        for number, own in enumerate(on_gpu):
            own._session = own._open = None  # what runs on the device is gone
            assert relative_error(loaded(x.numpy()), module(x)) < 1e-6
            assert len(loaded.fallback_events) == number + 1


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.bool_])
def test_memory(dtype):
    require("webgpu")
    memory = WebGpuRuntime().allocate(SPACE, 256)
    tensor = memory.tensor((3, 5), np.dtype(dtype))
    assert tensor.read().shape == (3, 5)
    assert tensor.read().dtype == dtype


def test_more_memory_than_there_is(capfd):
    require("webgpu")
    with pytest.raises(BackendFailed, match="cannot allocate 1099511627776 bytes of webgpu memory"):
        WebGpuRuntime().allocate(SPACE, 1 << 40)
