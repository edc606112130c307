"""Quantized models on a backend beside the same in float32, and beside int8 elsewhere, in one run.

Each peer quantizes by its own means or, OpenVINO, runs what ONNX Runtime's quantization made; ExecuTorch takes the
environment that `make bench-peers` sets up. Engines take turns call by call; ratios are medians of those of the turns.
Engines of a process keep threads busy after a call, so each backend has its own run.
The process memory is that of a fresh process, NumPy and LiteRT included, behind three calls of the saved program.

python -m benchmarks.quantized [--backend NAME] [--models NAME ...] [--rounds N] [--seconds S] [--peers]
"""

from __future__ import annotations

import argparse
import operator
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.export import ExportedProgram

import delegate
from benchmarks.engines import EXECUTORCH_PYTHON, THREADS, Engine, ExecuTorch, Leaves, Local, onnx_bytes
from delegate.quantization import Quantization, quantize
from tests.support import zoo

SCHEMES = {
    **dict.fromkeys(("mobilenet_v2", "mobilenet_v3_small", "resnet18", "resnet50", "efficientnet_b0"), "static_int8"),
    **dict.fromkeys(("vit_tiny", "swin_t", "bert_mini"), "dynamic_int8"),
}
STACK = "qwen3_0.6b linears"
_BATCHES = 8
ENGINES = ("xnnpack", "onnxruntime", "openvino")
MEASURED = "measured"
_BUDGET = 30.0  # seconds of a placement that measures


class Linears(nn.Module):
    """The linear layers of four of Qwen3-0.6B's decoder layers, one behind another."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        sizes = [(1024, 4096), (4096, 1024), (1024, 3072), (3072, 1024)] * layers
        self.layers = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in sizes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


Batch = tuple[torch.Tensor, ...]


def model(name: str) -> tuple[nn.Module, Batch, str, list[Batch]]:
    """A module, example inputs, the scheme, and calibration data."""
    torch.manual_seed(0)
    if name == STACK:
        return Linears().eval(), (torch.randn(1, 1024),), "dynamic_int4", []
    module, inputs = zoo.make(name)
    data = [tuple(torch.randn_like(x) if x.is_floating_point() else x for x in inputs) for _ in range(_BATCHES)]
    return module, inputs, SCHEMES[name], data


def sqnr(expected: torch.Tensor, got: torch.Tensor) -> float:
    """Signal to noise in dB."""
    return float(10 * torch.log10(expected.pow(2).mean() / (expected - got).pow(2).mean().clamp_min(1e-30)))


def first(result: Any) -> torch.Tensor:
    """The first tensor of nested results."""
    return next(x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor)).detach()


def lowered(
    program: ExportedProgram, backend: str, path: Path, quantization: dict[str, str] | None = None
) -> tuple[delegate.CompiledProgram, float, int]:
    """A program on a backend or on the fastest plan of all, how long that took, and the size of its file."""
    start = time.perf_counter()
    names = ENGINES if backend == MEASURED else (backend,)
    config: dict[str, Any] = {"backends": [{"name": name, "options": {"threads": THREADS}} for name in names]}
    if backend == MEASURED:
        config["placement"] = {"policy": "measured", "budget": _BUDGET}
    if quantization:
        config["quantization"] = quantization
    compiled = delegate.to_backend(program, config=config)
    seconds = time.perf_counter() - start
    compiled.save(path)
    return compiled, seconds, os.path.getsize(path)


def measure(name: str, backend: str, rounds: int, seconds: float, peers: bool) -> str:
    """A row of the table."""
    module, inputs, scheme, data = model(name)
    floats = torch.export.export(module, inputs)
    reference = quantize(
        floats, Quantization(backend=ENGINES[0] if backend == MEASURED else backend, scheme=scheme), data
    )
    arrays = [x.numpy() for x in inputs]
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        paths = {kind: Path(folder) / f"{kind}.dlg" for kind in ("floats", "integers")}
        _, plain_seconds, plain_size = lowered(floats, backend, paths["floats"])
        quantization = {"scheme": scheme, **calibration(data, Path(folder))}
        small, small_seconds, small_size = lowered(floats, backend, paths["integers"], quantization)
        exact, eager, ours = (first(f(*inputs)) for f in (module, reference.module(), small))
        engines: dict[str, Engine] = {k: Local(partial(delegate.load(path), *arrays)) for k, path in paths.items()}
        if peers:
            engines |= peers_of(module, inputs, scheme, data, Path(folder))
        times: dict[str, list[float]] = {kind: [] for kind in engines}
        for _ in range(rounds):
            for kind, engine in engines.items():
                times[kind].append(engine.run(seconds))
        for engine in engines.values():
            engine.close()
        memory = process_memory(paths["integers"], arrays)
    cells = [
        name,
        scheme,
        "+".join(sorted({p.backend for p in small.report.partitions})),
        str(len(small.report.partitions)),
        f"{sum(n.backend == 'portable' for n in small.report.nodes)}",
        f"{sqnr(exact, ours):.1f}",
        f"{sqnr(exact, eager):.1f}",
        f"{min(times['integers']) * 1e3:.2f}",
        *(_over(times["integers"], times.get(k)) for k in ("floats", "onnxruntime", "openvino", "executorch")),
        f"{small_size / plain_size:.2f}",
        f"{memory / small_size:.2f}",
        f"{small_seconds / plain_seconds:.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def calibration(data: list[Batch], folder: Path) -> dict[str, str]:
    """The configuration's key for data, which is written to a folder; nothing if a scheme needs none."""
    for number, batch in enumerate(data):
        (folder / "data").mkdir(exist_ok=True)
        np.savez(folder / "data" / f"{number}.npz", *(x.numpy() for x in batch))
    return {"calibration": str(folder / "data")} if data else {}


def _over(ours: list[float], theirs: list[float] | None) -> str:
    """The median of the rounds' ratios, and the ratio of the least times."""
    if theirs is None:
        return ""
    return f"{statistics.median(map(operator.truediv, ours, theirs)):.2f} ({min(ours) / min(theirs):.2f})"


def process_memory(path: Path, arrays: list[np.ndarray]) -> int:
    """The resident memory, in bytes, of a process that has loaded a program and called it; read from Linux's /proc."""
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "inputs.npz", *arrays)
        code = _CALLS.format(model=str(path), inputs=f"{folder}/inputs.npz")
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return int(done.stdout.splitlines()[-1]) * 1024


_CALLS = """
import numpy
from delegate.runtime.loaded import load
inputs = list(numpy.load({inputs!r}).values())
program = load({model!r})
for _ in range(3):
    program(*inputs)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmRSS")))
"""


def peers_of(module: nn.Module, inputs: Batch, scheme: str, data: list[Batch], folder: Path) -> dict[str, Engine]:
    """The same model in int8 on others; what cannot run is left out, and said."""
    program = torch.export.export(Leaves(module), inputs)
    target = onnx_int8(program, scheme, data, folder)
    makers: dict[str, Callable[[], Engine]] = {
        "onnxruntime": lambda: _onnxruntime(target, inputs),
        "openvino": lambda: _openvino(target, inputs),
    }
    if EXECUTORCH_PYTHON.exists():
        makers["executorch"] = lambda: ExecuTorch(program, inputs, scheme, data)
    found: dict[str, Engine] = {}
    for name, make in makers.items():
        try:
            found[name] = make()
            found[name].run(0)
        except Exception as error:  # of a peer
            found.pop(name, None)
            print(f"{name} does not run it: {str(error).splitlines()[0]}", file=sys.stderr)
    return found


def onnx_int8(program: ExportedProgram, scheme: str, data: list[Batch], folder: Path) -> Path:
    """What ONNX Runtime's own quantization makes of a program."""
    import onnx
    from onnxruntime import quantization

    proto = onnx.load_from_string(onnx_bytes(program))
    # The quantization turns weights round, and is then told by the exporter that they have other shapes.
    del proto.graph.value_info[:]
    source, target = folder / "floats.onnx", folder / "int8.onnx"
    onnx.save(proto, source)
    if scheme == "static_int8":
        names = [i.name for i in proto.graph.input]
        weights = quantization.QuantType.QInt8
        quantization.quantize_static(source, target, _Reader(names, data), per_channel=True, weight_type=weights)
    else:
        quantization.quantize_dynamic(source, target, per_channel=True)
    return target


def _onnxruntime(target: Path, inputs: Batch) -> Engine:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = ort.InferenceSession(target, options, providers=["CPUExecutionProvider"])
    feed = {i.name: x.numpy() for i, x in zip(session.get_inputs(), inputs, strict=True)}
    return Local(lambda: session.run(None, feed))


def _openvino(target: Path, inputs: Batch) -> Engine:
    import openvino as ov

    settings = {"INFERENCE_NUM_THREADS": THREADS, "PERFORMANCE_HINT": "LATENCY"}
    request = ov.compile_model(str(target), "CPU", settings).create_infer_request()
    arrays = [x.numpy() for x in inputs]
    return Local(lambda: request.infer(arrays))


class _Reader:
    """Calibration data as ONNX Runtime's quantization reads it."""

    def __init__(self, names: list[str], data: list[Batch]) -> None:
        self._batches = iter([{n: x.numpy() for n, x in zip(names, batch, strict=True)} for batch in data])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._batches, None)


def cpu() -> str:
    """The CPU's name, and which of its instructions for integers it has."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    name = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    have = [f for f in ("avx2", "avx512_vnni", "avx_vnni", "amx_int8") if f in flags]
    return f"{name} ({', '.join(have) or 'no flags known'})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--backend", choices=(*ENGINES, MEASURED), default=ENGINES[0], help="or the fastest plan of all, measured"
    )
    parser.add_argument("--models", nargs="*", default=[*SCHEMES, STACK])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=0.2, help="of each engine in a round")
    parser.add_argument("--peers", action="store_true", help="ONNX Runtime, OpenVINO and ExecuTorch too")
    given = parser.parse_args()
    print(f"{given.backend}, {cpu()}, {THREADS} threads\n")
    print(
        "| model | scheme | backends | partitions | portable nodes | SQNR, dB | of the reference | least ms "
        "| over float32 | over ONNX Runtime int8 | over OpenVINO int8 | over ExecuTorch int8 | file | memory over file "
        "| lowering |"
    )
    print(f"|{'---|' * 15}")
    with zoo.libraries():
        for name in given.models:
            print(measure(name, given.backend, given.rounds, given.seconds, given.peers), flush=True)


if __name__ == "__main__":
    main()
