"""Latency of real models on a GPU: this project's engines beside torch's, from host memory to host memory.

python -m benchmarks.gpu [--models NAME ...] [--batches N ...] [--dtypes NAME ...] [--engines NAME ...] [--cuda OPTIONS]

On a machine without a GPU torch runs on the CPU, and an engine runs on what plays a GPU there, which says how the
benchmark is used and nothing of any GPU; the first line names the devices.
"""

from __future__ import annotations

import argparse
import copy
import gc
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml

import delegate
from benchmarks.engines import Engine, Local, leaves
from benchmarks.models import relative_error
from delegate.errors import DelegateError
from delegate.registry import default_registry
from tests.support import zoo

DTYPES = ("float32", "float16")  # NumPy, and so a program's call, has no bfloat16
MODELS = ("mobilenet_v2", "resnet50", "vit_b_16", "bert_base")
ROUNDS = 5
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

Inputs = tuple[torch.Tensor, ...]
Build = Callable[[torch.nn.Module, Inputs], Engine]


def eager(module: torch.nn.Module, inputs: Inputs) -> Engine:
    """torch as it is."""
    return _torch(copy.deepcopy(module).to(DEVICE), inputs)


def inductor(module: torch.nn.Module, inputs: Inputs) -> Engine:
    """torch.compile."""
    return _torch(torch.compile(copy.deepcopy(module).to(DEVICE)), inputs)


def _torch(call: Callable[..., object], inputs: Inputs) -> Engine:
    def run() -> list[torch.Tensor]:
        with torch.no_grad():
            return [t.cpu() for t in leaves(call(*(x.to(DEVICE) for x in inputs)))]

    return Local(run)


def webgpu(module: torch.nn.Module, inputs: Inputs) -> Engine:
    """This project by ONNX Runtime's WebGPU plugin."""
    return _delegate(module, inputs, "webgpu")


def cuda(module: torch.nn.Module, inputs: Inputs, given: Mapping[str, Any] | None = None) -> Engine:
    """This project by TVM, with options of the backend."""
    return _delegate(module, inputs, "cuda", given)


def _delegate(
    module: torch.nn.Module, inputs: Inputs, backend: str, options: Mapping[str, Any] | None = None
) -> Engine:
    exported = torch.export.export(module, inputs)
    start = time.perf_counter()
    choice = {"name": backend, "options": dict(options or {})}
    compiled = delegate.to_backend(exported, config={"backends": [choice]})
    lowering = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as folder:
        compiled.save(Path(folder) / "model.dlg")
        program = delegate.load(Path(folder) / "model.dlg", trust_code=True)
    arrays = [x.numpy() for x in inputs]
    made = Local(lambda: program(*arrays))
    made.lowering, made.note = lowering, f"{len(compiled.report.partitions)} partitions"
    return made


ENGINES: dict[str, Build] = {"eager": eager, "inductor": inductor, "webgpu": webgpu, "cuda": cuda}


def measure(model: str, batch: int, dtype: torch.dtype, builds: Mapping[str, Build], seconds: float) -> list[str]:
    """A row of the table: per engine the median of the rounds (ms) over that of eager, or why there is none."""
    module, single = zoo.make(model)
    single = tuple(x.repeat(batch, *[1] * (x.dim() - 1)) for x in single)
    with torch.no_grad():
        reference = [t.numpy() for t in leaves(module(*single))]
    module, inputs = module.to(dtype), tuple(_cast(x, dtype) for x in single)
    engines: dict[str, Engine] = {}
    cells = {}
    for name, build in builds.items():
        try:
            engines[name] = build(module, inputs)
            error = relative_error(engines[name].outputs(), reference)
            engines[name].run(seconds)
        except DelegateError as problem:
            engines.pop(name, None)
            cells[name] = str(problem).partition("\n")[0]
        else:
            engines[name].note += f" {error:.0e}"
    rounds: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(ROUNDS):
        for name, engine in engines.items():
            rounds[name].append(engine.run(seconds))
    for name, engine in engines.items():
        ratio = ""
        if "eager" in rounds:
            ratio = f" ({statistics.median(a / b for a, b in zip(rounds[name], rounds['eager'], strict=True)):.2f})"
        cells[name] = f"{statistics.median(rounds[name]) * 1e3:.2f}{ratio} {engine.note}".strip()
    return [model, str(batch), str(dtype).removeprefix("torch."), *(cells[name] for name in builds)]


def _cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x.to(dtype) if x.is_floating_point() else x


def _devices() -> str:
    found = default_registry().state("gpu")
    names = found.availability.devices if found.availability else ()
    here = torch.cuda.get_device_name() if DEVICE == "cuda" else "the CPU"
    return f"torch {torch.__version__} on {here}; gpu: {', '.join(names) or found.detail}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS, choices=[*zoo.ZOO, *zoo.LARGE])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 32])
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES)
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=list(ENGINES))
    parser.add_argument("--seconds", type=float, default=0.5, help="of each engine in each round")
    parser.add_argument("--tf32", action="store_true", help="torch and cuda multiply float32 in TF32")
    parser.add_argument(
        "--cuda",
        type=yaml.safe_load,
        default={},
        metavar="OPTIONS",
        help="of the backend cuda, e.g. '{precision: float16, tuning: {trials: 1000, database: gpu.jsonl}}'",
    )
    chosen = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = chosen.tf32
    given = {"precision": "tf32"} if chosen.tf32 else {}
    builds = {
        name: partial(cuda, given=given | chosen.cuda) if name == "cuda" else ENGINES[name] for name in chosen.engines
    }
    print(f"{time.strftime('%Y-%m-%d')}; {_devices()}\n")
    print("Milliseconds (over eager's), partitions, error relative to torch's float32 on the CPU\n")
    print("| model | batch | dtype | " + " | ".join(chosen.engines) + " |")
    print("|---" * (len(chosen.engines) + 3) + "|", flush=True)
    for model, dtype, batch in itertools.product(chosen.models, chosen.dtypes, chosen.batches):
        row = measure(model, batch, getattr(torch, dtype), builds, chosen.seconds)
        print(f"| {' | '.join(row)} |", flush=True)
        torch.compiler.reset()
        gc.collect()


if __name__ == "__main__":
    main()
