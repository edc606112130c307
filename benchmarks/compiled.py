"""torch.compile(model, backend="delegate") over the program of `to_backend` of the same model, taking turns.

python -m benchmarks.compiled [--models NAME ...] [--backend NAME] [--seconds S]

Lower quartiles on the wall. Beside them what torch itself takes of a call: `torch.compile` with a backend that does
nothing, called in the same turns, so that caches are as cold. Guards of modules and parameters are most of it, and
every backend of torch.compile pays for them.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from typing import Any

import torch

import delegate
from tests import zoo

CALLS = 3  # of a turn, of which the first is not counted


def nothing(module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """A backend that gives one result again and again."""
    with torch.no_grad():
        results = module(*inputs)
    return lambda *args: results


def quartile(times: list[float]) -> float:
    return sorted(times)[len(times) // 4]


def row(model: str, backend: str, seconds: float) -> str:
    module, inputs = zoo.make(model)
    program = delegate.to_backend(zoo.export(model), backend)
    sides: dict[str, Callable[..., Any]] = {
        "to_backend": program,
        "torch.compile": torch.compile(module, backend="delegate", options={"backends": backend}),
    }
    idle = torch.compile(copy.deepcopy(module), backend=nothing)
    times: dict[str, list[float]] = {}
    with torch.no_grad():
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for name, run in sides.items():
                for call in range(CALLS):
                    start = time.perf_counter()
                    run(*inputs)
                    if call:
                        times.setdefault(name, []).append(time.perf_counter() - start)
            start = time.perf_counter()
            idle(*inputs)
            times.setdefault("nothing", []).append(time.perf_counter() - start)
    base, compiled, own = (quartile(times[name]) for name in ("to_backend", "torch.compile", "nothing"))
    cells = f"{base * 1e3:.2f} | {compiled * 1e3:.2f} | {compiled / base:.3f} | {own * 1e3:.2f} | {own / base:.3f}"
    return f"| {model} | {cells} | {(compiled - own) / base:.3f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["resnet18", "vit_tiny", "bert_mini"])
    parser.add_argument("--backend", default="xnnpack")
    parser.add_argument("--seconds", type=float, default=20, help="of each model")
    chosen = parser.parse_args()
    print(f"{time.strftime('%Y-%m-%d')}; torch {torch.__version__}; {chosen.backend}\n")
    print("| model | to_backend, ms | torch.compile, ms | ratio | torch's own part, ms | of it | ratio without it |")
    print("|---" * 7 + "|")
    for model in chosen.models:
        print(row(model, chosen.backend, chosen.seconds), flush=True)


if __name__ == "__main__":
    main()
