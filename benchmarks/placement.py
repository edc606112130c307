"""Measured placement beside the engines themselves: each engine's own library on the whole model, and the chosen plan.

python -m benchmarks.placement [--models NAME ...] [--rounds N] [--budget S] [--repeat N] [--sqnr DB] [--threads N]

Every engine runs in a process of its own, all take turns, and a turn begins with a call that does not count. A ratio is
the median of the rounds' own ratios, over several such processes. XNNPACK has no library of its own for whole models of
torch: it stands as this project's plan on it alone. Lowering is timed without what was kept, then with it, in fresh
folders of the cache.

Each model has a process of its own: one that fails, or is killed, is a row with the reason. Rows are printed as they
are known; after a stop, `--models` takes those that are left.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks import engines
from benchmarks.engines import ENGINES, ROOT, Local
from delegate.probing.process import ended
from tests.support import zoo

CANDIDATES = ("xnnpack", "openvino", "onnxruntime")
DIRECT = {"xnnpack": "delegate", "openvino": "openvino", "onnxruntime": "onnxruntime"}  # candidate -> its engine
Array = np.ndarray[Any, np.dtype[Any]]
SECONDS = 0.15  # of a turn
PROCESSES = 5  # of each engine and program, one after another


class Worker:
    """An engine, or a saved program, in a process of its own.

    Args:
        engine: its name, or the path of a program file.
        model: of the zoo.
        threads: that it runs on.
    """

    def __init__(self, engine: str, model: str, threads: int) -> None:
        command = [sys.executable, "-m", "benchmarks.placement", "--worker", engine, model, "--threads", str(threads)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self.error: float | None = self._answer()["error"]

    def turn(self) -> float:
        """The median of the calls of a turn, in seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write("turn\n")
        self._process.stdin.flush()
        return float(self._answer()["seconds"])

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:  # libraries print too
            if line.startswith("{"):
                return dict(json.loads(line))
        raise RuntimeError("a worker stopped: what it said is above")


def relative_error(given: Sequence[Array], expected: Sequence[Array]) -> float | None:
    """The greatest difference over the greatest of the reference, by the output that is the farthest off.

    Returns:
        None where the reference of an output is all zeros, which tells nothing of what is before it.

    Raises:
        ValueError: an output has another shape, or is not finite.
    """
    found = []
    for number, (actual, wanted) in enumerate(zip(given, expected, strict=True)):
        if actual.shape != wanted.shape or not np.isfinite(actual).all() or not np.isfinite(wanted).all():
            raise ValueError(f"output {number} has another shape than torch's, or is not finite")
        if not wanted.any():
            return None
        found.append(float(np.abs(actual - wanted).max() / np.abs(wanted).max()))
    return max(found)


def work(engine: str, model: str) -> None:
    """The other side of a Worker."""
    module, inputs = zoo.make(model)
    if engine.endswith(".dlg"):
        import delegate

        program = delegate.load(engine)
        arrays = [x.numpy() for x in inputs]
        made = Local(lambda: program(*arrays))
    else:
        made = ENGINES[engine](zoo.export(model), module, inputs)
        assert isinstance(made, Local)
    expected = ENGINES["eager"](None, module, inputs).outputs()  # type: ignore[arg-type]
    given = made.outputs()
    print(json.dumps({"error": relative_error(given, expected)}), flush=True)
    for _ in sys.stdin:
        made.call()
        print(json.dumps({"seconds": engines.median_latency(made.call, SECONDS)}), flush=True)


@dataclass(frozen=True)
class Lowered:
    """What lowering by measuring gave."""

    chosen: str
    path: Path
    seconds: float
    again: float  # with what was kept
    replayed: float  # as a plan, and nothing kept
    plain: float  # by preference, and nothing kept


def lower(model: str, folder: Path, budget: float, threads: int, sqnr: float | None) -> Lowered:
    """Lower with a cache of its own, by measuring and by preference."""
    import delegate

    exported = zoo.export(model)
    backends: list[dict[str, Any]] = [{"name": n, "options": {"threads": threads}} for n in CANDIDATES]
    section: dict[str, Any] = {"policy": "measured", "budget": budget}
    if sqnr is not None:
        backends.append({"name": "openvino:bf16", "options": {"threads": threads, "precision": "bf16"}})
        quantized = {"name": "xnnpack", "quantization": {"scheme": "dynamic_int8"}}
        section |= {"accuracy": {"sqnr_db": sqnr}, "candidates": [*(b["name"] for b in backends), quantized]}

    def timed(placement: Any, cache: str) -> tuple[Any, float]:
        config = {"backends": backends, "placement": section, "cache": {"folder": str(folder / cache)}}
        start = time.perf_counter()
        made = delegate.to_backend(exported, config=config, placement=placement)
        return made, time.perf_counter() - start

    program, seconds = timed(delegate.Measured(), "measured")
    path = folder / f"{model}.dlg"
    program.save(path)
    _, again = timed(delegate.Measured(), "measured")
    _, replayed = timed(program.plan, "replayed")
    _, plain = timed(delegate.ByPreference(), "plain")
    chosen = program.report.placements[0].chosen
    print(*program.report.placements[0].lines(), sep="\n", file=sys.stderr, flush=True)
    return Lowered(chosen, path, seconds, again, replayed, plain)


def measure(
    model: str, paths: Sequence[Path], rounds: int, threads: int
) -> tuple[dict[str, list[float]], float | None]:
    """Seconds of every round of each engine and program, and the programs' greatest error, if the references tell any.

    Where its memory lies makes a process faster or slower than the next of the same program by some percent, for as
    long as it lives. So rounds are shared among several processes of each.
    """
    names = {**DIRECT, **{str(path): str(path) for path in paths}}
    times: dict[str, list[float]] = {name: [] for name in names}
    errors = []
    for part in range(min(PROCESSES, rounds)):
        workers = {name: Worker(engine, model, threads) for name, engine in names.items()}
        try:
            for turn in range(part, rounds, PROCESSES):
                for name in list(names)[:: 1 if turn % 2 else -1]:
                    times[name].append(workers[name].turn())
        finally:
            for worker in workers.values():
                worker.close()
        errors += [workers[str(path)].error for path in paths]
    told = [error for error in errors if error is not None]
    return times, max(told) if len(told) == len(errors) else None


def over_best(times: Mapping[str, Sequence[float]], program: str) -> tuple[str, float]:
    """The best engine, and the ratio of a program to it."""
    best = min(DIRECT, key=lambda name: median(times[name]))
    return best, median(a / b for a, b in zip(times[program], times[best], strict=True))


def row(model: str, chosen: argparse.Namespace) -> list[float]:
    """Print the rows of one model; gives the ratios over its best engine."""
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        made = []
        for number in range(chosen.repeat):
            own = Path(folder) / str(number)
            own.mkdir()
            made.append(lower(model, own, chosen.budget, chosen.threads, chosen.sqnr))
        times, error = measure(model, [m.path for m in made], chosen.rounds, chosen.threads)
    for one in made:
        best, ratio = over_best(times, str(one.path))
        ratios.append(ratio)
        cells = [model, *(f"{median(times[n]) * 1e3:.2f}" for n in CANDIDATES), one.chosen]
        cells += [f"{median(times[str(one.path)]) * 1e3:.2f}", f"{ratio:.3f} of {best}"]
        cells += ["reference is zero" if error is None else f"{error:.0e}"]
        cells += [f"{seconds:.1f}" for seconds in (one.seconds, one.again, one.replayed, one.plain)]
        print("| " + " | ".join(cells) + " |", flush=True)
    return ratios


def apart(model: str) -> list[float]:
    """The rows of one model by a process of its own; gives the ratios over its best engine, none where it fails."""
    command = [sys.executable, "-m", "benchmarks.placement", *sys.argv[1:], "--models", model, "--row"]
    ratios: list[float] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                ratios = json.loads(line)["ratios"]
            elif line.startswith("|"):
                print(line, end="", flush=True)
    if process.returncode:
        print(f"| {model} | failed: its process {ended(process.returncode)} |", flush=True)
    return ratios


def told(model: str, chosen: argparse.Namespace) -> None:
    """The other side of `apart`."""
    try:
        print(json.dumps({"ratios": row(model, chosen)}))
    except Exception as error:
        print(f"| {model} | failed: {type(error).__name__}: {str(error)[:200]} |", flush=True)
        traceback.print_exc()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=[*zoo.ZOO, *zoo.WIDER], choices=[*zoo.ZOO, *zoo.WIDER])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--budget", type=float, default=60.0)
    parser.add_argument("--repeat", type=int, default=1, help="choose so often, each time without what was kept")
    parser.add_argument("--sqnr", type=float, help="let less precision in that keeps so many dB")
    parser.add_argument("--threads", type=int, default=engines.THREADS)
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--row", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    engines.THREADS = chosen.threads
    torch.set_num_threads(chosen.threads)
    if chosen.worker:
        work(*chosen.worker)
        return
    if chosen.row:
        told(chosen.models[0], chosen)
        return
    libraries = ", ".join(f"{name} {version(name)}" for name in ("torch", "ai-edge-litert", "openvino", "onnxruntime"))
    print(f"{time.strftime('%Y-%m-%d')}; threads: {chosen.threads}, of {os.cpu_count()} cores; {libraries}\n")
    heads = ("model", *(f"{n}, ms" for n in CANDIDATES), "chosen", "ms", "over the best", "rel. error", "lowering, s")
    print("| " + " | ".join((*heads, "again", "as a plan", "by preference")) + " |")
    print("|---" * (len(heads) + 3) + "|")
    ratios: list[float] = []
    for model in chosen.models:
        ratios += apart(model)
    if not ratios:
        sys.exit("not one model was measured")
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print(f"\nover the best engine: geometric mean {mean:.3f}, at most {max(ratios):.3f}")


if __name__ == "__main__":
    main()
