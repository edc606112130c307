"""Measure programs on a Ray cluster. Each program is an actor, on a node that has the devices it requires.

A node declares a device as a resource with the name of the backend: `ray start --resources='{"openvino": 1}'`. It needs
the libraries and this project, but not torch.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from delegate.cache.runtime.environment import machine
from delegate.placement.runtime.trials import (
    MIN_TIMEOUT,
    Cluster,
    ProcessRunnerFactory,
    ProgramRunner,
    RoundResult,
    Trial,
    TrialFailed,
)
from delegate.plugins import INSTANCE, one_line
from delegate.processes.limits import PATIENCE
from delegate.program import file
from delegate_ray.runtime.connection import connected

_SHARE = 0.001  # of a resource, since all programs of a measurement are open and run one after the other


@dataclass(frozen=True)
class _PackedTrial:
    """A `Trial` to send to a node, with its program as bytes."""

    program: bytes
    fields: Mapping[str, Any]


class NodeRunner:
    """A program in a process of its own on a node. A Ray actor, whose process may die.

    Args:
        packed: the program.
        leaves, kernels, limit: see `ProcessRunnerFactory`.
    """

    def __init__(
        self, packed: _PackedTrial, leaves: Sequence[Any], kernels: Sequence[str] | None, limit: float
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="delegate-")
        trial = Trial(program=file.load(packed.program), **packed.fields)
        self._runner = ProcessRunnerFactory(Path(self._folder.name), leaves, kernels, limit).start(trial)

    def ready(self) -> str:
        """Wait until the program can be called, and return a description of the machine. Raises TrialFailed."""
        self._runner.ready()
        return machine()

    def measure_round(self) -> RoundResult:
        """Measure one round; see `ProgramRunner`."""
        return self._runner.measure_round()

    def outputs(self, leaves: Sequence[Any]) -> list[Any]:
        """Return the results of a call; see `ProgramRunner`."""
        return self._runner.outputs(leaves)

    def close(self) -> None:
        """End the program; see `ProgramRunner`."""
        self._runner.close()
        self._folder.cleanup()


class RayCluster(Cluster):
    """A connection to a Ray cluster, as a context manager, which reuses an existing connection of this process.

    Args:
        address: An address for `ray.init`: host:port, "auto", or "ray://host:port".

    Raises:
        ConfigError: the cluster does not exist.
    """

    def __init__(self, address: str) -> None:
        self._address = address

    def __enter__(self) -> RayCluster:
        self._connection = connected(self._address)
        self._connection.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.__exit__(kind, error, trace)

    def create_factory(
        self, leaves: Sequence[Any], kernels: Sequence[str] | None, limit: float, left: Callable[[], float]
    ) -> RayRunnerFactory:
        """Return the factory for a method; it takes the arguments of `ProcessRunnerFactory`."""
        return RayRunnerFactory(leaves, kernels, limit, left)


class RayRunnerFactory:
    """A factory that starts programs on nodes of the connected cluster.

    Programs go to one node if it has the devices they require, so that rounds of two programs are pairs.

    Args:
        leaves, kernels, limit, left: see `ProcessRunnerFactory`.

    Attributes:
        machines: descriptions of the machines that programs have run on.
    """

    def __init__(
        self,
        leaves: Sequence[Any],
        kernels: Sequence[str] | None,
        limit: float,
        left: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self._arguments, self._limit, self._left = (list(leaves), kernels, limit), PATIENCE * limit, left
        self._used: list[str] = []
        self.machines: dict[str, None] = {}

    def start(self, trial: Trial) -> ProgramRunner:
        """Start a program; raises TrialFailed if no node has the required devices."""
        node, needs = self._node({spec.backend for spec in trial.program.delegates})
        fields = {name: getattr(trial, name) for name in Trial.__slots__ if name != "program"}
        packed = _PackedTrial(file.serialize(trial.program), fields)
        options = {
            "num_cpus": 0,
            "resources": dict.fromkeys(needs, _SHARE),
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False),
            "max_restarts": 0,
        }
        actor = ray.remote(NodeRunner).options(**options).remote(packed, *self._arguments)
        return _RayRunner(actor, lambda: min(self._limit, max(self._left(), 0.0) + MIN_TIMEOUT), self.machines)

    def _node(self, backends: Iterable[str]) -> tuple[str, list[str]]:
        """Return a node that has the devices of these backends, and the names of the resources."""
        nodes = {n["NodeID"]: n["Resources"] for n in ray.nodes() if n["Alive"]}
        carried = {name for resources in nodes.values() for name in resources}
        needs = [b if b in carried else b.partition(INSTANCE)[0] for b in sorted(backends)]
        for node in (*self._used, *sorted(nodes)):
            if nodes.get(node, {}).keys() >= set(needs):
                self._used += [node] if node not in self._used else []
                return node, needs
        what = f"no node of the cluster has {' and '.join(needs)} as resources"
        raise TrialFailed(what)


class _RayRunner:
    """An actor. All errors there or on the way are TrialFailed."""

    def __init__(self, actor: Any, limit: Callable[[], float], machines: dict[str, None]) -> None:
        self._actor, self._limit, self._machines = actor, limit, machines

    def ready(self) -> None:
        self._machines[self._await(self._actor.ready.remote())] = None

    def measure_round(self) -> RoundResult:
        result: RoundResult = self._await(self._actor.measure_round.remote())
        return result

    def outputs(self, leaves: Sequence[Any]) -> list[Any]:
        outputs: list[Any] = self._await(self._actor.outputs.remote(list(leaves)))
        return outputs

    def close(self) -> None:
        try:
            self._await(self._actor.close.remote())
        except TrialFailed:  # it is gone
            pass
        finally:
            ray.kill(self._actor)

    def _await(self, answer: Any) -> Any:
        limit = self._limit()
        try:
            return ray.get(answer, timeout=limit)
        except GetTimeoutError as error:
            raise TrialFailed(f"the Ray worker gave no answer in {limit:.3g} s") from error
        except RayTaskError as error:
            cause = error.cause
            known = isinstance(cause, TrialFailed)
            raise TrialFailed(str(cause) if known else one_line(cause)) from error
        except RayError as error:
            first, _, _ = str(error).partition("\n")  # the other lines list possible causes
            raise TrialFailed(f"the Ray worker died: {type(error).__name__}: {first}") from error
