"""Where a model's time goes in float32 and in static int8: every operator of its TFLite models on LiteRT alone.

python -m benchmarks.quantized_operators [--models NAME ...] [--calls N]

Each operator is a model of its own, with its constants; of its calls the least counts, so that other work on the
machine matters little. What the library takes for the same layers in int8 bounds what a quantized program can gain.
Padding is left out: XNNPACK makes it one with the layer behind it.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.export import ExportedProgram

import delegate
from benchmarks.engines import THREADS
from benchmarks.quantized import CONFIG, SCHEMES, cpu, model
from delegate.backends.xnnpack.aot import backend as aot
from delegate.backends.xnnpack.aot.tflite import Model
from delegate.backends.xnnpack.runtime.interpreted import open_interpreter
from delegate.quantization import Quantization, quantize
from tests.support import zoo

LAYERS = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED")


def built(program: ExportedProgram) -> Model:
    """The TFLite model of a program that is one partition."""
    found: list[Model] = []
    prove = aot.refused

    def seen(made: Model, *rest: Any) -> Any:
        found.append(made)
        return prove(made, *rest)

    with mock.patch.object(aot, "refused", seen):
        delegate.to_backend(program, config=CONFIG)
    return found[-1]


def times(made: Model, calls: int) -> dict[str, float]:
    """Seconds by operator, the least of so many calls each, summed up."""
    sums: dict[str, float] = defaultdict(float)
    for position, name in enumerate(made.operators):
        if name == "PAD":
            continue
        interpreter = open_interpreter(made.single(position), THREADS)
        interpreter.allocate_tensors()
        for given in interpreter.get_input_details():
            interpreter.set_tensor(given["index"], np.ones(given["shape"], given["dtype"]))
        invoke = interpreter._interpreter.Invoke
        least = float("inf")
        for _ in range(calls):
            start = time.perf_counter()
            invoke()
            least = min(least, time.perf_counter() - start)
        sums[name] += least
    return sums


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=[n for n, scheme in SCHEMES.items() if scheme == "static_int8"])
    parser.add_argument("--calls", type=int, default=50)
    given = parser.parse_args()
    print(f"{cpu()}, {THREADS} threads; us, operators one by one\n")
    print("| model | layers, float32 | layers, int8 | ratio | others, float32 | others, int8 | of these most |")
    print("|---|---|---|---|---|---|---|")
    with zoo.libraries():
        for name in given.models:
            module, inputs, scheme, data = model(name)
            with torch.no_grad():
                floats = torch.export.export(module, inputs)
                sums = [
                    times(built(p), given.calls)
                    for p in (floats, quantize(floats, Quantization(backend="xnnpack", scheme=scheme), data))
                ]
            (a, b), (c, d) = (
                [sum(s[n] for n in s if (n in LAYERS) == is_layer) * 1e6 for s in sums] for is_layer in (True, False)
            )
            most = sorted((n for n in sums[1] if n not in LAYERS), key=lambda n: -sums[1][n])[:3]
            print(
                f"| {name} | {a:.0f} | {b:.0f} | {b / a:.2f} | {c:.0f} | {d:.0f} | "
                f"{', '.join(f'{n} {sums[1][n] * 1e6:.0f}' for n in most)} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
