"""How often measured placement takes the best plan while other work comes and goes on the machine.

python -m benchmarks.noise [--models NAME ...] [--repeat N] [--budget S] [--burst S] [--rounds N] [--threads N]

A process burns a core in bursts of random length while a model is placed several times, each time with nothing known
from earlier. Then, without it, all plans that were chosen and those of each engine alone take turns: what a choice
costs is the lower quartile of its rounds over that of the best of them. The rest of the machine should be idle.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks import engines
from delegate.accuracy.samples import example_samples
from delegate.edge.sources import exported_programs
from delegate.kernels.selection import kernels_of
from delegate.lowering.compiler import Compiler
from delegate.placement.placer import Placer
from delegate.placement.plans import Alternatives, Candidate, ChosenPlan, Task
from delegate.placement.reference_comparator import ReferenceComparator, arrays_of
from delegate.placement.runtime.elimination import fixed_rounds, measure_rounds
from delegate.placement.runtime.trials import ProcessRunnerFactory, Trial, answer_timeout
from delegate.registry import default_registry
from delegate.selection import select
from tests.support import zoo

BURNS = """
import random, sys, time
mean = float(sys.argv[1])
while True:
    end = time.monotonic() + random.expovariate(1 / mean)
    while time.monotonic() < end:
        pass
    time.sleep(random.expovariate(1 / mean))
"""
NEAR = 1.02  # of the best
CANDIDATES = ("xnnpack", "openvino", "onnxruntime")


@contextlib.contextmanager
def noise(burst: float) -> Iterator[None]:
    """Something else that has a core, about half of the time; nothing where a burst lasts no time."""
    if not burst:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", BURNS, str(burst)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


class Model:
    """A model whose candidates are compiled once for all choices.

    Args:
        name: of the zoo.
        threads: of each candidate.
    """

    def __init__(self, name: str, threads: int) -> None:
        exported = zoo.export(name)
        registry = default_registry()
        backends = [{"name": n, "options": {"threads": threads}} for n in CANDIDATES]
        compiler = Compiler(select(None, {"backends": backends}, registry), kernels_of(registry, None))
        compiler.add_methods(exported_programs(exported))
        self.lowering = Alternatives(compiler, "forward")
        samples = example_samples({"forward": exported})["forward"]
        self.comparator = ReferenceComparator(exported, self.lowering.edge(), samples, None, is_random=False)
        self.leaves = arrays_of(self.comparator.calls[0])

    def placed(self, budget: float) -> ChosenPlan:
        """Choose, with nothing known from earlier."""
        task = Task("forward", [Candidate(n, n, self.lowering) for n in CANDIDATES], "latency", budget)
        with tempfile.TemporaryDirectory() as folder:
            factory = ProcessRunnerFactory(Path(folder), self.leaves, None, answer_timeout(budget))
            return Placer(task, factory, self.comparator).place()

    def over_best(self, chosen: Sequence[ChosenPlan], count: int) -> tuple[list[float], str]:
        """What each choice costs over the best of all; and what each plan takes, in words."""
        plans = {self.lowering.compile_preferring(name).plan: name for name in CANDIDATES}
        for one in chosen:
            plans.setdefault(one.plan, f"{one.placement.chosen} #{len(plans)}")
        trials = [Trial(name, self.lowering.compile_plan(plan).program, "forward") for plan, name in plans.items()]
        with tempfile.TemporaryDirectory() as folder:
            factory = ProcessRunnerFactory(Path(folder), self.leaves, None, 60.0)
            records = measure_rounds(trials, factory, fixed_rounds(count), lambda: True)
        costs = {name: float(np.quantile(record.rounds, 0.25)) for name, record in records.items()}
        least = min(costs.values())
        told = ", ".join(f"{name} {cost * 1e3:.2f} ms" for name, cost in costs.items())
        return [costs[plans[one.plan]] / least for one in chosen], told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["efficientnet_b0", "mobilenet_v3_small", "bert_mini"])
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--budget", type=float, default=30.0)
    parser.add_argument("--burst", type=float, default=3.0, help="mean seconds of noise, and of quiet; 0: no noise")
    parser.add_argument("--rounds", type=int, default=40, help="of the comparison without noise")
    parser.add_argument("--threads", type=int, default=engines.THREADS)
    chosen = parser.parse_args()
    told = f"bursts of {chosen.burst:g} s, budget {chosen.budget:g} s, {chosen.threads} threads"
    print(f"{time.strftime('%Y-%m-%d')}; {told}\n")
    print("| model | chosen | s | over the best | other work |\n|---|---|---|---|---|")
    ratios: list[float] = []
    for name in chosen.models:
        model = Model(name, chosen.threads)
        with noise(chosen.burst):
            made = [model.placed(chosen.budget) for _ in range(chosen.repeat)]
        costs, told = model.over_best(made, chosen.rounds)
        ratios += costs
        for one, cost in zip(made, costs, strict=True):
            cells = (name, one.placement.chosen, f"{one.placement.spent:.0f}", f"{cost:.3f}", one.placement.busy)
            print("| " + " | ".join(cells) + " |", flush=True)
        print(f"  {name}: {told}", file=sys.stderr, flush=True)
    near = sum(cost <= NEAR for cost in ratios)
    print(f"\n{near} of {len(ratios)} choices within {NEAR:g} of the best; the worst {max(ratios):.3f}")


if __name__ == "__main__":
    main()
