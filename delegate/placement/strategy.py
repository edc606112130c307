"""The interface of placements, which place the nodes of a program; by default the first backend of a node runs it.

A value of `to_backend(placement=...)` is a strategy. Each lowering works on a copy, which has read the files that the
value names. Its methods are called in the order of the class, each once. The lockfile is written at the end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from torch.export import ExportedProgram

from delegate.accuracy.bounds import Verify
from delegate.common.files import require_file
from delegate.config import PlacementSection
from delegate.costs.estimates import Estimates
from delegate.lowering.compiler import Compiler
from delegate.lowering.quantized import quantize_programs
from delegate.partitioner.plan import Plan
from delegate.partitioner.saved import SavedPlan
from delegate.placement.lock import Lock
from delegate.registry import Registry
from delegate.report import Report
from delegate.report.measured import Placement
from delegate.selection import Selection
from delegate.verdict import Reason, no

PathLike = str | os.PathLike[str]
Objective = Literal["latency", "memory", "file size"]
Options = Mapping[str, Mapping[str, Any]]  # backend -> its options of `delegate.load`
Progress = Callable[[str], None]

MEASURED = no(Reason.SLOWER, "as measured", "the table of plans shows by how much")


@dataclass(frozen=True, slots=True)
class Placed:
    """A program with its placement, to compile.

    Args:
        compiler: has the methods, and the plan to apply.
        exported: the methods; a candidate of measured placement may be quantized.
        placements: the measurements, by method.
        options: Backend name -> its options of `delegate.load`.
        quantization: method -> the configuration section of its chosen candidate, for the quantized methods.
        floats: the float references of methods that are other programs, by name.
    """

    compiler: Compiler
    exported: Mapping[str, ExportedProgram]
    placements: tuple[Placement, ...] = ()
    options: Options = field(default_factory=dict)
    quantization: Mapping[str, Any] = field(default_factory=dict)
    floats: Mapping[str, ExportedProgram] = field(default_factory=dict)


class Strategy:
    """Place by preference: the first backend that supports a node runs it.

    Args:
        plan: the plan to apply, if any.
    """

    lockfile: PathLike | None = None  # to write
    backends: Collection[str] = ()  # to select although their device is absent here
    is_cacheable = True  # the cache of whole programs may have its result; False after a choice on a busy machine
    estimate_notes: tuple[str, ...] = ()  # for the report: where the estimates of its plan come from
    can_quantize = False  # it chooses the scheme of a quantization with scheme: auto
    plan: SavedPlan | None = None

    def __init__(self, plan: SavedPlan | None = None) -> None:
        self.plan = plan

    def open(self, settings: PlacementSection) -> Self:
        """Return the copy for one lowering.

        Args:
            settings: the section `placement` of the configuration.

        Raises:
            ConfigError: its values are invalid, or a package that it needs is not installed.
            PartitionError: a file that it names cannot be read, or the lockfile cannot be written.
            ProgramError: a bundle cannot be written.
        """
        opened = copy(self)
        if self.lockfile is not None:
            require_file(self.lockfile, "the lockfile", streams=True)
            opened.is_cacheable = False
        opened.prepare(settings)
        return opened

    def prepare(self, settings: PlacementSection) -> None:
        """Check the values, and read what they name; raises as `open`."""

    def require_model(self, exported: Mapping[str, ExportedProgram], selection: Selection) -> None:
        """Raise PartitionError if the strategy is for another model or other backends."""

    def calibrate(self, selection: Selection, cache: bool | None = None, progress: Progress | None = None) -> None:
        """Measure what plans depend on, if that is not in the cache.

        Args:
            selection: the backends.
            cache: use the cache; None: as configured.
            progress: called with short progress texts.
        """

    def cache_key(self, exported: Mapping[str, ExportedProgram]) -> Hashable:
        """Return the dependencies of a program on the strategy; raises NotCacheable if nobody can compare them."""
        return None if self.plan is None else self.plan.to_json()

    def quantize(
        self,
        sources: dict[str, ExportedProgram],
        selection: Selection,
        registry: Registry,
        verify: Any = None,
        progress: Progress | None = None,
    ) -> tuple[dict[str, ExportedProgram], Selection]:
        """Return the methods, quantized if the configuration or the strategy requires it; see `quantized`."""
        return quantize_programs(sources, selection, registry, verify, progress)

    def estimates(self, selection: Selection) -> Estimates | None:
        """Return the estimates that plans are chosen by; None if plans are by preference, or saved."""
        return None

    def place(self, compiler: Compiler, exported: Mapping[str, ExportedProgram], check: Verify) -> Placed:
        """Return the compiler with the plan to apply.

        Args:
            compiler: has the methods.
            exported: the methods, which may be quantized.
            check: the inputs to verify on, and the methods that are the references of the exported ones.
        """
        return Placed(compiler, exported)

    def require_applied(self, plans: Sequence[Plan]) -> None:
        """Raise PartitionError if plans differ from the one to apply."""
        if self.plan is not None:
            self.plan.require_applied(plans)

    def finish(self, report: Report, lock: Lock) -> Report:
        """Write the lockfile that is requested, and return the report with notes of the strategy."""
        if self.lockfile is not None:
            lock.save(self.lockfile)
        return report


@dataclass
class ByPreference(Strategy):
    """Run a node on the first backend, in the order of preference, that supports it, without measuring anything.

    Example::

        placement = delegate.ByPreference(lockfile="model.lock")
        program = delegate.to_backend(exported, "xnnpack", placement=placement)

    Args:
        lockfile: path of a lockfile to write, with the backend of each node.
    """

    lockfile: PathLike | None = None
