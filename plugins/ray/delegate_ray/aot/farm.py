"""Work on lowering jobs, each in a process of its own, on this machine or on the nodes of a Ray cluster.

A job that fails, or whose process dies, does not stop the others. The folder of the program files has a record of all
results, by which the same command continues.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from delegate.common.files import read_bytes, require_folder, with_short_paths, write_text
from delegate.config.source import raise_all
from delegate.errors import ConfigError, DelegateError, did_you_mean
from delegate.plugins import PORTABLE, one_line
from delegate.processes.lifeline import end_with_parent
from delegate_ray.aot.jobs import LoweringJob, digest_of

RECORD = "jobs.json"
_SHARE = 0.001  # of a resource, since a device can take part in several jobs
LOWERED, UNCHANGED, FAILED = "lowered", "unchanged", "failed"


@dataclass(frozen=True)
class Outcome:
    """The result of a job.

    Args:
        model, configuration, key, output: see `LoweringJob`.
        state: `LOWERED`, `UNCHANGED` or `FAILED`.
        partitions: backend -> number of partitions.
        portable: number of nodes on portable kernels.
        size: bytes of the program file.
        digest: its checksum.
        seconds: duration of the job.
        error: its error and remedy if it failed.
        traceback: the error's traceback, if Python raised it.
    """

    model: str
    configuration: str
    key: str
    output: str
    state: str
    partitions: dict[str, int] = field(default_factory=dict)
    portable: int = 0
    size: int = 0
    digest: str = ""
    seconds: float = 0.0
    error: str = ""
    traceback: str = ""


def lower(job: LoweringJob) -> Outcome:
    """Lower a model and save its program; an error is a part of the outcome."""
    return _outcome(job, _lower)


def _lower_on_node(job: LoweringJob) -> Outcome:
    """Lower a model on a node of a cluster; an error is a part of the outcome."""
    return _outcome(job, _check_and_lower)


def _outcome(job: LoweringJob, work: Callable[[LoweringJob], Outcome]) -> Outcome:
    """Return the outcome of the work on a job, with its duration; an error is a part of it."""
    start = time.perf_counter()
    try:
        outcome = work(job)
    except DelegateError as error:
        outcome = failed(job, f"{type(error).__name__}: {error}", traceback.format_exc())
    except Exception as error:  # of the model's code, and of libraries
        text = f"{one_line(error)}: `--debug` shows the traceback"
        outcome = failed(job, text, traceback.format_exc())
    return replace(outcome, seconds=round(time.perf_counter() - start, 3))


def _lower(job: LoweringJob) -> Outcome:
    from delegate.cli.models import load_model, read_sample
    from delegate.compile import lower_owned

    os.chdir(job.folder)
    sys.path.insert(0, job.folder)
    model, settings, sample = load_model(job.source), job.settings, None
    if job.verify:
        model, sample = read_sample(model, job.verify)
    if job.calibration is not None and settings.quantization is not None:
        section = settings.quantization.model_copy(update={"calibration": job.calibration})
        settings = settings.model_copy(update={"quantization": section})
    program = lower_owned(model, config=settings, verify=sample)
    program.save(job.output)
    return replace(
        failed(job, ""),
        state=LOWERED,
        partitions=dict(Counter(p.backend for p in program.report.partitions)),
        portable=sum(n.backend == PORTABLE for n in program.report.nodes),
        size=os.path.getsize(job.output),
        digest=digest_of(job.output),
    )


def _check_and_lower(job: LoweringJob) -> Outcome:
    """Lower a model if this node has the version of the driver, and the folder of the outputs."""
    from delegate_ray.runtime.connection import require_version  # which imports Ray

    require_version(job.version)
    if not Path(job.output).parent.joinpath(RECORD).is_file():
        what = "this node does not have the folder of the outputs"
        raise ConfigError(what, where=job.output, remedy="use a folder that all nodes share")
    return _lower(job)


def failed(job: LoweringJob, error: str, traceback: str = "") -> Outcome:
    """Return the outcome of a job that failed."""
    return Outcome(job.model, job.configuration, job.key, job.output, FAILED, error=error, traceback=traceback)


class Record:
    """The outcomes in a folder of program files.

    Args:
        folder: the folder; it is created.
        jobs: the jobs of this command, while outcomes of others stay in the record.

    Raises:
        ConfigError: the folder cannot be written, or its record is damaged.
    """

    def __init__(self, folder: Path, jobs: Sequence[LoweringJob]) -> None:
        require_folder(folder, "the programs", ConfigError)
        folder.mkdir(parents=True, exist_ok=True)
        self._path, self._jobs = folder / RECORD, jobs
        self._outcomes = {(o.model, o.configuration): o for o in self._read()}
        self._write()

    def unchanged(self) -> list[Outcome]:
        """Return the outcomes of jobs whose program is there and would be the same again."""
        same = []
        for job in self._jobs:
            known = self._outcomes.get((job.model, job.configuration))
            if known is None or known.state == FAILED or known.key != job.key or known.output != job.output:
                continue
            if known.digest == digest_of(job.output):  # else another command, or a killed one, has written it
                same.append(replace(known, state=UNCHANGED))
        return same

    def add(self, outcome: Outcome) -> None:
        """Add an outcome, and write the file."""
        self._outcomes[outcome.model, outcome.configuration] = outcome
        self._write()

    def _read(self) -> Iterator[Outcome]:
        if not self._path.exists():
            return
        try:
            for row in json.loads(read_bytes(self._path))["jobs"]:
                outcome = Outcome(**row)
                yield replace(outcome, output=str(self._path.absolute().parent / outcome.output))
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            what, remedy = "this is no record of lowered models", "remove the file, or choose another folder"
            raise ConfigError(what, where=str(self._path), remedy=remedy) from error

    def _write(self) -> None:
        rows = [asdict(_as_recorded(o)) for _, o in sorted(self._outcomes.items())]
        write_text(self._path, json.dumps({"format": 1, "jobs": rows}, indent=2) + "\n", "the record")


def _as_recorded(outcome: Outcome) -> Outcome:
    """Return an outcome without the folders of this machine, since other people read the record.

    A program is in the folder of the record. A message keeps the names of files.
    """
    error, trace = (with_short_paths(text) for text in (outcome.error, outcome.traceback))
    return replace(outcome, output=os.path.basename(outcome.output), error=error, traceback=trace)


def require_functions(jobs: Sequence[LoweringJob]) -> None:
    """Check that the modules of jobs have the functions that the jobs name, before the first job starts.

    The modules are imported in a separate process, as each job does. A module that cannot be imported here is left to
    its jobs, since it does not stop the others, and nodes of a cluster may have what it needs.

    Raises:
        ConfigError: a module has no such function; it lists all, one per line.
    """
    users = {name: job for job in reversed(jobs) for name in job.functions}
    if not users:
        return
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        try:
            missing = pool.submit(_missing_functions, sorted(users), jobs[0].folder).result()
        except BrokenProcessPool:  # an import ended the process
            return
    raise_all(
        ConfigError(what, where=f"job {users[name].model}.{users[name].configuration}", remedy=remedy)
        for name, what, remedy in missing
    )


def _missing_functions(names: Sequence[str], folder: str) -> list[tuple[str, str, str]]:
    """Return the functions that their modules do not have, each with what is wrong and the remedy."""
    os.chdir(folder)
    sys.path.insert(0, folder)
    missing = []
    for name in names:
        module_name, _, function = name.partition(":")
        try:
            module = importlib.import_module(module_name)
        except (Exception, SystemExit):
            continue
        value = getattr(module, function, None)
        if value is None:
            known = [n for n, f in vars(module).items() if callable(f) and not n.startswith("_")]
            what = f"module {module_name} has no function {function!r}"
            missing.append((name, what, did_you_mean(function, known)))
        elif not callable(value):
            missing.append((name, f"{name} is a {type(value).__name__}, not a function", "name a function"))
    return missing


def in_processes(jobs: Iterable[LoweringJob], count: int) -> Iterator[Outcome]:
    """Yield the outcomes of jobs in processes of this machine, as they finish.

    Args:
        jobs: the jobs.
        count: the maximum number of processes at a time.
    """
    context = multiprocessing.get_context("spawn")
    waiting, running = deque(jobs), dict[Connection, tuple[Any, Connection, LoweringJob]]()
    try:
        while waiting or running:
            while waiting and len(running) < count:
                job = waiting.popleft()
                ours, theirs = context.Pipe(duplex=False)
                life, held = context.Pipe(duplex=False)  # that the child gets ends with this process
                process = context.Process(target=_child, args=(job, theirs, life), daemon=True)
                process.start()
                theirs.close()
                life.close()
                running[ours] = process, held, job
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                process, held, job = running.pop(ready)
                try:
                    outcome: Outcome = ready.recv()
                except (EOFError, OSError):  # the latter within an outcome
                    process.join()
                    outcome = failed(job, f"its process ended with {_ending(process.exitcode)}: check the memory")
                process.join()
                held.close()
                yield outcome
    finally:
        for process, _, _ in running.values():
            process.kill()


def _child(job: LoweringJob, outcomes: Connection, life: Connection) -> None:
    """Lower a model, unless the parent dies: a program without a record could be taken for a later job's program."""
    end_with_parent(life.fileno())
    outcomes.send(lower(job))


def _ending(code: int | None) -> str:
    return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"


def on_ray(jobs: Sequence[LoweringJob], cpus: int) -> Iterator[Outcome]:
    """Yield the outcomes of jobs on the connected Ray cluster, as they finish.

    A job whose configuration names a backend that some nodes have as a resource runs on one of these nodes, so its
    placement is measured on the device.

    Args:
        jobs: the jobs.
        cpus: the CPUs that Ray reserves for a job.

    Raises:
        ConfigError: no node has enough CPUs, or all devices of a job.
    """
    import ray
    from ray.exceptions import RayError

    from delegate_ray.runtime.connection import Waiting, has_node

    carried = {name for node in ray.nodes() if node["Alive"] for name in node["Resources"]}
    task = ray.remote(max_calls=1)(_lower_on_node)  # a process of its own
    running, reserved = {}, []
    for job in jobs:
        needs = dict.fromkeys((b for b in job.backends if b in carried), _SHARE)
        if not has_node({"CPU": cpus, **needs}):
            what = " and ".join([f"{cpus} CPUs", *(f"the resource {name!r}" for name in needs)])
            remedy = "start such a node, or choose fewer --threads"
            raise ConfigError(
                f"no node of the cluster has {what}", where=f"job {job.model}.{job.configuration}", remedy=remedy
            )
        reserved.append(needs)
    for job, needs in zip(jobs, reserved, strict=True):
        options = {"num_cpus": cpus, "resources": needs, "max_retries": 0}
        running[task.options(**options).remote(job)] = job, {"CPU": cpus, **needs}
    waiting = Waiting()
    try:
        while running:
            answer = waiting.first({answer: needs for answer, (_, needs) in running.items()})
            job, _ = running.pop(answer)
            try:
                yield ray.get(answer)
            except RayError as error:
                first, _, _ = str(error).partition("\n")[0].partition(". ")  # the rest lists possible causes
                yield failed(job, f"{type(error).__name__}: {first}: start the same command again")
    finally:
        for answer in running:
            ray.cancel(answer, force=True)
