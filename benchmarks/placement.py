"""The default placement beside each backend alone, portable kernels alone, and torch eager, on more than 100 models.

python -m benchmarks.placement [--models NAME ...] [--ways WAY ...] [--rounds N] [--busy] [--budget S] [--json FILE]
python -m benchmarks.placement --summary FILE

A way to run a model is `default` (no list of backends), `estimated` (the same without a race), `measured` (placement by
measurement), `portable` (kernels alone), the name of a backend (alone, with kernels for the rest), several names with
"+" between them (in order of preference), `eager`, or `library:NAME`, which is an engine of `benchmarks.engines`
without this project.

Each model is lowered once for each way, in a process of its own. A second process without torch loads and runs the
saved program, so that the threads of several libraries meet only where one program has several. The processes take
turns. A turn begins with a pause and a call that does not count; its figure is the median of its calls. A ratio is the
median over the rounds of the ratios within each round. Results that differ from eager's by more than 40 dB SQNR are a
failure of that way. The time of lowering excludes probes and imports of libraries, and the compile cache is off.

With `--json` each model becomes one line of a file, and models that the file has are skipped.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.context import BaseContext
from pathlib import Path
from statistics import geometric_mean, median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.results import Table
from delegate.processes.process import describe_exit
from delegate.registry import default_registry

if TYPE_CHECKING:  # a process that runs a program does not import torch
    from delegate.compiled import CompiledProgram
    from delegate.report import Report

Call = Callable[[], Any]
Record = dict[str, Any]  # a line of the file; see `measure_model`

FRESH = multiprocessing.get_context("spawn")
WITH_TORCH = multiprocessing.get_context("forkserver")  # children start with torch imported, and none of its threads
WITH_TORCH.set_forkserver_preload(["delegate.compile", "benchmarks.placement_models"])

CHOOSING = ("default", "estimated", "measured")  # ways without a list of backends
PAUSE, TURN = 0.3, 0.15  # seconds
MAX_CALLS = 200  # of a turn
MIN_SQNR_DB = 40.0
PROFILE = "machine.json"  # of this machine, measured once for a run
TIMEOUT, EXIT_TIMEOUT = 600.0, 5.0  # seconds until a process must have answered, or ended
WORST = 20  # models in the last table


class ChildFailed(Exception):
    """A process that raised an error, died or did not answer in time."""


class Child:
    """A function in a process of its own, whose later answers are turns if its result can be called."""

    def __init__(self, context: BaseContext, function: Callable[..., Any], *arguments: Any) -> None:
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, function, arguments), daemon=True)  # type: ignore[attr-defined]
        self._process.start()
        theirs.close()

    def receive(self) -> Any:
        """Return the next answer; raises ChildFailed."""
        if not self._connection.poll(TIMEOUT):
            raise ChildFailed(f"no answer in {TIMEOUT:.0f} s")
        try:
            error, value = self._connection.recv()
        except EOFError:
            self._process.join()
            raise ChildFailed(f"its process {describe_exit(self._process.exitcode)}") from None
        if error:
            raise ChildFailed(error)
        return value

    def take_turn(self) -> float:
        """Return the median latency of a turn in seconds; raises ChildFailed."""
        with contextlib.suppress(BrokenPipeError):  # then `receive` raises
            self._connection.send(None)
        return float(self.receive())

    def close(self) -> None:
        self._connection.close()  # which ends `_serve`
        self._process.join(EXIT_TIMEOUT)
        self._process.kill()
        self._process.join()


def _serve(connection: Any, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    """Send the result of a function. If it can be called, send its results, and a figure for each request."""
    try:
        result = function(*arguments)
        if not callable(result):
            connection.send(("", result))
            return
        connection.send(("", [np.asarray(output) for output in result()]))
        while True:
            try:
                connection.recv()
            except EOFError:
                return
            connection.send(("", median_latency(result)))
    except Exception as error:
        connection.send((f"{type(error).__name__}: {str(error)[:300]}", None))


def median_latency(call: Call) -> float:
    """Call once, then for the length of a turn; return the median latency in seconds."""
    call()
    times: list[float] = []
    end = time.perf_counter() + TURN
    while len(times) < 3 or (len(times) < MAX_CALLS and time.perf_counter() < end):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return median(times)


def run_once(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a function in a process with torch; raises ChildFailed."""
    child = Child(WITH_TORCH, function, *arguments)
    try:
        return child.receive()
    finally:
        child.close()


# -- in the children ---------------------------------------------------------------------------------------------------


def export_model(model: str, folder: Path) -> int:
    """Write a model as exported program, its inputs and eager's outputs; return the number of operators."""
    import torch

    from benchmarks import placement_models

    module, inputs, exported = placement_models.export(model)
    torch.export.save(exported, folder / "model.pt2")
    with torch.no_grad():
        outputs = module(*inputs)
    for name, tensors in (("inputs", inputs), ("outputs", outputs)):
        np.savez(folder / f"{name}.npz", *(x.numpy() for x in tensors))
    return sum(node.op == "call_function" for node in exported.graph.nodes)


def lower_model(way: str, folder: Path, budget: float) -> Record:
    """Write the program of one way; return the time of lowering and the plan."""
    import torch

    import delegate

    backends = None if way in CHOOSING else [] if way == "portable" else way.split("+")
    tiny = torch.export.export(torch.nn.Linear(2, 2), (torch.zeros(1, 2),))
    for used in default_registry().available() if backends is None else [backends]:
        delegate.to_backend(tiny, used, cache=False)  # probes and imports the libraries
    exported = torch.export.load(folder / "model.pt2")
    machine = folder.parent / PROFILE
    placements = {
        "default": delegate.Estimated(machine=machine),
        "estimated": delegate.Estimated(race=0, machine=machine),
        "measured": delegate.Measured(budget=budget),
    }
    start = time.perf_counter()
    program: CompiledProgram = delegate.to_backend(exported, backends, placement=placements.get(way), cache=False)
    seconds = time.perf_counter() - start
    program.save(folder / f"{way}.dlg")
    plan = hashlib.sha256(program.plan.to_json().encode()).hexdigest()[:12]
    return {"lowering": seconds, "plan": plan, **describe_plan(program.report)}


def describe_plan(report: Report) -> Record:
    """Return what a record holds of a report: the numbers of partitions by backend, and of nodes on kernels.

    "predicted" has the estimated seconds of the chosen plan.
    """
    estimates = {way: seconds for ways in report.estimates.values() for way, seconds in ways.items()}
    return {
        "predicted": next(iter(estimates.values()), None),
        "estimates": estimates,
        "partitions": Counter(partition.backend for partition in report.partitions),
        "on_kernels": sum(node.backend == "portable" for node in report.nodes),
    }


def load_program(path: Path, inputs: Path) -> Call:
    """Return the call of a saved program, in a process without torch."""
    import delegate

    program = delegate.load(path)
    arrays = load_arrays(inputs)
    return lambda: program(*arrays)


def load_engine(model: str, engine: str) -> Call:
    """Return the call of torch, or of another engine without this project."""
    from benchmarks import placement_models
    from benchmarks.engines import ENGINES, Local

    module, inputs, exported = placement_models.export(model)
    local = ENGINES[engine](exported, module, inputs)
    assert isinstance(local, Local), engine
    return local.call


def load_arrays(path: Path) -> list[np.ndarray]:
    with np.load(path) as stored:
        return list(stored.values())


def spin() -> None:
    while True:
        pass


# -- measurement -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def busy_cores(is_wanted: bool) -> Iterator[None]:
    """Keep every core that this process may use busy, if wanted."""
    spinners = [FRESH.Process(target=spin, daemon=True) for _ in os.sched_getaffinity(0)] if is_wanted else []
    for spinner in spinners:
        spinner.start()
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()


def sqnr_db(actual: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """Return the signal-to-noise ratio of results, of the worst output; minus infinity if they cannot be compared."""
    import torch

    from delegate.accuracy.figures import difference

    found = difference([torch.from_numpy(x) for x in actual], [torch.from_numpy(x) for x in expected])
    return -np.inf if found is None else found.sqnr_db


def measure_model(model: str, ways: Sequence[str], chosen: argparse.Namespace) -> Record:
    """Measure the ways of one model.

    Returns:
        Under "ways", way -> "seconds" (one of each round), "sqnr_db", and of lowered programs "lowering" (seconds),
        "plan" (its digest), "partitions" (backend -> number) and "on_kernels" (nodes); or "failed", the reason. "busy":
        other processes used all cores.

    Raises:
        ChildFailed: torch cannot export the model.
    """
    found: dict[str, Record] = {}
    children: dict[str, Child] = {}
    with TemporaryDirectory(dir=chosen.folder) as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        nodes = run_once(export_model, model, folder)
        expected = load_arrays(folder / "outputs.npz")
        for way in ways:
            with _failure_in(found, way):
                engine = way.removeprefix("library:")
                if way == "eager" or engine != way:
                    found[way], child = {}, Child(WITH_TORCH, load_engine, model, engine)
                else:
                    found[way] = run_once(lower_model, way, folder, chosen.budget)
                    child = Child(FRESH, load_program, folder / f"{way}.dlg", folder / "inputs.npz")
                stack.callback(child.close)
                found[way]["sqnr_db"] = sqnr_db(child.receive(), expected)
                if not found[way]["sqnr_db"] >= MIN_SQNR_DB:
                    raise ChildFailed(f"wrong results: {found[way]['sqnr_db']:.0f} dB")
                found[way]["seconds"] = []
                children[way] = child
        with busy_cores(chosen.busy):
            for number in range(chosen.rounds):
                for way in list(children)[:: -1 if number % 2 else 1]:
                    with _failure_in(found, way):
                        if "failed" not in found[way]:
                            time.sleep(PAUSE)
                            found[way]["seconds"].append(children[way].take_turn())
    return {"model": model, "busy": chosen.busy, "nodes": nodes, "ways": found}


@contextlib.contextmanager
def _failure_in(found: dict[str, Record], way: str) -> Iterator[None]:
    """Record the failure of a way, so that the other ways go on."""
    try:
        yield
    except ChildFailed as error:
        found[way] = {"failed": str(error)}


# -- summary -----------------------------------------------------------------------------------------------------------


def valid_ways(record: Record) -> list[str]:
    return [way for way, figures in record["ways"].items() if "failed" not in figures]


def latency(record: Record, way: str) -> float:
    """Return the median of the rounds in seconds."""
    return median(record["ways"][way]["seconds"])


def ratio(record: Record, way: str, other: str) -> float:
    """Return the median over the rounds of one way's latency over another's."""
    seconds = (record["ways"][name]["seconds"] for name in (way, other))
    return median(a / b for a, b in zip(*seconds, strict=True))


def may_mix(way: str) -> bool:
    """Return whether a way may use several backends."""
    return way in CHOOSING or "+" in way


def best_single(record: Record) -> str:
    """Return the fastest way that uses one backend at most; empty if there is none."""
    singles = [w for w in valid_ways(record) if "lowering" in record["ways"][w] and not may_mix(w)]
    return min(singles, key=lambda way: latency(record, way), default="")


def plan_text(figures: Mapping[str, Any]) -> str:
    """Return e.g. "xnnpack 3, openvino 1; 4 on kernels"."""
    if "failed" in figures:
        return str(figures["failed"])
    partitions = ", ".join(f"{backend} {count}" for backend, count in figures["partitions"].items())
    return "; ".join(filter(None, [partitions, f"{figures['on_kernels']} on kernels" * bool(figures["on_kernels"])]))


def deviation(ratios: Sequence[float]) -> str:
    """Return the geometric standard deviation as text."""
    logarithms = np.log(ratios)
    return f"geometric standard deviation {np.exp(logarithms.std()):.2f}"


def summary_of(records: Sequence[Record], mix: str) -> Iterator[str]:
    """Yield the lines of the summary of one way that mixes backends."""
    rows = [(ratio(r, mix, best), r, best) for r in records if mix in valid_ways(r) and (best := best_single(r))]
    if not rows:
        return
    ratios = [value for value, _, _ in rows]
    yield f"\n{mix} over the best single backend, {len(rows)} models: geometric mean {geometric_mean(ratios):.3f}"
    over = " / ".join(str(sum(value > limit for value in ratios)) for limit in (1.1, 1.3, 2.0))
    yield f"slower than the best single backend by more than 1.1 / 1.3 / 2.0: {over}"
    same = sum(value > 1.1 and r["ways"][mix].get("plan") == r["ways"][best].get("plan", "") for value, r, best in rows)
    yield f"of these, {same} have the plan of the best single backend, so that they show the noise"
    eager = [r for _, r, _ in rows if "eager" in valid_ways(r)]
    slower = sorted(r["model"] for r in eager if ratio(r, mix, "eager") > 1)
    yield f"slower than eager: {len(slower)} of {len(eager)}: {', '.join(slower)}"
    predicted = [latency(r, mix) / s for _, r, _ in rows if (s := r["ways"][mix].get("predicted"))]
    if predicted:
        yield f"measured over predicted latency: geometric mean {geometric_mean(predicted):.2f}, {deviation(predicted)}"
    several = [(v, r) for v, r, _ in rows if len(r["ways"][mix]["partitions"]) > 1 and v < 0.95]
    won = ", ".join(f"{r['model']} {v:.2f}" for v, r in several)
    yield f"a mix of backends beats the best single one by more than 5 %: {len(several)}: {won}"
    by_lowering = [r["ways"][mix]["lowering"] / r["ways"][best]["lowering"] for _, r, best in rows]
    yield f"lowering over that of the best single backend: geometric mean {geometric_mean(by_lowering):.2f}"
    cells = [
        [
            r["model"],
            f"{value:.2f}",
            f"{best} {latency(r, best) * 1e3:.3f}",
            f"{latency(r, mix) * 1e3:.3f}",
            f"{latency(r, 'eager') * 1e3:.3f}" if "eager" in valid_ways(r) else "",
            plan_text(r["ways"][mix]),
            " / ".join(f"{way}: {plan_text(f)}" for way, f in r["ways"].items() if way != mix and "partitions" in f),
        ]
        for value, r, best in sorted(rows, key=lambda row: -row[0])[:WORST]
    ]
    heads = ["model", "ratio", "best single, ms", f"{mix}, ms", "eager, ms", "partitions", "partitions of other ways"]
    yield "\n" + Table(heads, cells).markdown()


def print_summary(records: Sequence[Record]) -> None:
    """Print the figures over all models, and the models on which each mix of backends is the worst."""
    ways = list(dict.fromkeys(way for record in records for way in record["ways"]))
    for mix in filter(may_mix, ways):
        for line in summary_of(records, mix):
            print(line)
    print("\nmedian time of lowering, s:")
    for way in ways:
        lowering = [f["lowering"] for r in records if "lowering" in (f := r["ways"].get(way, {}))]
        if lowering:
            print(f"  {way}: {median(lowering):.2f}, at most {max(lowering):.2f}")
    for record in records:
        for way, figures in record["ways"].items():
            if "failed" in figures:
                print(f"failed: {record['model']}, {way}: {figures['failed']}")


def read_records(path: Path) -> list[Record]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def row_text(record: Record) -> str:
    """Return one line about a model: the latency of each way in milliseconds."""
    cells = [
        f"{way} failed" if "failed" in figures else f"{way} {latency(record, way) * 1e3:.3f}"
        for way, figures in record["ways"].items()
    ]
    return f"{record['model']}: " + ", ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", help="default: all")
    parser.add_argument("--ways", nargs="+", help="default: default, each backend, portable, eager")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--busy", action="store_true", help="other processes use all cores during measurement")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of `measured` for a model")
    parser.add_argument("--json", type=Path, metavar="FILE", help="add a line for each model")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="print the summary of a file, measure nothing")
    parser.add_argument("--machine", type=Path, metavar="FILE", help="profile of this machine; default: measured now")
    chosen = parser.parse_args()
    if chosen.summary:
        print_summary(read_records(chosen.summary))
        return
    with TemporaryDirectory() as folder:
        chosen.folder = folder
        run_once(write_profile, chosen.machine, Path(folder) / PROFILE)
        measure_models(chosen)


def write_profile(source: Path | None, target: Path) -> None:
    """Write the profile of this machine for the processes that lower."""
    from delegate.costs.machine import calibrate_again
    from delegate.costs.profile import MachineProfile

    profile, notes = (MachineProfile.load(source), ()) if source else calibrate_again(None, print)
    print(*notes, sep="\n", flush=True)
    profile.save(target)


def measure_models(chosen: argparse.Namespace) -> None:
    """Measure the models that are requested, and print a line for each and the summary."""
    from benchmarks import placement_models

    ways = chosen.ways or ["default", *default_registry().available(), "portable", "eager"]
    records = read_records(chosen.json) if chosen.json else []
    measured = {record["model"] for record in records}
    for model in chosen.models or placement_models.NAMES:
        if model in measured:
            continue
        try:
            record = measure_model(model, ways, chosen)
        except ChildFailed as error:
            print(f"{model}: {error}", flush=True)
            continue
        print(row_text(record), flush=True)
        records.append(record)
        if chosen.json:
            with chosen.json.open("a") as file:
                file.write(json.dumps(record) + "\n")
    print_summary(records)


if __name__ == "__main__":
    main()
