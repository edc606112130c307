"""The first nodes whose results have NaN: in a program that runs, in a partition, and in a reference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from delegate.accuracy.figures import Differences
from delegate.accuracy.reference import NodeRunner, flat_arguments, tensors
from delegate.accuracy.samples import Sample
from delegate.accuracy.trial import RegionTrial
from delegate.edge.node import op_name, source_line


def has_nan(value: torch.Tensor) -> bool:
    """Return if a tensor has NaN."""
    return (value.is_floating_point() or value.is_complex()) and bool(value.isnan().any())


def has_infinity(value: torch.Tensor) -> bool:
    """Return if a tensor has infinity."""
    return (value.is_floating_point() or value.is_complex()) and bool(value.isinf().any())


def _has_more_nan(value: torch.Tensor, expected: torch.Tensor) -> bool:
    """Return if a tensor has NaN in an element that is a number or infinite in another tensor of its shape."""
    return has_nan(value) and bool((value.isnan() & ~expected.isnan()).any())


@dataclass(frozen=True, slots=True)
class NanCall:
    """A call of a partition whose results have NaN.

    Args:
        partition: the name of the partition.
        inputs: the inputs of the call.
        is_own: an element is NaN that is none in torch, on the same inputs.
    """

    partition: str
    inputs: tuple[torch.Tensor, ...]
    is_own: bool

    def describe(self, trial: RegionTrial) -> str:
        """Return the first node of the partition that gives NaN, or the partition if it cannot run in parts."""
        node = _first_own(trial) if self.is_own else _first_in_torch(trial)
        inside = "" if node is None else f", in {describe_node(node)}"
        return f"partition {self.partition}{inside}, {'where torch returns none' if self.is_own else 'as in torch'}"


@dataclass(slots=True)
class NanSource:
    """The first result with NaN in the calls of a method.

    Args:
        first: the partition's call, or the kernel's node in words; None without NaN.
        own: the first call of a partition that gives NaN where torch gives none.
    """

    first: NanCall | str | None = None
    own: NanCall | None = None

    def add_kernel(self, node: Callable[[], str], results: Sequence[torch.Tensor]) -> None:
        """Add a call of a kernel; `node` returns its description."""
        if self.first is None and any(map(has_nan, results)):
            self.first = node()

    def add_partition(
        self,
        name: str,
        inputs: Sequence[torch.Tensor],
        results: Sequence[torch.Tensor],
        expected: Sequence[torch.Tensor],
    ) -> None:
        """Add a call of a partition, with the results that torch gives."""
        if self.own is not None or not any(map(has_nan, results)):
            return
        is_own = any(_has_more_nan(r, e) for r, e in zip(results, expected, strict=True))
        if self.first is not None and not is_own:
            return
        call = NanCall(name, tuple(t.clone() for t in inputs), is_own)
        self.first, self.own = self.first or call, call if is_own else None


def nan_text(differences: Differences, here: str, reference: ExportedProgram, samples: Iterable[Sample]) -> str:
    """Describe the NaN in results of a program and of its reference; empty if neither has any.

    Args:
        differences: of all results.
        here: the first node of the program that gives NaN, in words.
        reference: the program that torch ran.
        samples: its calls.
    """
    if not differences.has_expected_nan:
        return f"NaN is first in {here}; the reference returns no NaN" if differences.has_nan else ""
    calls = (flat_arguments(reference, sample.args, sample.kwargs) for sample in samples)
    node = next(filter(None, (first_node(reference, leaves) for leaves in calls)), "its inputs or states")
    if not differences.has_nan:
        return f"the reference returns NaN, first in {node}, and the program returns none"
    return f"NaN is first in {here}; the reference returns NaN too, first in {node}"


def first_node(ep: ExportedProgram, leaves: Sequence[Any], test: Callable[[torch.Tensor], bool] = has_nan) -> str:
    """Describe the first node whose result meets a test in torch: operator, name, the user's line. Empty if none.

    Args:
        ep: the program.
        leaves: the leaves of the arguments, in the order of its inputs.
        test: of a tensor; by default, that it has NaN.
    """
    sources: list[Node] = []

    def record(node: Node, result: Any) -> Any:
        if not sources and any(map(test, tensors(result))):
            sources.append(node)
        return result

    NodeRunner(ep, record, with_bodies=True).results(leaves)
    return describe_node(sources[0]) if sources else ""


def describe_node(node: Node) -> str:
    """Return the operator, the name and the user's source line of a node."""
    return node_text(op_name(node), node.name, source_line(node))


def node_text(op: str, name: str, line: str) -> str:
    """Return the operator, the name and the user's source line of a node as one text."""
    return f"{op} ({name}){f' at {line}' if line else ''}"


def _first_in_torch(trial: RegionTrial) -> Node | None:
    return next((n for n in trial.region.calls if n.name in trial.known and has_nan(trial.known[n.name])), None)


def _first_own(trial: RegionTrial) -> Node | None:
    """Return the first node that gives NaN on the backend where torch gives none; None if its values are unknown."""
    values = trial.read_values()
    calls = (n for n in trial.region.calls if n.name in values)
    return next((n for n in calls if _has_more_nan(values[n.name], trial.known[n.name])), None)
