"""Two equal encoders of one model, one after another and at the same time, interleaved in one run.

python -m benchmarks.parallel [--models NAME ...] [--backend NAME] [--rounds N] [--seconds S]
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time

import numpy as np
import torch
from torch import nn

import delegate
from benchmarks.engines import median_latency
from delegate.compiled import CompiledProgram
from tests.support import zoo

MODELS = ("mobilenet_v2", "resnet18", "vit_tiny", "bert_mini")
WAYS = {  # name -> whether the towers run at the same time, threads of a call
    "in sequence, 1 thread": (False, 1),
    "in sequence, 2 threads": (False, 2),
    "at the same time, 1 thread each": (True, 1),
}


class Towers(nn.Module):
    """Two encoders of the same architecture and size, whose results are compared."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.first, self.second = encoder, copy.deepcopy(encoder)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        x, y = (encoded(tower, given) for tower, given in ((self.first, a), (self.second, b)))
        return (x * y).sum(-1) / (x.norm(dim=-1) * y.norm(dim=-1))


def encoded(tower: nn.Module, given: torch.Tensor) -> torch.Tensor:
    """A row of features per sample."""
    made = tower(given)
    found = made if isinstance(made, torch.Tensor) else next(iter(made.values()))
    return found.flatten(1)


def lowered(exported: torch.export.ExportedProgram, backend: str, beside: bool, threads: int) -> CompiledProgram:
    """The towers as two partitions."""
    plan = delegate.to_backend(
        exported,
        config={
            "version": 1,
            "backends": [{"name": backend, "options": {"threads": threads}}],
            "partitioning": {"together": [["first", "second"]]},
        },
    )
    if beside:
        return plan
    apart = plan.plan.__class__(plan.plan.partitions, plan.plan.whole)  # the same partitions, one after another
    options = {"version": 1, "backends": [{"name": backend, "options": {"threads": threads}}]}
    return delegate.to_backend(exported, config=options, placement=apart)


def measure(model: str, backend: str, rounds: int, seconds: float) -> None:
    """Print the row of one model."""
    module, inputs = zoo.make(model)
    towers = Towers(module).eval()
    given = (inputs[0], inputs[0].flip(-1))
    exported = torch.export.export(towers, given)
    programs = {name: lowered(exported, backend, *way).loaded for name, way in WAYS.items()}
    arrays = [t.numpy() for t in given]
    results = [program(*arrays) for program in programs.values()]
    same = all(np.array_equal(results[0], other) for other in results[1:])
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(rounds):
        for name, program in programs.items():
            times[name].append(median_latency(lambda p=program: p(*arrays), seconds))
    beside = times[list(WAYS)[-1]]
    cells = [f"{statistics.median(t) * 1e3:.2f}" for t in times.values()]
    for name in list(WAYS)[:2]:
        ratios = [b / t for b, t in zip(beside, times[name], strict=True)]
        cells.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    print(f"| {model} | {' | '.join(cells)} | {'yes' if same else 'no'} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--backend", default="xnnpack")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.5)
    options = parser.parse_args()
    print(time.strftime("%Y-%m-%d"), options.backend)
    heads = [f"{name}, ms" for name in WAYS]
    print(f"\n| two of | {' | '.join(heads)} | over sequence, 1 thread | over sequence, 2 threads | equal to the bit |")
    print(f"|{'---|' * 7}")
    for model in options.models:
        measure(model, options.backend, options.rounds, options.seconds)


if __name__ == "__main__":
    main()
