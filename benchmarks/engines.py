"""The engines that are compared: each is built from an exported program and then called again and again."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch.export import ExportedProgram

THREADS = 2
ROOT = Path(__file__).parent.parent
EXECUTORCH_PYTHON = ROOT / ".venv-executorch" / "bin" / "python"

Arrays = list[np.ndarray]


class Engine(ABC):
    """A model on one engine.

    Attributes:
        lowering: seconds from the exported program to something that runs; None where that is not comparable.
        note: e.g. the number of delegates.
    """

    lowering: float | None = None
    note: str = ""

    @abstractmethod
    def outputs(self) -> Arrays:
        """One run's answers."""

    @abstractmethod
    def run(self, seconds: float) -> float:
        """Runs for about that long; the median latency in seconds."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Frees what it holds."""


class Local(Engine):
    """An engine of this process."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call

    def outputs(self) -> Arrays:
        return [np.asarray(x.detach() if isinstance(x, torch.Tensor) else x) for x in leaves(self.call())]

    def run(self, seconds: float) -> float:
        return median_latency(self.call, seconds)


def leaves(result: Any) -> Iterator[Any]:
    """The tensors and arrays in nested results of any engine."""
    if isinstance(result, Mapping):
        result = tuple(result.values())
    if isinstance(result, list | tuple):
        for part in result:
            yield from leaves(part)
    else:
        yield result


def median_latency(call: Callable[[], Any], seconds: float) -> float:
    """Calls for about that long, at least three times; the median latency in seconds."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def eager(ep: ExportedProgram, module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Engine:
    """torch as it is."""
    return Local(lambda: _no_grad(module, inputs))


def inductor(ep: ExportedProgram, module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Engine:
    """torch.compile."""
    compiled = torch.compile(module)
    start = time.perf_counter()
    _no_grad(compiled, inputs)
    engine = Local(lambda: _no_grad(compiled, inputs))
    engine.lowering = time.perf_counter() - start
    return engine


def delegate_xnnpack(ep: ExportedProgram, module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Engine:
    """This project, XNNPACK first, from a saved file called with NumPy arrays."""
    return _delegate(ep, inputs, {"backends": [{"name": "xnnpack", "options": {"threads": THREADS}}]})


def delegate_portable(ep: ExportedProgram, module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Engine:
    """This project, portable kernels alone."""
    return _delegate(ep, inputs, {"backends": []})


def delegate_aten(ep: ExportedProgram, module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Engine:
    """This project on torch's own kernels."""
    return _delegate(ep, inputs, {"backends": [], "kernels": ["aten", "portable"]})


def delegate_openvino(ep: ExportedProgram, module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Engine:
    """This project, OpenVINO first."""
    return _delegate(ep, inputs, {"backends": [{"name": "openvino", "options": {"threads": THREADS}}]})


def delegate_onnxruntime(ep: ExportedProgram, module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Engine:
    """This project, ONNX Runtime's CPU provider first."""
    return _delegate(ep, inputs, {"backends": [{"name": "onnxruntime", "options": {"threads": THREADS}}]})


def _delegate(ep: ExportedProgram, inputs: tuple[torch.Tensor, ...], config: dict[str, Any]) -> Engine:
    import delegate

    start = time.perf_counter()
    compiled = delegate.to_backend(ep, config=config)
    lowering = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as folder:
        compiled.save(Path(folder) / "model.dlg")
        program = delegate.load(Path(folder) / "model.dlg", kernels=config.get("kernels"))
    arrays = [x.numpy() for x in inputs]
    engine = Local(lambda: program(*arrays))
    engine.lowering = lowering
    engine.note = str(len(compiled.report.partitions))
    return engine


def onnxruntime(ep: ExportedProgram, module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Engine:
    """ONNX Runtime on its CPU provider, all graph optimisations."""
    import onnxruntime as ort

    start = time.perf_counter()
    model = onnx_bytes(ep)
    options = ort.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feed = {i.name: x.numpy() for i, x in zip(session.get_inputs(), inputs, strict=True)}
    engine = Local(lambda: session.run(None, feed))
    engine.lowering = time.perf_counter() - start
    return engine


def onnx_bytes(ep: ExportedProgram) -> bytes:
    """The program as an ONNX model, by torch's own exporter."""
    import logging

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with contextlib.redirect_stdout(None):
        program = torch.onnx.export(ep, (), dynamo=True, verbose=False)
    assert program is not None
    return program.model_proto.SerializeToString()


def openvino(ep: ExportedProgram, module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Engine:
    """OpenVINO on the CPU, float32."""
    import openvino as ov

    start = time.perf_counter()
    model = ov.convert_model(ep)
    settings = {"INFERENCE_NUM_THREADS": THREADS, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    request = ov.compile_model(model, "CPU", settings).create_infer_request()
    arrays = [x.numpy() for x in inputs]
    engine = Local(lambda: list(request.infer(arrays).values()))
    engine.lowering = time.perf_counter() - start
    return engine


class ExecuTorch(Engine):
    """ExecuTorch with XNNPACK, in a worker process of its own environment.

    Args:
        ep: a program whose result is a plain tuple.
        inputs: that it is called with.
        scheme: "static_int8" or "dynamic_int8", by ExecuTorch's own quantizer; empty for floats.
        batches: of calibration data.
    """

    def __init__(
        self,
        ep: ExportedProgram,
        inputs: Sequence[torch.Tensor],
        scheme: str = "",
        batches: Sequence[tuple[torch.Tensor, ...]] = (),
    ) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._path = Path(self._folder.name)
        torch.export.save(ep, self._path / "model.pt2")
        np.savez(self._path / "inputs.npz", *(x.numpy() for x in inputs))
        for number, batch in enumerate(batches):
            np.savez(self._path / f"batch_{number}.npz", *(x.numpy() for x in batch))
        worker = Path(__file__).parent / "executorch_worker.py"
        command = [EXECUTORCH_PYTHON, worker, self._path, str(THREADS), *filter(None, [scheme])]
        self._worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        ready = self._answer()
        self.lowering, self.note = ready["lowering"], str(ready["delegates"])

    def outputs(self) -> Arrays:
        self._ask({"do": "outputs"})
        with np.load(self._path / "outputs.npz") as stored:
            return list(stored.values())

    def run(self, seconds: float) -> float:
        return float(self._ask({"do": "run", "seconds": seconds})["median"])

    def close(self) -> None:
        assert self._worker.stdin is not None
        self._worker.stdin.close()
        self._worker.wait()
        self._folder.cleanup()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._worker.stdin is not None
        self._worker.stdin.write(json.dumps(request) + "\n")
        self._worker.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._worker.stdout is not None
        for line in self._worker.stdout:  # the library prints too
            if line.startswith("{"):
                return dict(json.loads(line))
        raise RuntimeError("the ExecuTorch worker stopped")


def executorch(ep: ExportedProgram, module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Engine:
    """ExecuTorch with XNNPACK."""
    return ExecuTorch(torch.export.export(Leaves(module), inputs), inputs)


class Leaves(torch.nn.Module):
    """A module whose result is a plain tuple: another process need not know the classes of its results."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(pytree.tree_leaves(self.module(*inputs)))


def _no_grad(module: Callable[..., Any], inputs: tuple[torch.Tensor, ...]) -> Any:
    with torch.no_grad():
        return module(*inputs)


ENGINES: dict[str, Callable[[ExportedProgram, torch.nn.Module, tuple[torch.Tensor, ...]], Engine]] = {
    "eager": eager,
    "inductor": inductor,
    "onnxruntime": onnxruntime,
    "openvino": openvino,
    "executorch": executorch,
    "portable": delegate_portable,
    "aten": delegate_aten,
    "delegate": delegate_xnnpack,
    "delegate-openvino": delegate_openvino,
    "delegate-onnxruntime": delegate_onnxruntime,
}
