"""Runs a model on ExecuTorch with XNNPACK for benchmarks/engines.py; started in ExecuTorch's own environment.

    python executorch_worker.py FOLDER THREADS      FOLDER holds model.pt2 and inputs.npz

Speaks JSON lines: what it is asked on standard input, the answer on standard output.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from executorch.extension.pybindings import portable_lib
from executorch.runtime import Runtime


def main(folder: Path, threads: int, scheme: str = "") -> None:
    exported = torch.export.load(folder / "model.pt2")
    if scheme:
        exported = quantized(exported, scheme, folder)
    start = time.perf_counter()
    edge = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
    program = edge.to_executorch()
    lowering = time.perf_counter() - start
    delegates = sum("executorch_call_delegate" in str(n.target) for n in edge.exported_program().graph.nodes)
    portable_lib._unsafe_reset_threadpool(threads)
    loaded = Runtime.get().load_program(program.buffer)  # keep it: the method refers to its memory
    method = loaded.load_method("forward")
    with np.load(folder / "inputs.npz") as stored:
        inputs = [torch.from_numpy(x) for x in stored.values()]
    answer({"lowering": lowering, "delegates": delegates})
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "outputs":
            np.savez(folder / "outputs.npz", *(x.numpy() for x in method.execute(inputs)))
            answer({})
        else:
            answer({"median": median_latency(method, inputs, request["seconds"])})


def quantized(exported: torch.export.ExportedProgram, scheme: str, folder: Path) -> torch.export.ExportedProgram:
    """By ExecuTorch's own quantizer; ranges are measured on the batches in the folder."""
    from executorch.backends.xnnpack.quantizer import xnnpack_quantizer as xq
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    config = xq.get_symmetric_quantization_config(is_per_channel=True, is_dynamic=scheme == "dynamic_int8")
    prepared = prepare_pt2e(exported.module(), xq.XNNPACKQuantizer().set_global(config))
    for path in sorted(folder.glob("batch_*.npz")):
        with np.load(path) as stored, torch.no_grad():
            prepared(*(torch.from_numpy(x) for x in stored.values()))
    args, _ = exported.example_inputs
    return torch.export.export(convert_pt2e(prepared), args)


def median_latency(method: object, inputs: list[torch.Tensor], seconds: float) -> float:
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        method.execute(inputs)  # type: ignore[attr-defined]
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def answer(content: dict[str, object]) -> None:
    print(json.dumps(content), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
