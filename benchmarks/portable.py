"""Kernels instead of backends: portable (NumPy) and ATen mode (torch's own kernels) over torch eager.

python -m benchmarks.portable
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

import torch

from benchmarks.engines import THREADS
from benchmarks.models import CNNS, TRANSFORMERS, Row, measure, ratio
from tests.support import zoo

ENGINES = ("eager", "portable", "aten")


def print_table(rows: Sequence[Row]) -> None:
    """Latencies, and the medians of the rounds' own ratios to eager."""
    print(f"\nLatency, ms, and over that of eager ({THREADS} threads, batch 1)\n")
    print("| model | eager | portable | aten | portable / eager | aten / eager | rel. error of portable |")
    print("|---" * 7 + "|")
    for row in rows:
        times = " | ".join(f"{statistics.median(row.rounds[name]) * 1e3:.2f}" for name in ENGINES)
        ratios = " | ".join(f"{ratio(row, name, 'eager'):.2f}" for name in ENGINES[1:])
        print(f"| {row.model} | {times} | {ratios} | {row.errors['portable']:.0e} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=[*CNNS, *TRANSFORMERS], choices=list(zoo.ZOO))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each engine in each round")
    chosen = parser.parse_args()
    torch.set_num_threads(THREADS)
    rows = [measure(model, ENGINES, chosen.rounds, chosen.seconds) for model in chosen.models]
    print(time.strftime("%Y-%m-%d"))
    print_table(rows)


if __name__ == "__main__":
    main()
