"""torch.compile(model, backend="delegate") over the program of `to_backend` of the same model, taking turns.

python -m benchmarks.compiled [--models NAME ...] [--backend NAME] [--seconds S]

Lower quartiles on the wall. Torch alone is torch's compiler with a backend that calls the program of `to_backend` at
once: it shows what guards and the calls around a graph take.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.fx import GraphModule

import delegate
from tests.support import zoo

CALLS = 3  # of a turn, of which the first is not counted


def quartile(times: list[float]) -> float:
    return sorted(times)[len(times) // 4]


def row(model: str, backend: str, seconds: float) -> str:
    module, inputs = zoo.make(model)
    program = delegate.to_backend(zoo.export(model), backend)
    sides: dict[str, Callable[..., Any]] = {
        "to_backend": program,
        "torch.compile": torch.compile(module, backend="delegate", options={"backends": backend}),
        "torch alone": calling(program, module, inputs),
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
    base, compiled, alone = map(quartile, times.values())
    return (
        f"| {model} | {base * 1e3:.2f} | {compiled * 1e3:.2f} | {compiled / base:.3f} "
        f"| {alone * 1e3:.2f} | {alone / base:.3f} |"
    )


def calling(program: Callable[..., Any], module: torch.nn.Module, inputs: tuple[Any, ...]) -> Callable[..., Any]:
    """The module under torch's compiler, whose backend calls a program with those of its arguments that are inputs."""

    def backend(graph: GraphModule, given: list[Any]) -> Callable[..., Any]:
        def run(*args: Any) -> tuple[Any, ...]:
            return tuple(pytree.tree_leaves(program(*(a for a in args if any(a is x for x in inputs)))))

        return run

    return torch.compile(module, backend=backend)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["resnet18", "vit_tiny", "bert_mini"])
    parser.add_argument("--backend", default="xnnpack")
    parser.add_argument("--seconds", type=float, default=20, help="of each model")
    chosen = parser.parse_args()
    print(f"{time.strftime('%Y-%m-%d')}; torch {torch.__version__}; {chosen.backend}\n")
    print("| model | to_backend, ms | torch.compile, ms | ratio | torch alone, ms | ratio |")
    print("|---|---|---|---|---|---|")
    for model in chosen.models:
        print(row(model, chosen.backend, chosen.seconds), flush=True)


if __name__ == "__main__":
    main()
