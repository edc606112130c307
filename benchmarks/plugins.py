"""Latency of this project on the plugins' backends over the vendor's own on the whole model, interleaved in one run.

python -m benchmarks.plugins [--models NAME ...] [--backends NAME ...] [--rounds N] [--seconds S]
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Sequence
from importlib.metadata import version

import torch

from benchmarks.engines import THREADS
from benchmarks.models import CNNS, TRANSFORMERS, Row, measure, ratio
from tests import zoo

BACKENDS = {"openvino": "delegate-openvino", "onnxruntime": "delegate-onnxruntime"}  # the vendor's engine -> ours on it


def print_table(rows: Sequence[Row], backends: Sequence[str]) -> None:
    print(
        "| model | " + " | ".join(f"{b}, ms | delegate, ms | ratio | partitions | rel. error" for b in backends) + " |"
    )
    print("|---" * (len(backends) * 5 + 1) + "|")
    for row in rows:
        cells = []
        for own, ours in ((b, BACKENDS[b]) for b in backends):
            cells += [f"{statistics.median(row.rounds[name]) * 1e3:.2f}" for name in (own, ours)]
            cells += [f"{ratio(row, ours, own):.3f}", row.notes[ours], f"{row.errors[ours]:.0e}"]
        print(f"| {row.model} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=[*CNNS, *TRANSFORMERS], choices=list(zoo.ZOO))
    parser.add_argument("--backends", nargs="+", default=list(BACKENDS), choices=list(BACKENDS))
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--seconds", type=float, default=0.2, help="of each engine in each round")
    chosen = parser.parse_args()
    torch.set_num_threads(THREADS)
    names = [name for backend in chosen.backends for name in (backend, BACKENDS[backend])]
    rows = []
    for model in chosen.models:
        rows.append(measure(model, names, chosen.rounds, chosen.seconds))
        gc.collect()
        print_table(rows[-1:], chosen.backends)
    libraries = ", ".join(f"{name} {version(name)}" for name in ("torch", *chosen.backends))
    print(f"\n{time.strftime('%Y-%m-%d')}; {THREADS} threads; {libraries}\n")
    print_table(rows, chosen.backends)


if __name__ == "__main__":
    main()
