"""The framework tax: what a call, a load, and the memory of a program cost beyond the work itself.

python -m benchmarks.overhead
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import torch
from delegate_devtools.trace import Trace

import delegate
from benchmarks import device_calls
from benchmarks.engines import median_latency, onnx_bytes
from delegate.events import Listener
from delegate.program.file import serialize
from delegate.runtime.loaded import LoadedProgram
from delegate.runtime.profile import Profile
from tests.support import zoo

ROUNDS = 9

LOAD_DELEGATE = """
import time; start = time.perf_counter()
from delegate.runtime.loaded import load
load({path!r})
print(time.perf_counter() - start)
"""
LOAD_ONNXRUNTIME = """
import time; start = time.perf_counter()
import onnxruntime
options = onnxruntime.SessionOptions(); options.intra_op_num_threads = 2
onnxruntime.InferenceSession({path!r}, options, providers=["CPUExecutionProvider"])
print(time.perf_counter() - start)
"""


def call_overhead() -> None:
    """A call of a program with one delegate, over LiteRT's own copies and invoke on the same model."""
    print("\nCall of a program with one partition (us): relu of a small tensor, and mobilenet_v2's sizes of data\n")
    print("| input | LiteRT: copy, invoke, copy | delegate | more |")
    print("|---|---|---|---|")
    for shape in ((1, 16), (1, 3, 224, 224)):
        x = np.ones(shape, np.float32)
        exported = torch.export.export(torch.nn.ReLU(), (torch.from_numpy(x),))
        program = delegate.to_backend(exported, "xnnpack")
        plain = _litert(bytes(program.program.segments[program.program.delegates[0].segment]), x)
        loaded = program.loaded
        rounds = [(median_latency(plain, 0.3), median_latency(lambda p=loaded, a=x: p(a), 0.3)) for _ in range(ROUNDS)]
        theirs, ours = (statistics.median(times) * 1e6 for times in zip(*rounds, strict=True))
        print(f"| {list(shape)} | {theirs:.1f} | {ours:.1f} | {ours - theirs:.1f} |")


def isolation() -> None:
    """A call and a load of a program whose delegate runs in a process of its own, over the same in this process."""
    print("\nDelegates in a process of their own: calls (us), loads (ms)\n")
    print("| input | call | isolated | more | load | isolated |")
    print("|---|---|---|---|---|---|")
    for shape in ((1, 16), (1, 3, 64, 64), (1, 3, 224, 224)):
        x = np.ones(shape, np.float32)
        exported = torch.export.export(torch.nn.ReLU(), (torch.from_numpy(x),))
        data = serialize(delegate.to_backend(exported, "xnnpack").program)
        start = time.perf_counter()
        here = delegate.load(data)
        middle = time.perf_counter()
        with delegate.load(data, isolate=True) as there:
            loads = (middle - start) * 1e3, (time.perf_counter() - middle) * 1e3
            calls = partial(here, x), partial(there, x)
            rounds = [tuple(median_latency(call, 0.2) for call in calls) for _ in range(ROUNDS)]
        mine, theirs = (statistics.median(times) * 1e6 for times in zip(*rounds, strict=True))
        more = statistics.median(b - a for a, b in rounds) * 1e6
        print(f"| {list(shape)} | {mine:.1f} | {theirs:.1f} | {more:.1f} | {loads[0]:.0f} | {loads[1]:.0f} |")


def _litert(blob: bytes, x: np.ndarray):  # noqa: ANN202
    """One run of the model by LiteRT's own interpreter: input copied in, output copied out."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=blob, num_threads=2)
    interpreter.allocate_tensors()
    source, result = interpreter.get_input_details()[0]["index"], interpreter.get_output_details()[0]["index"]

    def run() -> np.ndarray:
        interpreter.set_tensor(source, x)
        interpreter.invoke()
        return interpreter.get_tensor(result)

    return run


def loading() -> None:
    """Import and load in a fresh process, interleaved; Python's own start is not counted."""
    exported = zoo.export("mobilenet_v2")
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = Path(folder) / "model.dlg", Path(folder) / "model.onnx"
        delegate.to_backend(exported, "xnnpack").save(ours)
        theirs.write_bytes(onnx_bytes(exported))
        _time(LOAD_DELEGATE.format(path=str(ours)))  # writes the bytecode
        rounds = [
            (_time(LOAD_DELEGATE.format(path=str(ours))), _time(LOAD_ONNXRUNTIME.format(path=str(theirs))))
            for _ in range(ROUNDS)
        ]
    mine, peer = (statistics.median(times) * 1e3 for times in zip(*rounds, strict=True))
    ratio = statistics.median(a / b for a, b in rounds)
    print("\nImport of the runtime and load of mobilenet_v2, in a fresh process (ms)\n")
    print("| delegate | ONNX Runtime | ratio |\n|---|---|---|")
    print(f"| {mine:.0f} | {peer:.0f} | {ratio:.2f} |")


def _time(code: str) -> float:
    # With bytecode kept, as it is for an installed package.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    return float(done.stdout.splitlines()[-1])


def dispatch() -> None:
    """A program of 1,000 tiny operators over NumPy's own calls."""

    class Chain(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            for i in range(1000):
                x = x + y if i % 2 else x * y
            return x

    x = np.ones(8, np.float32)
    exported = torch.export.export(Chain(), (torch.ones(8), torch.ones(8)))
    program = delegate.to_backend(exported, []).loaded
    out = np.empty_like(x)

    def plain() -> None:
        for _ in range(500):
            np.multiply(out, x, out=out)
            np.add(out, x, out=out)

    rounds = [(median_latency(lambda: program(x, x), 0.3), median_latency(plain, 0.3)) for _ in range(ROUNDS)]
    ours, theirs = (statistics.median(times) * 1e3 for times in zip(*rounds, strict=True))
    print("\nDispatch: 1,000 operators on 8 elements (us per operator)\n")
    print("| NumPy alone | delegate, portable | more |\n|---|---|---|")
    print(f"| {theirs:.2f} | {ours:.2f} | {ours - theirs:.2f} |")


def listening() -> None:
    """A program of 200 tiny operators with listeners, over the same without."""
    x = np.ones(4, np.float32)
    exported = torch.export.export(torch.nn.Sequential(*[torch.nn.Sigmoid() for _ in range(200)]), (torch.ones(4),))
    program = delegate.to_backend(exported, []).loaded
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        trace = stack.enter_context(Trace(Path(folder) / "trace.json"))
        listeners: dict[str, list[Listener]] = {
            "none": [],
            "one": [lambda event: None],
            "a profile": [Profile()],
            "two profiles": [Profile(), Profile()],
            "a trace": [trace],
        }
        rounds = [[_microseconds(program, x, own) / 200 for own in listeners.values()] for _ in range(ROUNDS)]
    print("\nListeners: 200 operators on 4 elements (us per operator, more than without)\n")
    print("| listeners | more |\n|---|---|")
    for number, name in enumerate(listeners):
        if number:
            print(f"| {name} | {statistics.median(times[number] - times[0] for times in rounds):.2f} |")


def _microseconds(program: LoadedProgram, x: np.ndarray, listeners: Sequence[Listener]) -> float:
    with ExitStack() as stack:
        for listener in listeners:
            stack.enter_context(program.listen(listener))
        program(x)
        return median_latency(lambda: program(x), 0.2) * 1e6


def main() -> None:
    torch.set_num_threads(2)
    print(time.strftime("%Y-%m-%d"))
    call_overhead()
    isolation()
    device_calls.main()
    loading()
    dispatch()
    listening()


if __name__ == "__main__":
    main()
