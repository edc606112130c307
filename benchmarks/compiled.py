"""torch.compile(model, backend="delegate") over the program of `to_backend` of the same model, taking turns.

python -m benchmarks.compiled [--models NAME ...] [--backend NAME] [--seconds S]

Lower quartiles on the wall. Torch's own share is what a call takes of a graph that computes nothing: its guards, and
what AOTAutograd has around a graph.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._dynamo.backends.common import aot_autograd

import delegate
from tests import zoo

CALLS = 3  # of a turn, of which the first is not counted


def quartile(times: list[float]) -> float:
    return sorted(times)[len(times) // 4]


def row(model: str, backend: str, seconds: float) -> str:
    module, inputs = zoo.make(model)
    sides: dict[str, Callable[..., Any]] = {
        "to_backend": delegate.to_backend(zoo.export(model), backend),
        "torch.compile": torch.compile(module, backend="delegate", options={"backends": backend}),
        "nothing": computing_nothing(module, inputs),
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    with torch.no_grad():
        for run in sides.values():
            run(*inputs)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for name, run in sides.items():
                for call in range(CALLS):
                    start = time.perf_counter()
                    run(*inputs)
                    if call:
                        times[name].append(time.perf_counter() - start)
    base, compiled, nothing = map(quartile, times.values())
    return (
        f"| {model} | {base * 1e3:.2f} | {compiled * 1e3:.2f} | {compiled / base:.3f} "
        f"| {nothing * 1e3:.2f} | {(compiled - nothing) / base:.3f} |"
    )


def computing_nothing(module: torch.nn.Module, inputs: tuple[Any, ...]) -> Callable[..., Any]:
    """The module compiled to a graph that gives at once what it has given before."""
    with torch.no_grad():
        results = pytree.tree_leaves(module(*inputs))

    def run(args: list[Any]) -> list[Any]:
        args.clear()
        return results

    run._boxed_call = True  # type: ignore[attr-defined]
    compiler = aot_autograd(fw_compiler=lambda graph, given: run, inference_compiler=lambda graph, given: run)
    return torch.compile(module, backend=compiler)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["resnet18", "vit_tiny", "bert_mini"])
    parser.add_argument("--backend", default="xnnpack")
    parser.add_argument("--seconds", type=float, default=20, help="of each model")
    chosen = parser.parse_args()
    print(f"{time.strftime('%Y-%m-%d')}; torch {torch.__version__}; {chosen.backend}\n")
    print("| model | to_backend, ms | torch.compile, ms | ratio | torch's own, ms | ratio without |")
    print("|---|---|---|---|---|---|")
    for model in chosen.models:
        print(row(model, chosen.backend, chosen.seconds), flush=True)


if __name__ == "__main__":
    main()
