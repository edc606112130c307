"""Lowering a second time from the compile cache, and with one node that the library refuses, over lowering at all.

python -m benchmarks.lowering [--models NAME ...] [--backends NAME ...] [--rounds N]

Turns of all four: without a cache, into an empty one, from it, and without a cache where the library refuses the middle
node of the first partition. The least of each, on the wall; for the refused node, which changes no waiting, of the
processor.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.export import ExportedProgram

import delegate
from delegate.backend.aot import RegionRefused
from delegate.registry import default_registry
from tests.support import zoo


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """On the wall, and of the processor."""
    starts = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - starts[0], time.process_time() - starts[1]


def refusing(backend: str, node: str, work: Callable[[], object]) -> Callable[[], None]:
    """The same where the backend's library refuses a node when it compiles a region that holds it."""
    half: Any = default_registry().aot(backend)
    compiled = half.preprocess

    def preprocess(own: Any, region: Any) -> Any:
        if any(n.name == node for n in region.calls):
            raise RegionRefused({node: "refused"})
        return compiled(own, region)

    def run() -> None:
        half.preprocess = preprocess
        try:
            work()
        finally:
            half.preprocess = compiled

    return run


def row(model: str, exported: ExportedProgram, backend: str, rounds: int) -> str:
    bare = lambda: delegate.to_backend(exported, backend, cache=False)  # noqa: E731
    nodes = [n.name for n in bare().report.nodes if n.backend == backend]
    refused = refusing(backend, nodes[len(nodes) // 2], bare)
    times: dict[str, list[tuple[float, float]]] = {}
    for _ in range(rounds):
        with TemporaryDirectory() as folder:
            config = {"backends": [backend], "cache": {"folder": str(Path(folder))}}
            kept = lambda config=config: delegate.to_backend(exported, config=config)  # noqa: E731
            for name, work in (("bare", bare), ("first", kept), ("second", kept), ("refused", refused)):
                times.setdefault(name, []).append(seconds(work))
    wall = {name: min(t for t, _ in own) for name, own in times.items()}
    processor = {name: min(t for _, t in own) for name, own in times.items()}
    ratios = wall["second"] / wall["first"], wall["second"] / wall["bare"], processor["refused"] / processor["bare"]
    cells = [*(f"{wall[name]:.3f}" for name in ("bare", "first", "second")), *(f"{r:.3f}" for r in ratios)]
    return f"| {model} | {backend} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["resnet50", "mobilenet_v2", "vit_tiny", "bert_mini"])
    parser.add_argument("--backends", nargs="+", default=["xnnpack", "dsp"])
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    print(f"{time.strftime('%Y-%m-%d')}; torch {torch.__version__}\n")
    print("| model | backend | no cache, s | first, s | second, s | second / first | second / no cache | refused |")
    print("|---" * 8 + "|")
    for model in chosen.models:
        exported = zoo.export(model)
        for backend in chosen.backends:
            print(row(model, exported, backend, chosen.rounds), flush=True)


if __name__ == "__main__":
    main()
