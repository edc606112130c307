"""Models of tests/support/models that are not of images: XNNPACK and portable kernels over torch eager, in turns.

python -m benchmarks.demanding [--models NAME ...] [--rounds N] [--seconds S]
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from benchmarks.engines import ENGINES, THREADS
from tests.support import models
from tests.support.models.language import LANGUAGE
from tests.support.models.written import WRITTEN

OURS = ("delegate", "portable")
_NAMES = [*LANGUAGE, *WRITTEN]


def measure(name: str, rounds: int, seconds: float) -> tuple[float, dict[str, float]]:
    """The median latency of eager, and that of each of ours over it: the median of the rounds' own ratios."""
    module, inputs = models.make(name)
    exported = models.export(module, inputs)
    engines = {engine: ENGINES[engine](exported, module, inputs) for engine in ("eager", *OURS)}
    measured: dict[str, list[float]] = {engine: [] for engine in engines}
    for _ in range(rounds + 1):
        for engine, built in engines.items():
            measured[engine].append(built.run(seconds))
    warm = {engine: found[1:] for engine, found in measured.items()}
    for built in engines.values():
        built.close()
    ratios = {n: statistics.median(a / b for a, b in zip(warm[n], warm["eager"], strict=True)) for n in OURS}
    return statistics.median(warm["eager"]), ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=_NAMES, choices=_NAMES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.1, help="of each engine in each round")
    chosen = parser.parse_args()
    torch.set_num_threads(THREADS)
    print(f"{time.strftime('%Y-%m-%d')}, {THREADS} threads\n")
    print("| model | eager, ms | xnnpack / eager | portable / eager |\n|---|---|---|---|")
    found: dict[str, dict[str, float]] = {}
    for name in chosen.models:
        eager, found[name] = measure(name, chosen.rounds, chosen.seconds)
        print(
            f"| {name} | {eager * 1e3:.2f} | {found[name]['delegate']:.2f} | {found[name]['portable']:.2f} |",
            flush=True,
        )
    means = [statistics.geometric_mean(ratios[engine] for ratios in found.values()) for engine in OURS]
    worst = [max(ratios[engine] for ratios in found.values()) for engine in OURS]
    for what, (xnnpack, portable) in (("geometric mean", means), ("worst", worst)):
        print(f"| {what} | | {xnnpack:.2f} | {portable:.2f} |")


if __name__ == "__main__":
    main()
