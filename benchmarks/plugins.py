"""Latency of this project on a plugin's backend over the vendor library's own on the whole model, taking turns.

python -m benchmarks.plugins [--models NAME ...] [--backends NAME ...] [--seconds S] [--threads N]

A turn is three calls, of which the first warms caches up again, behind a pause in which the threads of the other engine
fall asleep: some spin on when their call has ended. What is compared is the lower quartile of all calls of
each: the machine may have other work. Processor time beside it hardly feels that, with one thread not at all.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

import torch

from benchmarks import engines
from benchmarks.models import CNNS, TRANSFORMERS, relative_error
from tests.support import zoo

BACKENDS = {"openvino": "delegate-openvino", "onnxruntime": "delegate-onnxruntime"}  # the vendor's engine -> ours on it
CALLS = 3  # of a turn
PAUSE = 0.05  # seconds in front of it
Times = tuple[list[float], list[float]]  # of calls: on the wall, of the processor; seconds


@dataclass(frozen=True)
class Row:
    """What was measured of one model on one backend: the vendor's engine, then ours."""

    model: str
    own: Times
    ours: Times
    error: float
    partitions: str

    def __str__(self) -> str:
        own, ours = _quartile(self.own[0]), _quartile(self.ours[0])
        processor = _quartile(self.ours[1]) / _quartile(self.own[1])
        times = f"{own * 1e3:.2f} | {ours * 1e3:.2f} | {ours / own:.3f} | {processor:.3f}"
        return f"| {self.model} | {times} | {self.partitions} | {self.error:.0e} | {len(self.own[0])} |"


def measure(model: str, backend: str, seconds: float) -> Row:
    module, inputs = zoo.make(model)
    ep = zoo.export(model)
    made = [engines.ENGINES[name](ep, module, inputs) for name in (backend, BACKENDS[backend])]
    error = relative_error(made[1].outputs(), engines.ENGINES["eager"](ep, module, inputs).outputs())
    times: tuple[Times, Times] = (([], []), ([], []))
    for engine in made:
        engine.run(seconds / 20)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for engine, (wall, processor) in zip(made, times, strict=True):
            assert isinstance(engine, engines.Local)
            time.sleep(PAUSE)
            for call in range(CALLS):
                starts = time.perf_counter(), time.process_time()
                engine.call()
                if call:
                    wall.append(time.perf_counter() - starts[0])
                    processor.append(time.process_time() - starts[1])
    return Row(model, *times, error, made[1].note)


def _quartile(times: Sequence[float]) -> float:
    return sorted(times)[len(times) // 4]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=[*CNNS, *TRANSFORMERS], choices=list(zoo.ZOO))
    parser.add_argument("--backends", nargs="+", default=list(BACKENDS), choices=list(BACKENDS))
    parser.add_argument("--seconds", type=float, default=10, help="of each model on each backend")
    parser.add_argument("--threads", type=int, default=engines.THREADS)
    chosen = parser.parse_args()
    engines.THREADS = chosen.threads
    torch.set_num_threads(chosen.threads)
    libraries = ", ".join(f"{name} {version(name)}" for name in ("torch", *chosen.backends))
    print(f"{time.strftime('%Y-%m-%d')}; threads: {chosen.threads}; {libraries}")
    for backend in chosen.backends:
        print(
            f"\n| model | {backend}, ms | delegate, ms | ratio | of processor time | partitions | rel. error | calls |"
        )
        print("|---" * 8 + "|")
        for model in chosen.models:
            print(measure(model, backend, chosen.seconds), flush=True)
            gc.collect()


if __name__ == "__main__":
    main()
