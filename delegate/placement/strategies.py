"""The strategy of each placement that a user may request."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence

from pydantic import ValidationError
from torch.export import ExportedProgram

from delegate.accuracy.bounds import Verify
from delegate.config import PlacementSection
from delegate.config.source import sentences
from delegate.errors import ConfigError
from delegate.lowering.compiler import Compiler
from delegate.partitioner.saved import BY_THE_PLAN, SavedPlan
from delegate.placement.estimated import EstimatedStrategy
from delegate.placement.lock import Lock
from delegate.placement.locked import LockedStrategy
from delegate.placement.measured import MeasuredStrategy
from delegate.placement.policy import (
    ByPreference,
    Estimated,
    Measured,
    PathLike,
    PlacementPolicy,
    PlacementRequest,
    Remote,
    Replay,
    SupportTable,
)
from delegate.placement.runtime.remote import Cluster, OpenCluster, OpenRemotePlacement, RemotePlacement
from delegate.placement.strategy import Placed, Strategy
from delegate.plugins.measurements import BUNDLE, CLUSTER
from delegate.registry import default_registry

_WHERE = "placement"


class _ByPolicy(Strategy):
    """Place as a policy of the user chooses."""

    is_cacheable = False  # nobody can compare the code of a policy

    def __init__(self, policy: PlacementPolicy) -> None:
        super().__init__()
        self._policy = policy

    def place(self, compiler: Compiler, exported: Mapping[str, ExportedProgram], check: Verify) -> Placed:
        table = SupportTable.of(compiler.plan_each_backend_first())
        plan = self._policy.place(table)
        if not isinstance(plan, SavedPlan):
            what = f"{type(self._policy).__name__}.place returned a {type(plan).__name__}"
            raise ConfigError(what, where=_WHERE, remedy="return a delegate.SavedPlan, e.g. of `table.plan`")
        compiler.apply(plan, BY_THE_PLAN)
        table.require_supported(plan)
        return Placed(compiler, exported)


def create_strategy(request: PlacementRequest | None, settings: PlacementSection, *, is_named: bool) -> Strategy:
    """Return the strategy of a request.

    Args:
        request: the argument of the user; None: as configured.
        settings: the section `placement` of the configuration.
        is_named: the user has named the backends, so that they are in an order of preference.

    Raises:
        ConfigError: the request is not a placement, its values are invalid, or a package that it needs is not here.
        PartitionError: a lockfile or costs cannot be read, or a lockfile cannot be written.
        ProgramError: a bundle cannot be written.
    """
    if request is None:
        request = read_request(settings, is_named=is_named)
    match request:
        case SavedPlan() | ByPreference():
            return Strategy(plan=request) if isinstance(request, SavedPlan) else Strategy(request.lockfile)
        case PlacementPolicy():
            return _ByPolicy(request)
        case Estimated(race_seconds, machine_profile, lockfile):
            _require_seconds(race_seconds)
            return EstimatedStrategy(race_seconds, machine_profile, lockfile)
        case Replay(locked, lockfile):
            return LockedStrategy(Lock.load(locked), str(locked), lockfile)
        case Measured(budget, objective, lockfile, cluster):
            opened = None if cluster is None else _open_cluster(cluster)
            return MeasuredStrategy(_change_settings(settings, budget, objective), lockfile, cluster=opened)
        case Remote(bundle, costs, objective, lockfile):
            remote = _open_remote_placement(bundle, costs)
            return MeasuredStrategy(_change_settings(settings, None, objective), lockfile, remote)
    known = ".Measured(), .Remote(bundle, costs), .Replay(lockfile), .ByPreference(), or a SavedPlan"
    remedy = f"give delegate.Estimated(), {known}"
    raise ConfigError(f"placement cannot be a {type(request).__name__}", where="to_backend", remedy=remedy)


def read_request(settings: PlacementSection, *, is_named: bool) -> ByPreference | Estimated | Measured:
    """Return the request that a configuration stands for; raises ConfigError if it has keys without effect.

    Args: see `create_strategy`.
    """
    policy = settings.policy or ("preference" if is_named else "estimated")
    if policy == "measured":
        return Measured()
    _require_no_measurement(settings, policy)
    return ByPreference() if policy == "preference" else Estimated()


def _require_no_measurement(settings: PlacementSection, policy: str) -> None:
    """Raise ConfigError if the section has keys that only measured placement obeys, such as a bound on errors."""
    if unused := sorted(settings.model_fields_set - {"policy"}):
        what = f"{', '.join(unused)}: only measured placement uses {'this key' if len(unused) == 1 else 'these keys'}"
        raise ConfigError(f"{what}, and it is by {policy}", where=_WHERE, remedy="add policy: measured, or remove them")


def _require_seconds(race: object) -> None:
    if isinstance(race, bool) or not isinstance(race, int | float) or not 0 <= race < math.inf:
        what = f"the race of Estimated should be a number of seconds of 0 or more, not {race!r}"
        raise ConfigError(what, where=_WHERE, remedy="give e.g. 2.0, or 0 for none")


def _open_cluster(address: str) -> Cluster:
    """Return the cluster of an address, without a connection yet."""
    open_cluster: OpenCluster = default_registry().measurements.part(CLUSTER, "runtime")
    return open_cluster(address)


def _open_remote_placement(bundle: PathLike | None, costs: PathLike | Sequence[PathLike]) -> RemotePlacement:
    paths = [costs] if isinstance(costs, str | os.PathLike) else list(costs or ())
    if bundle is None and not paths:
        raise ConfigError("Remote has neither a bundle nor costs", remedy="give one", where=_WHERE)
    open_placement: OpenRemotePlacement = default_registry().measurements.part(BUNDLE, "aot")
    return open_placement(bundle, paths)


def _change_settings(settings: PlacementSection, budget: float | None, objective: str | None) -> PlacementSection:
    """Return the settings with the values of a request; raises ConfigError if these are invalid."""
    changes = {k: v for k, v in {"budget": budget, "objective": objective}.items() if v is not None}
    try:
        checked = PlacementSection.model_validate(changes)
    except ValidationError as error:
        what = f"the placement is invalid: {sentences(error, PlacementSection)}"
        raise ConfigError(what, where=_WHERE) from error
    return settings.model_copy(update={name: getattr(checked, name) for name in changes})
