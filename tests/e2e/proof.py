"""What is proved of a model: eager's numbers where torch is absent, in an arena of next to no waste."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch.export import ExportedProgram

import delegate
from delegate.kernels.selection import Kernels
from delegate.memory.planner import largest_live_sum
from delegate.memory.storage import assign_storage
from delegate.program.model import Program
from delegate.registry import default_registry
from tests.support.lowering import relative_error
from tests.support.processes import run_without_torch
from tests.support.zoo import Inputs, libraries

MAX_ERROR = 1e-4  # 2.4e-5 is measured of resnet50
MAX_WASTE = 1.05


@dataclass(frozen=True, slots=True)
class Proof:
    """What was measured.

    Args:
        error: the largest relative error of any result on any inputs.
        waste: the size of the arena over the largest sum of live tensors; 1 where there is no arena.
        partitions: how many there are.
        portable: how many nodes run on portable kernels, and out of how many.
    """

    error: float
    waste: float
    partitions: int
    portable: tuple[int, int]

    def __str__(self) -> str:
        portable, nodes = self.portable
        return (
            f"error {self.error:.1e}, arena {self.waste:.3f}, {self.partitions} partitions, {portable}/{nodes} portable"
        )


def prove(
    exported: ExportedProgram,
    module: torch.nn.Module,
    calls: Sequence[Inputs],
    backends: Any,
    folder: Path,
) -> Proof:
    """Lower and save a program, run it without torch, and measure."""
    program = delegate.to_backend(exported, backends)
    program.save(folder / "model.dlg")
    nodes = program.report.nodes
    runs = [(run_without_torch(folder / "model.dlg", _arrays(given)), eager(module, given)) for given in calls]
    return Proof(
        error=max(relative_error(*run) for run in runs),
        waste=max(waste(program.program, _arrays(given)) for given in calls),
        partitions=len(program.report.partitions),
        portable=(sum(n.backend == "portable" for n in nodes), len(nodes)),
    )


def eager(module: torch.nn.Module, given: Inputs) -> list[np.ndarray]:
    """The flat results of the module."""
    with torch.no_grad(), libraries():
        return _arrays(tuple(pytree.tree_leaves(module(*given))))


def waste(program: Program, inputs: Sequence[np.ndarray]) -> float:
    """The arena of a program of one method over its largest sum of live tensors, for these inputs."""
    (method,) = program.methods
    sizes = {i: inputs[s.input].shape[s.dim] for i, s in enumerate(method.symbols)}
    registry = default_registry()
    plan = assign_storage(program, method, Kernels(registry.kernels.tables), sizes)
    least = largest_live_sum(plan.lifetimes)
    return sum(plan.arenas) / least if least else 1.0


def _arrays(tensors: Sequence[Any]) -> list[np.ndarray]:
    return [np.asarray(t.detach() if isinstance(t, torch.Tensor) else t) for t in tensors]
