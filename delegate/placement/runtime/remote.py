"""Interfaces of packages that measure on other machines, whose parts `delegate.plugins.measurements` finds and imports.

A package implements them and uses the types of `delegate.placement`. The core names no such package.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from delegate.placement.runtime.trials import ProgramRunner, Trial

if TYPE_CHECKING:
    from delegate.placement.plans import ChosenPlan, Progress, Task
    from delegate.placement.reference_comparator import ReferenceComparator

PathLike = str | os.PathLike[str]


class RemotePlacement(ABC):
    """Measurements of another machine instead of local ones: its costs, or a bundle of programs to measure there."""

    @abstractmethod
    def place(self, task: Task, comparator: ReferenceComparator, progress: Progress) -> ChosenPlan:
        """Choose the plan of a method.

        Raises:
            PartitionError: the costs are of other programs, of other inputs, or by another objective.
            DelegateError: no candidate can be compiled.
        """

    @abstractmethod
    def finish(self) -> None:
        """Write the bundle, if there is one, after all methods are placed.

        Raises:
            PartitionError: according to the costs there is nothing left to measure.
            ProgramError: it cannot be written.
        """


OpenRemotePlacement = Callable[[PathLike | None, Sequence[PathLike]], RemotePlacement]
"""The AOT part of "bundle": its arguments are the path of the bundle to write, if any, and the paths of costs.

It raises PartitionError for costs that cannot be read, and ProgramError for a bundle that cannot be written.
"""


class ClusterRunnerFactory(ABC):
    """A factory that starts programs on machines of a cluster; see `RunnerFactory`.

    Attributes:
        machines: descriptions of the machines that programs have run on.
    """

    machines: Collection[str]

    @abstractmethod
    def start(self, trial: Trial) -> ProgramRunner:
        """Start a program; raises TrialFailed if no machine has the required devices."""


class Cluster(AbstractContextManager["Cluster"], ABC):
    """A connection to a cluster. Entering it raises ConfigError without a cluster."""

    @abstractmethod
    def create_factory(
        self, leaves: Sequence[Any], kernels: Sequence[str] | None, limit: float, left: Callable[[], float]
    ) -> ClusterRunnerFactory:
        """Return the factory for a method; it takes the arguments of `ProcessRunnerFactory`."""


OpenCluster = Callable[[str], Cluster]
"""The runtime part of "ray": its argument is the address of the cluster."""
