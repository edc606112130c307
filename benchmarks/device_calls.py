"""A call of a program that is one small partition on a device, over its library's own calls on the very same model.

python -m benchmarks.device_calls

The calls take turns, one after another, so that a busy machine slows all of them alike.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from delegate_onnxruntime.onnx.runtime.blob import unpack

import delegate
from delegate.errors import DelegateError
from delegate.program.model import DelegateSpec
from delegate.runtime.loaded import LoadedProgram

ROUNDS, CALLS = 15, 200

Call = Callable[[], object]
Calls = tuple[Call, Call]  # of a library: from array to array, and with memory that it was given before


def webgpu(spec: DelegateSpec, blob: memoryview, x: np.ndarray) -> Calls:
    """ONNX Runtime's own calls."""
    from delegate_onnxruntime.webgpu.runtime import WebGpuRuntime

    return _onnx(WebGpuRuntime.open(unpack(blob, (), spec.compile_specs), spec.compile_specs), x)


def dsp(spec: DelegateSpec, blob: memoryview, x: np.ndarray) -> Calls:
    """ONNX Runtime's own calls."""
    from delegate_onnxruntime.dsp.runtime import DspRuntime

    return _onnx(DspRuntime.open(unpack(blob, (), spec.compile_specs), spec.compile_specs), x)


def _onnx(session: Any, x: np.ndarray) -> Calls:
    given, made, result = session.get_inputs()[0].name, session.get_outputs()[0].name, np.empty_like(x)
    binding = session.io_binding()
    binding.bind_output(made, "cpu", 0, np.float32, x.shape, result.ctypes.data)

    def bound() -> np.ndarray:
        binding.bind_input(given, "cpu", 0, np.float32, x.shape, x.ctypes.data)  # WebGPU copies what lies there now
        session.run_with_iobinding(binding)
        return result

    return lambda: session.run(None, {given: x}), bound


def tvm(spec: DelegateSpec, blob: memoryview, x: np.ndarray) -> Calls:
    """TVM's own Python package; what it is given and gives when bound stays in its tensors."""
    from delegate_cuda.runtime.delegate import unpack as parts
    from tvm import cpu, relax, runtime

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "library.so")
        path.write_bytes(parts(blob, spec.compile_specs)[0])
        main = relax.VirtualMachine(runtime.load_module(str(path)), cpu())["main"]
    bound = runtime.tensor(x)

    def own() -> np.ndarray:
        return main(runtime.tensor(x))[0].numpy()

    return own, lambda: main(bound)


ROWS: Mapping[str, tuple[dict[str, Any], Callable[..., Calls]]] = {
    "webgpu": ({"name": "webgpu"}, webgpu),
    "cuda, for the host (llvm)": ({"name": "cuda", "options": {"arch": "llvm"}}, tvm),
    "dsp": ({"name": "dsp"}, dsp),
}


def measure(backend: dict[str, Any], library: Callable[..., Calls], shape: tuple[int, ...]) -> list[float]:
    """Seconds of a call: the library's own, bound, and this project's: medians of rounds."""
    x = np.ones(shape, np.float32)
    exported = torch.export.export(torch.nn.ReLU(), (torch.from_numpy(x),))
    program = delegate.to_backend(exported, config={"backends": [backend]}).program
    (spec,) = program.delegates
    own, bound = library(spec, memoryview(program.segments[spec.segment]), x)
    loaded = LoadedProgram(program, trust_code=True)
    rounds = [_take_turns((own, bound, lambda: loaded(x))) for _ in range(ROUNDS)]
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def _take_turns(calls: Sequence[Call]) -> list[float]:
    """The median time of each call."""
    times: list[list[float]] = [[] for _ in calls]
    order = list(range(len(calls)))
    shuffled = random.Random(0)
    for _ in range(CALLS):
        shuffled.shuffle(order)  # some libraries leave work for the call that follows
        for i in order:
            start = time.perf_counter()
            calls[i]()
            times[i].append(time.perf_counter() - start)
    return [statistics.median(found) for found in times]


def main() -> None:
    """Prints a table."""
    print("\nCall of a program with one relu on a device (us)\n")
    print("| backend | elements | library's own call | its call with I/O binding | delegate | ratio | to bound |")
    print("|---|---|---|---|---|---|---|")
    for name, (backend, library) in ROWS.items():
        for shape in ((1, 16), (1, 3, 224, 224)):
            try:
                own, bound, ours = (t * 1e6 for t in measure(backend, library, shape))
            except DelegateError as error:
                print(f"| {name} | {str(error).partition(':')[0]} | | | | | |")
                break
            cells = f"{own:.1f} | {bound:.1f} | {ours:.1f} | {ours / own:.2f} | {ours / bound:.2f}"
            print(f"| {name} | {int(np.prod(shape))} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
