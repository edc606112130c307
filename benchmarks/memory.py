"""The memory of portable programs: arenas over the largest sum of live tensors, and peak memory of a run.

python -m benchmarks.memory

Peaks are read from Linux's /proc: getrusage counts what the parent process had.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

import delegate
from benchmarks.engines import onnx_bytes
from delegate.kernels.selection import Kernels
from delegate.memory.planner import largest_live_sum
from delegate.memory.storage import assign_storage
from delegate.registry import default_registry
from tests.support import zoo

RUN_DELEGATE = """
from delegate.runtime.loaded import load
program = load({model!r})
for _ in range(3):
    program(*inputs)
"""
RUN_ONNXRUNTIME = """
import onnxruntime
options = onnxruntime.SessionOptions(); options.intra_op_num_threads = 2
session = onnxruntime.InferenceSession({model!r}, options, providers=["CPUExecutionProvider"])
for _ in range(3):
    session.run(None, {{i.name: x for i, x in zip(session.get_inputs(), inputs)}})
"""
IN_A_PROCESS = """
import numpy
inputs = list(numpy.load({inputs!r}).values())
{run}
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))  # KiB
"""


def arenas(models: Sequence[str]) -> None:
    """The arena of every model, over the largest sum of tensors alive at one instruction."""
    kernels = Kernels(default_registry().kernels.tables)
    print("\nArena of portable programs over the largest sum of live tensors\n")
    print("| model | values | arena, MiB | ratio |\n|---|---|---|---|")
    for name in models:
        program = delegate.to_backend(zoo.export(name), []).program
        method = program.methods[0]
        plan = assign_storage(program, method, kernels, {})
        least = largest_live_sum(plan.lifetimes)
        size = plan.arenas[0]
        print(f"| {name} | {len(method.values)} | {size / 2**20:.2f} | {size / least:.3f} |")


def peaks(models: Sequence[str]) -> None:
    """Peak resident memory of a process that loads a model and runs it three times, Python and NumPy included."""
    print("\nPeak resident memory of load and run, MiB; Python with NumPy alone takes "
          f"{_peak('', Path('/nonexistent'), []):.0f}\n")  # fmt: skip
    print("| model | constants | delegate, portable | ONNX Runtime | ratio |\n|---|---|---|---|---|")
    for name in models:
        exported, (_, inputs) = zoo.export(name), zoo.make(name)
        arrays = [x.numpy() for x in inputs]
        size = sum(t.nbytes for t in exported.state_dict.values()) / 2**20
        with tempfile.TemporaryDirectory() as folder:
            ours, theirs = Path(folder) / "model.dlg", Path(folder) / "model.onnx"
            delegate.to_backend(exported, []).save(ours)
            theirs.write_bytes(onnx_bytes(exported))
            mine, peer = _peak(RUN_DELEGATE, ours, arrays), _peak(RUN_ONNXRUNTIME, theirs, arrays)
        print(f"| {name} | {size:.0f} | {mine:.0f} | {peer:.0f} | {mine / peer:.2f} |", flush=True)


def _peak(run: str, model: Path, inputs: Sequence[np.ndarray]) -> float:
    """Peak resident memory, MiB, of a fresh process that runs code on a model."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "inputs.npz"
        np.savez(path, *inputs)
        code = IN_A_PROCESS.format(inputs=str(path), run=run.format(model=str(model)))
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return int(done.stdout.splitlines()[-1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(zoo.ZOO), choices=list(zoo.ZOO))
    chosen = parser.parse_args()
    torch.set_num_threads(2)
    print(time.strftime("%Y-%m-%d"))
    arenas(chosen.models)
    peaks(chosen.models)


if __name__ == "__main__":
    main()
