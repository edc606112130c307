"""Portable kernels on quantized programs over the same kernels on the programs in float32.

Calls take turns, and the least of each counts, so that other work on the machine matters little. The first calls, which
decode the weights, are not among them.

OPENBLAS_NUM_THREADS=1 python -m benchmarks.quantized_kernels [--cases CASE ...] [--calls N]
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Mapping

import torch
from torch import nn
from torch.export import export

import delegate
from tests.support import zoo
from tests.support.blocks import TokenBlock
from tests.support.quantizing import Quantize, by_x86, by_xnnpack, everything, in_place, pt2e

with zoo.libraries():
    from torchao.quantization.granularity import PerGroup


def _mobilenet() -> tuple[nn.Module, torch.Tensor]:
    x = torch.randn(1, 3, 64, 64)
    return zoo.calibrate(zoo.make("mobilenet_v2")[0], (x,)), x


def _linears(rows: int) -> Callable[[], tuple[nn.Module, torch.Tensor]]:
    return lambda: (nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1024)), torch.randn(rows, 1024))


def _block() -> tuple[nn.Module, torch.Tensor]:
    return TokenBlock(), torch.randint(0, 50, (2, 8))


_BY_TOKEN = "Int8DynamicActivationInt8WeightConfig"
_EVERYTHING = everything(torch.int8, per_channel=True)
# Name -> how the model is built, and how it is quantized.
CASES: Mapping[str, tuple[Callable[[], tuple[nn.Module, torch.Tensor]], Quantize]] = {
    "mobilenet_v2 64 by 64, every value in int8": (_mobilenet, _EVERYTHING),
    "mobilenet_v2 64 by 64, layers in uint8 by int8": (_mobilenet, pt2e(by_x86())),
    "linears, 64 rows, int8 by token": (_linears(64), in_place(_BY_TOKEN)),
    "linears, 1 row, int8 weights": (_linears(1), in_place("Int8WeightOnlyConfig")),
    "linears, 1 row, int8 by token": (_linears(1), in_place(_BY_TOKEN)),
    "linears, 1 row, int8 by token, int4 weights in groups": (
        _linears(1),
        in_place("Int8DynamicActivationIntxWeightConfig", weight_granularity=PerGroup(32), weight_dtype=torch.int4),
    ),
    "transformer block of width 64, every value in int8": (_block, _EVERYTHING),
    "transformer block of width 64, layers in int8, static": (_block, pt2e(by_xnnpack(is_per_channel=True))),
    "transformer block of width 64, layers in int8, dynamic": (
        _block,
        pt2e(by_xnnpack(is_per_channel=True, is_dynamic=True)),
    ),
}


def measure(name: str, calls: int) -> tuple[float, float]:
    """Seconds of a call in float32 and quantized."""
    build, quantize = CASES[name]
    torch.manual_seed(0)
    with zoo.libraries(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torchao about itself
        module, x = build()
        made = [export(module.eval(), (x,)), quantize(module, x)]  # the second may change the module
        programs = [delegate.to_backend(program, []) for program in made]
    array = x.numpy()
    loaded = [program.loaded for program in programs]
    times: list[list[float]] = [[], []]
    for turn in range(calls + 3):
        for program, seconds in zip(loaded, times, strict=True):
            start = time.perf_counter()
            program(array)
            if turn >= 3:
                seconds.append(time.perf_counter() - start)
    return min(times[0]), min(times[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES), metavar="CASE")
    parser.add_argument("--calls", type=int, default=200)
    chosen = parser.parse_args()
    print(f"{time.strftime('%Y-%m-%d')}\n\n| case | float32, ms | quantized, ms | ratio |\n|---|---|---|---|")
    for name in chosen.cases:
        floats, integers = measure(name, chosen.calls)
        print(f"| {name} | {floats * 1e3:.2f} | {integers * 1e3:.2f} | {integers / floats:.2f} |", flush=True)


if __name__ == "__main__":
    main()
