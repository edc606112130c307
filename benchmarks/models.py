"""Latency and lowering time of real models on this project and on its peers, interleaved in one run.

python -m benchmarks.models [--models NAME ...] [--engines NAME ...] [--rounds N] [--seconds S] [--json FILE]
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np
import torch

from benchmarks.engines import ENGINES, THREADS, Engine
from benchmarks.results import Results, Table
from tests.support import zoo

CNNS = ("mobilenet_v2", "mobilenet_v3_small", "resnet18", "resnet50", "efficientnet_b0", "convnext_tiny")
TRANSFORMERS = ("vit_tiny", "swin_t", "mobilevit_xxs", "bert_mini", "llama_mini")
LATENCY = f"Latency, ms (median of the rounds; {THREADS} threads, batch 1)"
RATIOS = "Latency of delegate over that of each peer (less than 1: faster)"
LOWERING = "Lowering after torch.export, seconds"
VERSIONS = ("torch", "ai-edge-litert", "onnxruntime", "openvino", "numpy")


@dataclass(frozen=True)
class Row:
    """What was measured of one model: per engine the medians of the rounds (seconds), error, lowering time, note."""

    model: str
    rounds: dict[str, list[float]]
    errors: dict[str, float]
    lowering: dict[str, float]
    notes: dict[str, str]


def measure(model: str, names: Sequence[str], rounds: int, seconds: float) -> Row:
    module, inputs = zoo.make(model)
    ep = zoo.export(model)
    engines: dict[str, Engine] = {}
    for name in names:
        start = time.perf_counter()
        engines[name] = ENGINES[name](ep, module, inputs)
        print(f"  {model}: {name} built in {time.perf_counter() - start:.1f} s", flush=True)
    expected = ENGINES["eager"](ep, module, inputs).outputs()
    errors = {name: relative_error(e.outputs(), expected) for name, e in engines.items()}
    for engine in engines.values():
        engine.run(seconds / 2)
    measured: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(rounds):
        for name, engine in engines.items():
            measured[name].append(engine.run(seconds))
    row = Row(
        model,
        measured,
        errors,
        {name: e.lowering for name, e in engines.items() if e.lowering is not None},
        {name: e.note for name, e in engines.items() if e.note},
    )
    for engine in engines.values():
        engine.close()
    return row


def relative_error(actual: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """The largest difference over the largest value, over all outputs."""
    return max(
        float(np.abs(a.astype(np.float64) - e).max() / max(np.abs(e).max(), 1e-30))
        for a, e in zip(actual, expected, strict=True)
    )


def ratio(row: Row, of: str, to: str) -> float:
    """The median over the rounds of one engine's latency over another's."""
    return statistics.median(a / b for a, b in zip(row.rounds[of], row.rounds[to], strict=True))


def tables(rows: Sequence[Row], names: Sequence[str]) -> dict[str, Table]:
    """Return the tables of these engines by title; ratios only if this project is among them."""
    latency = [
        [
            row.model,
            *(f"{statistics.median(row.rounds[n]) * 1e3:.2f}" for n in names),
            " / ".join(row.notes.get(n, "-") for n in ("delegate", "executorch") if n in names),
            f"{row.errors.get('delegate', 0):.0e}",
        ]
        for row in rows
    ]
    made = {LATENCY: Table(["model", *names, "partitions", "rel. error"], latency)}
    if "delegate" not in names:
        return made
    others = [n for n in names if n != "delegate"]
    ratios = [[row.model, *(f"{ratio(row, 'delegate', n):.2f}" for n in others)] for row in rows]
    for title, group in (("CNNs", CNNS), ("transformers", TRANSFORMERS)):
        members = [r for r in rows if r.model in group]
        if members:
            means = [statistics.geometric_mean(ratio(r, "delegate", n) for r in members) for n in others]
            ratios.append([f"geometric mean, {title}", *(f"{m:.2f}" for m in means)])
    lowered = [n for n in names if n != "eager"]
    times = [[row.model, *(f"{row.lowering.get(n, float('nan')):.2f}" for n in lowered)] for row in rows]
    return made | {RATIOS: Table(["model", *others], ratios), LOWERING: Table(["model", *lowered], times)}


def print_tables(rows: Sequence[Row], names: Sequence[str]) -> None:
    for title, table in tables(rows, names).items():
        print(f"\n{title}\n\n{table.markdown()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=[*CNNS, *TRANSFORMERS], choices=list(zoo.ZOO))
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=list(ENGINES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each engine in each round")
    parser.add_argument("--json", help="a file for the tables, e.g. benchmarks/results/models.json")
    chosen = parser.parse_args()
    torch.set_num_threads(THREADS)
    rows = []
    for model in chosen.models:
        rows.append(measure(model, chosen.engines, chosen.rounds, chosen.seconds))
        torch.compiler.reset()
        gc.collect()
        print_tables(rows[-1:], chosen.engines)
    print(f"\n{time.strftime('%Y-%m-%d')}; " + ", ".join(f"{n} {version(n)}" for n in VERSIONS))
    print_tables(rows, chosen.engines)
    if chosen.json:
        Results.of_this_run(VERSIONS, tables(rows, chosen.engines)).save(chosen.json)


if __name__ == "__main__":
    main()
