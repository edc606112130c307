"""The interface of strategies, which place the nodes of a program; by default the first backend of a node runs it.

A strategy is made from the argument `placement` of `to_backend` and the configuration. Its methods are called in the
order of the file, each once. The lockfile to apply is read when the strategy is created. The lockfile to write is
written at the end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.export import ExportedProgram

from delegate.accuracy.bounds import Verify
from delegate.common.files import require_file
from delegate.costs.estimates import Estimates
from delegate.lowering.compiler import Compiler
from delegate.lowering.quantized import quantize_programs
from delegate.partitioner.plan import Plan
from delegate.partitioner.saved import SavedPlan
from delegate.placement.lock import Lock
from delegate.placement.plans import Options, Progress
from delegate.registry import Registry
from delegate.report import Report
from delegate.report.measured import Placement
from delegate.selection import Selection


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
        lockfile: path of a lockfile to write.
        plan: the plan to apply, if any.
    """

    backends: Collection[str] = ()  # to select although their device is absent here
    is_cacheable = True  # the cache of whole programs may have its result; False after a choice on a busy machine
    estimate_notes: tuple[str, ...] = ()  # for the report: where the estimates of its plan come from
    can_quantize = False  # it chooses the scheme of a quantization with scheme: auto

    def __init__(self, lockfile: str | os.PathLike[str] | None = None, plan: SavedPlan | None = None) -> None:
        if lockfile is not None:
            require_file(lockfile, "the lockfile", streams=True)
            self.is_cacheable = False
        self._lockfile, self.plan = lockfile, plan

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
        progress: Callable[[str], None] | None = None,
    ) -> tuple[dict[str, ExportedProgram], Selection]:
        """Return the methods, quantized if the configuration or the strategy requires it; see `quantized`."""
        return quantize_programs(sources, selection, registry, verify, progress)

    def costs(self, selection: Selection) -> Estimates | None:
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
        if self._lockfile is not None:
            lock.save(self._lockfile)
        return report
