"""How a user requests a placement: one value, given as `to_backend(placement=...)`.

A `SavedPlan` is a request too: it places every node as it says.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from delegate.partitioner.saved import SavedPlan

PathLike = str | os.PathLike[str]
Objective = Literal["latency", "throughput", "memory", "file size"]


@dataclass(frozen=True, slots=True)
class ByPreference:
    """Run a node on the first backend, in the order of preference, that supports it. Nothing is measured.

    Args:
        lockfile: path of a lockfile to write, with the backend of each node.
    """

    lockfile: PathLike | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """Run single-backend and mixed plans, and take the best. See docs/placement.md.

    Args:
        budget: seconds for compiling candidates and measuring them. None: as configured, which is 60 unless changed.
        objective: what is least in the best plan. None: as configured, which is the latency unless changed.
        lockfile: path of a lockfile to write, with the backend of each node and its measured cost.
        cluster: address of a Ray cluster, as for `ray.init`. Candidates are measured on its nodes that have the
            backends as resources. None: this machine measures.
    """

    budget: float | None = None
    objective: Objective | None = None
    lockfile: PathLike | None = None
    cluster: str | None = None


@dataclass(frozen=True, slots=True)
class Remote:
    """Take the best plan by measurements of another machine, where `delegate measure` runs a bundle of programs.

    Without costs the plan of the first candidate is used meanwhile. At least one of `bundle` and `costs` is required.

    Args:
        bundle: path of the bundle to write, with the candidates' programs and inputs. With costs it has the plans that
            are promising by these.
        costs: path of the results of `delegate measure`, or a list, one for each bundle.
        objective: see `Measured`.
        lockfile: path of a lockfile to write, with the backend of each node and its measured cost.
    """

    bundle: PathLike | None = None
    costs: PathLike | Sequence[PathLike] = ()
    objective: Objective | None = None
    lockfile: PathLike | None = None


@dataclass(frozen=True, slots=True)
class Replay:
    """Place every node as a lockfile says. Nothing is measured.

    Args:
        locked: path of the lockfile to apply.
        lockfile: path of a lockfile to write, with the versions of this machine.
    """

    locked: PathLike
    lockfile: PathLike | None = None


PlacementRequest = ByPreference | Measured | Remote | Replay | SavedPlan
