"""Quantized models on XNNPACK beside the same in float32, and beside int8 on ONNX Runtime and OpenVINO, in one run.

python -m benchmarks.quantized [--models NAME ...] [--rounds N] [--seconds S] [--peers]
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.export import ExportedProgram

import delegate
from benchmarks.engines import THREADS, median_latency, onnx_bytes
from delegate.quantization import Settings, quantize
from tests import zoo

SCHEMES = {
    **dict.fromkeys(("mobilenet_v2", "mobilenet_v3_small", "resnet18", "resnet50", "efficientnet_b0"), "static_int8"),
    **dict.fromkeys(("vit_tiny", "swin_t", "bert_mini"), "dynamic_int8"),
}
STACK = "qwen3_0.6b linears"
_BATCHES = 8
CONFIG = {"backends": [{"name": "xnnpack", "options": {"threads": THREADS}}]}


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


def model(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...], str, Iterator[tuple[torch.Tensor, ...]]]:
    """A module, example inputs, the scheme, and calibration data."""
    torch.manual_seed(0)
    if name == STACK:
        return Linears().eval(), (torch.randn(1, 1024),), "dynamic_int4", iter(())
    module, inputs = zoo.make(name)
    data = (tuple(torch.randn_like(x) if x.is_floating_point() else x for x in inputs) for _ in range(_BATCHES))
    return module, inputs, SCHEMES[name], data


def sqnr(expected: torch.Tensor, got: torch.Tensor) -> float:
    """Signal to noise in dB."""
    return float(10 * torch.log10(expected.pow(2).mean() / (expected - got).pow(2).mean().clamp_min(1e-30)))


def first(result: Any) -> torch.Tensor:
    """The first tensor of nested results."""
    return next(x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor)).detach()


def lowered(program: ExportedProgram, path: Path) -> tuple[delegate.CompiledProgram, float, int]:
    """A program on XNNPACK, how long that took, and the size of its file."""
    start = time.perf_counter()
    compiled = delegate.to_backend(program, config=CONFIG)
    seconds = time.perf_counter() - start
    compiled.save(path)
    return compiled, seconds, os.path.getsize(path)


def measure(name: str, rounds: int, seconds: float, peers: bool) -> str:
    """A row of the table."""
    module, inputs, scheme, data = model(name)
    floats = torch.export.export(module, inputs)
    integers = quantize(floats, Settings("xnnpack", scheme), data)
    arrays = [x.numpy() for x in inputs]
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        _, plain_seconds, plain_size = lowered(floats, Path(folder) / "floats.dlg")
        small, small_seconds, small_size = lowered(integers, Path(folder) / "integers.dlg")
        loaded = {kind: delegate.load(Path(folder) / f"{kind}.dlg") for kind in ("floats", "integers")}
        calls: dict[str, Callable[[], Any]] = {kind: partial(p, *arrays) for kind, p in loaded.items()}
        exact, reference, ours = (first(f(*inputs)) for f in (module, integers.module(), small))
        if peers:
            calls |= peers_of(floats, inputs, scheme, Path(folder))
        times: dict[str, list[float]] = {kind: [] for kind in calls}
        for _ in range(rounds):
            for kind, call in calls.items():
                times[kind].append(median_latency(call, seconds))
    ratios = {
        kind: statistics.median(a / b for a, b in zip(times["integers"], times[kind], strict=True)) for kind in calls
    }
    cells = [
        name,
        scheme,
        str(len(small.report.partitions)),
        f"{sum(n.backend == 'portable' for n in small.report.nodes)}",
        f"{sqnr(exact, ours):.1f}",
        f"{sqnr(exact, reference):.1f}",
        f"{statistics.median(times['integers']) * 1e3:.2f}",
        *(f"{ratios[kind]:.2f}" if kind in ratios else "" for kind in ("floats", "onnxruntime", "openvino")),
        f"{small_size / plain_size:.2f}",
        f"{small_seconds / plain_seconds:.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def peers_of(
    floats: ExportedProgram, inputs: tuple[torch.Tensor, ...], scheme: str, folder: Path
) -> dict[str, Callable[[], Any]]:
    """ONNX Runtime's own quantization of the same model, there and, where that is static, in OpenVINO."""
    import onnxruntime as ort
    from onnxruntime import quantization

    (folder / "floats.onnx").write_bytes(onnx_bytes(floats))
    target = folder / "int8.onnx"
    if scheme == "static_int8":
        reader = _Reader(floats, inputs)
        quantization.quantize_static(
            folder / "floats.onnx", target, reader, per_channel=True, weight_type=quantization.QuantType.QInt8
        )
    else:
        quantization.quantize_dynamic(folder / "floats.onnx", target, per_channel=True)
    options = ort.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = ort.InferenceSession(target, options, providers=["CPUExecutionProvider"])
    feed = {i.name: x.numpy() for i, x in zip(session.get_inputs(), inputs, strict=True)}
    found: dict[str, Callable[[], Any]] = {"onnxruntime": lambda: session.run(None, feed)}
    if scheme == "static_int8":
        import openvino as ov

        settings = {"INFERENCE_NUM_THREADS": THREADS, "PERFORMANCE_HINT": "LATENCY"}
        request = ov.compile_model(str(target), "CPU", settings).create_infer_request()
        arrays = [x.numpy() for x in inputs]
        found["openvino"] = lambda: request.infer(arrays)
    return found


class _Reader:
    """Calibration data as ONNX Runtime's quantization reads it."""

    def __init__(self, floats: ExportedProgram, inputs: tuple[torch.Tensor, ...]) -> None:
        names = [str(n) for n in floats.graph_signature.user_inputs]
        generator = np.random.default_rng(0)
        draw = generator.standard_normal
        self._batches = iter(
            [{n: draw(x.shape, np.float32) for n, x in zip(names, inputs, strict=True)} for _ in range(_BATCHES)]
        )

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
    parser.add_argument("--models", nargs="*", default=[*SCHEMES, STACK])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--peers", action="store_true", help="ONNX Runtime and OpenVINO too")
    given = parser.parse_args()
    print(f"{cpu()}, {THREADS} threads\n")
    print(
        "| model | scheme | partitions | portable nodes | SQNR, dB | of the reference | ms | over float32 "
        "| over ONNX Runtime int8 | over OpenVINO int8 | file | lowering |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    with zoo.libraries():
        for name in given.models:
            print(measure(name, given.rounds, given.seconds, given.peers), flush=True)


if __name__ == "__main__":
    main()
