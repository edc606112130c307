"""Work on a job by actors of a Ray cluster. An actor that dies is replaced, and its part starts again.

Ray needs this package on each node, and the files of program, input and output have the same paths on all nodes.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from delegate.errors import BackendFailed, ConfigError, DelegateError
from delegate.plugins import one_line
from delegate_ray.runtime.connection import Waiting, require_head, require_version
from delegate_ray.runtime.job import Finished, Job
from delegate_ray.runtime.parts import Part
from delegate_ray.runtime.work import check_first_rows, work

_ENVIRONMENT = {"ARROW_DEFAULT_MEMORY_POOL": "system"}  # Arrow's own pool keeps 10 MB for each process
_ATTEMPTS = 5  # of a part, or of starting an actor, before the job fails


class Worker:
    """A Ray actor that works on parts of a job.

    Args:
        job: the job.
    """

    def __init__(self, job: Job) -> None:
        self._job = job

    def prepare(self) -> None:
        """Load the program.

        Raises:
            ConfigError: this node has another version, or not the files of the job.
            DelegateError: the program cannot be loaded.
        """
        require_version(self._job.version)
        if not self._job.has_manifest():
            what = "a node does not have the output folder of the job"
            raise ConfigError(what, where=self._job.folder, remedy="use a folder that all nodes share")
        for file in self._job.files:
            file.require_unchanged()
        self._runner = self._job.runner(is_shared=True)
        check_first_rows(self._job, self._runner)

    def work(self, part: Part) -> Finished:
        """Write the output file of a part; see `delegate_ray.runtime.work`."""
        return work(self._job, self._runner, part)


class Cluster:
    """Actors of the connected cluster that work on a job.

    Args:
        job: the job, whose manifest is in the output folder.
        parts: the parts to work on.
        actors: the number of actors.
        cpus: the CPUs that Ray reserves for each actor.

    Raises:
        ConfigError: no node has enough CPUs for one actor.
    """

    def __init__(self, job: Job, parts: Sequence[Part], actors: int, cpus: int) -> None:
        available = max((n["Resources"].get("CPU", 0) for n in ray.nodes() if n["Alive"]), default=0)
        if available < cpus:
            what = f"no node of the cluster has {cpus} CPUs, the largest has {available:g}"
            raise ConfigError(what, where="--ray", remedy="choose fewer --threads")
        self._job, self._count, self._cpus = job, min(actors, len(parts)), cpus
        self._waiting = deque(parts)
        self._attempts: Counter[int | None] = Counter()  # by part; None: starts of actors that failed
        self._running: dict[Any, tuple[Any, Part | None]] = {}  # answer -> its actor and part; None: it prepares

    def work(self) -> Iterator[Finished]:
        """Yield each part when its output file is complete.

        Raises:
            DelegateError: a part failed (the first one's error), or actors cannot start, or a part ends all its actors.
        """
        waiting = Waiting()
        try:
            for _ in range(self._count):
                self._start()
            while self._running:
                answer = waiting.first({answer: {"CPU": self._cpus} for answer in self._running})
                actor, part = self._running.pop(answer)
                try:
                    finished = ray.get(answer)
                except RayTaskError as error:
                    raise cause_of(error) from error
                except RayError as error:
                    self._replace(actor, part, error)
                    continue
                self._give(actor)
                if finished is not None:
                    yield finished
        finally:
            for actor, _ in self._running.values():
                ray.kill(actor)

    def _start(self) -> None:
        environment = {"env_vars": _ENVIRONMENT}
        options = {"num_cpus": self._cpus, "max_restarts": 0, "runtime_env": environment}
        actor = ray.remote(Worker).options(**options).remote(self._job)
        self._running[actor.prepare.remote()] = actor, None

    def _give(self, actor: Any) -> None:
        """Give the next part to an actor, or end it if there is none."""
        if self._waiting:
            part = self._waiting.popleft()
            self._running[actor.work.remote(part)] = actor, part
        else:
            ray.kill(actor)

    def _replace(self, actor: Any, part: Part | None, error: RayError) -> None:
        """Start a new actor in place of one that died, and put its part back; raises BackendFailed after some times."""
        ray.kill(actor)
        number = None if part is None else part.number
        self._attempts[number] += 1
        if self._attempts[number] >= _ATTEMPTS:
            what = "actors die when they start" if part is None else f"actors die at part {part.number}"
            first, _, _ = str(error).partition("\n")  # the other lines list possible causes
            remedy = "check the memory of the nodes, and that each has this package; then start the same command again"
            raise BackendFailed(f"{what}: {type(error).__name__}: {first}", where="--ray", remedy=remedy) from error
        if part is not None:
            self._waiting.append(part)  # the others first, since it may end its actors
        require_head()
        self._start()


def cause_of(error: RayTaskError) -> DelegateError:
    """Return the error of a task as one of this project."""
    if isinstance(error.cause, DelegateError):
        return error.cause
    remedy = "check that each node has this package, in the version of the driver"
    return BackendFailed(f"a Ray worker failed: {one_line(error.cause)}", where="--ray", remedy=remedy)
