"""Rows per second of plugins/ray: one process, two plain processes, and two actors of a Ray cluster on this machine.

python -m benchmarks.batch [--rows N] [--model NAME] [--backend NAME] [--rounds N] [--batch N]

Rows are images of a model of torchvision, or of a small network with the name `small`. Each process or actor has one
thread. A round measures each of the three once, from the first row to the last file, without the start of processes.
The two plain processes have half of the rows each. They are the limit for two actors. CPU time for a row is compared,
too, since it changes less with other work on the machine. Memory is the anonymous part of the PSS of an actor at its
end. The files of program, packed weights and input are mapped, so they are not in it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from delegate_ray.runtime.cluster import Cluster, Worker
from delegate_ray.runtime.job import Job, Settings, create, write_manifest
from delegate_ray.runtime.parts import Part
from delegate_ray.runtime.work import work

import delegate
from tests.support import zoo

SIZE = 224
MOST = 64  # rows that the program takes
FILES = 8  # of the output
_PLAIN, _ACTORS = "two plain processes", "Ray, two actors"


def network(name: str) -> torch.nn.Module:
    """Return a model of torchvision, or a small network of some milliseconds."""
    if name != "small":
        with zoo.libraries():
            import torchvision
        return torchvision.models.get_model(name, weights=None)
    layers = [torch.nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in ((3, 16), (16, 32), (32, 64))]
    return torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, 1000))


def save(folder: Path, model: str, backend: str, rows: int) -> None:
    """Lower a model with a dynamic batch, and write its rows."""
    torch.manual_seed(0)
    batch = torch.export.Dim("batch", min=1, max=MOST)
    module = network(model).eval()
    images = torch.zeros(2, 3, SIZE, SIZE)
    exported = torch.export.export(module, (images,), dynamic_shapes=({0: batch},))
    delegate.to_backend(exported, backend).save(folder / "model.dlg")
    array = np.lib.format.open_memmap(folder / "rows.npy", "w+", np.float32, (rows, 3, SIZE, SIZE))
    generator = np.random.default_rng(0)
    for start in range(0, rows, MOST):
        array[start : start + MOST] = generator.random(array[start : start + MOST].shape, np.float32)
    array.flush()


def own_memory() -> float:
    """Return the anonymous proportional memory of this process in MB."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss_Anon:")) / 1000


def run_parts(job: Job, parts: Sequence[Part], barrier: Any, times: Any) -> None:
    """Load the program, wait for the others, write the output files, and report the seconds and those of the CPU."""
    runner = job.runner()
    barrier.wait()
    start, cpu = time.perf_counter(), time.process_time()
    for part in parts:
        work(job, runner, part)
    times.put((time.perf_counter() - start, time.process_time() - cpu))


def processes(job: Job, count: int) -> tuple[float, float]:
    """Return the seconds of plain processes that share the parts, and the sum of their CPU times."""
    context = multiprocessing.get_context("spawn")
    barrier, times = context.Barrier(count), context.Queue()
    workers = [
        context.Process(target=run_parts, args=(job, job.parts[number::count], barrier, times))
        for number in range(count)
    ]
    for worker in workers:
        worker.start()
    measured = [times.get() for _ in workers]
    for worker in workers:
        worker.join()
    return max(seconds for seconds, _ in measured), sum(cpu for _, cpu in measured)


class TimedCluster(Cluster):
    """A cluster that records when its first actor is ready, and each actor's CPU time and memory at its end."""

    def __init__(self, job: Job) -> None:
        super().__init__(job, job.parts, actors=2, cpus=1)
        self.started, self.cpu, self.memory = 0.0, 0.0, list[float]()
        self._known: set[Any] = set()

    def _give(self, actor: Any) -> None:
        self.started = self.started or time.perf_counter()
        if actor not in self._known:
            self._known.add(actor)
            self.cpu -= of_actor(actor, time.process_time)
        if not self._waiting:
            self.cpu += of_actor(actor, time.process_time)
            self.memory.append(of_actor(actor, own_memory))
        super()._give(actor)


def of_actor(actor: Any, measure: Callable[[], float]) -> float:
    """Return a number that an actor measures."""
    return float(ray.get(actor.__ray_call__.remote(lambda _: measure())))


def spread(values: Sequence[float]) -> str:
    """Return the median of some ratios, and the smallest and the largest one."""
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def main() -> None:
    """Print a table of rows per second."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--model", default="mobilenet_v2")
    parser.add_argument("--backend", default="xnnpack")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, help="rows of a call; default: that of the command")
    args = parser.parse_args()
    rates: dict[str, list[float]] = {}
    cpus: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save(folder, args.model, args.backend, args.rows)
        out = folder / "out"
        settings = Settings(batch=args.batch, threads=1, rows=-(-args.rows // FILES))

        def measure(how: str, run: Callable[[Job], tuple[float, float]]) -> None:
            job = create(folder / "model.dlg", folder / "rows.npy", out, settings)
            write_manifest(job)
            seconds, cpu = run(job)
            assert sum(part.rows for part in job.finished()) == args.rows
            shutil.rmtree(out)
            rates.setdefault(how, []).append(args.rows / seconds)
            cpus.setdefault(how, []).append(1000 * cpu / args.rows)

        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        clusters: list[TimedCluster] = []

        def actors(job: Job) -> tuple[float, float]:
            clusters.append(TimedCluster(job))
            for _ in clusters[-1].work():
                pass
            return time.perf_counter() - clusters[-1].started, clusters[-1].cpu

        for _ in range(args.rounds):
            measure("one process", lambda job: processes(job, 1))
            measure(_PLAIN, lambda job: processes(job, 2))
            measure(_ACTORS, actors)
        empty = of_actor(ray.remote(Worker).remote(None), own_memory)
        ray.shutdown()
    print(f"{time.strftime('%Y-%m-%d')}: {args.rows} rows, {args.rounds} rounds\n")
    print("| | rows/s | ms of CPU for a row: median | least |\n|---|---|---|---|")
    for how, values in rates.items():
        print(
            f"| {how} | {statistics.median(values):.1f} | {statistics.median(cpus[how]):.2f} | {min(cpus[how]):.2f} |"
        )
    throughput = [ours / plain for ours, plain in zip(rates[_ACTORS], rates[_PLAIN], strict=True)]
    cost = [ours / plain for ours, plain in zip(cpus[_ACTORS], cpus[_PLAIN], strict=True)]
    print(f"\ntwo actors over two plain processes: throughput {spread(throughput)}, CPU time {spread(cost)}")
    shares = ", ".join(f"{value:.0f}" for value in clusters[-1].memory)
    print(f"own memory in MB: {shares} of the actors, {empty:.0f} of an actor without a program")


if __name__ == "__main__":
    main()
