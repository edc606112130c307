"""Placement that may choose less precision: the fastest plan that keeps a bound, over the best one in float32.

python -m benchmarks.precision [--models NAME ...] [--budget S] [--sqnr DB]

Candidates are the engines in float32, on CPUs with AMX OpenVINO in bfloat16 (others take 30 times as long for it), and
the schemes of `scheme: auto` on all engines, calibrated on random inputs. Costs are those of the placement. A
ratio is that of the rounds that both plans had. The bound is measured once more on inputs that it was not given. Each
model has a process of its own.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from benchmarks.engines import THREADS
from benchmarks.quantized import calibration, cpu
from delegate.errors import DelegateError
from tests.support import zoo

FLOATS = ("xnnpack", "openvino", "onnxruntime")
_CALIBRATED, _GIVEN, _FRESH = range(8), range(8, 12), range(12, 16)  # seeds of inputs


def drawn(inputs: zoo.Inputs, seed: int) -> tuple[torch.Tensor, ...]:
    """Other inputs of the same shapes."""
    source = torch.Generator().manual_seed(seed)
    return tuple(
        torch.randn(x.shape, generator=source)
        if x.is_floating_point()
        else torch.randint(0, 1000, x.shape, generator=source)
        for x in inputs
    )


def configuration(data: dict[str, str], budget: float, sqnr: float) -> dict[str, Any]:
    """Of a placement with a bound; `data` is the key of the calibration data."""
    backends: list[dict[str, Any]] = [{"name": name, "options": {"threads": THREADS}} for name in FLOATS]
    if torch.cpu._is_amx_tile_supported():
        backends.append({"name": "openvino:bf16", "options": {"threads": THREADS, "precision": "bf16"}})
    quantization = {"scheme": "auto", "sqnr_db": sqnr, "budget": budget, **data}
    return {"backends": backends, "quantization": quantization, "cache": {"enabled": False}}


def least_sqnr(module: torch.nn.Module, program: Any, calls: list[tuple[torch.Tensor, ...]]) -> float:
    """Of all outputs of all calls together, that of the worst output, in dB."""
    signal: dict[int, float] = {}
    noise: dict[int, float] = {}
    with torch.no_grad():
        for call in calls:
            pairs = zip(pytree.tree_leaves(module(*call)), pytree.tree_leaves(program(*call)), strict=True)
            for i, (wanted, got) in enumerate(pairs):
                signal[i] = signal.get(i, 0.0) + float(wanted.double().pow(2).sum())
                noise[i] = noise.get(i, 0.0) + float((wanted.double() - got.double()).pow(2).sum())
    return min(10 * math.log10(max(signal[i], 1e-30) / max(noise[i], 1e-30)) for i in signal)


def row(name: str, budget: float, sqnr: float) -> tuple[str, float]:
    """The cells of a model, and the ratio of its plan to the best in float32."""
    import delegate

    module, inputs = zoo.make(name)
    given = [drawn(inputs, seed) for seed in _GIVEN]
    with tempfile.TemporaryDirectory() as folder:
        data = calibration([drawn(inputs, seed) for seed in _CALIBRATED], Path(folder))
        config = configuration(data, budget, sqnr)
        program = delegate.to_backend(zoo.export(name), config=config, verify=given)
    (placement,) = program.report.placements
    print(name, *placement.blocks(), sep="\n", file=sys.stderr, flush=True)
    costs = {plan.name: plan.cost * 1e3 for plan in placement.plans if plan.cost is not None}
    if not costs:
        return f"| {name} | nothing was measured |", math.nan
    known = {plan.name: plan.sqnr_db for plan in placement.plans}
    best = min((n for n in costs if not any(word in n for word in ("_int", "bf16"))), key=costs.__getitem__)
    single = min((n for n in costs if " in " not in n), key=costs.__getitem__)
    against = next(plan.against for plan in placement.plans if plan.name == best)  # in the rounds that both had
    ratio = costs[placement.chosen] / costs[best] if against is None else 1 / against.ratio
    cells = [name, *(f"{n}, {costs[n]:.2f}" for n in (best, single, placement.chosen)), f"{ratio:.2f}"]
    cells += [f"{known[placement.chosen]:.1f}"]
    cells += [f"{least_sqnr(module, program, [drawn(inputs, seed) for seed in _FRESH]):.1f}"]
    return "| " + " | ".join(cells) + " |", ratio


def _told(name: str, budget: float, sqnr: float, answer: Any) -> None:
    try:
        answer.put(row(name, budget, sqnr))
    except DelegateError as error:
        answer.put((f"| {name} | failed: {error} |", math.nan))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=[*zoo.ZOO, *zoo.WIDER], choices=[*zoo.ZOO, *zoo.WIDER])
    parser.add_argument("--budget", type=float, default=120.0)
    parser.add_argument("--sqnr", type=float, default=30.0)
    given = parser.parse_args()
    print(f"{time.strftime('%Y-%m-%d')}; {cpu()}, {THREADS} threads\n")
    heads = [
        "model",
        "best in float32, ms",
        "best of one scheme, ms",
        "chosen, ms",
        "ratio",
        "SQNR, dB",
        "on other inputs",
    ]
    print("| " + " | ".join(heads) + " |")
    print("|---" * len(heads) + "|", flush=True)
    context = multiprocessing.get_context("spawn")
    ratios = []
    for name in given.models:
        answer = context.SimpleQueue()
        process = context.Process(target=_told, args=(name, given.budget, given.sqnr, answer))
        process.start()
        process.join()
        if process.exitcode == 0:
            line, ratio = answer.get()
            print(line, flush=True)
            ratios.append(ratio)
    known = [r for r in ratios if not math.isnan(r)]
    print(f"\ngeometric mean of {len(known)}: {math.exp(sum(map(math.log, known)) / len(known)):.3f}")


if __name__ == "__main__":
    main()
