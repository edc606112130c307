"""The first NaN, in words: in a program that ran, in a partition, and in torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from delegate.accuracy.figures import Differences
from delegate.accuracy.recording import NotFiniteCall, RecordedInstruction, RunRecorder, has_more_nan, has_nan
from delegate.accuracy.reference import NodeRunner, flat_arguments, tensors
from delegate.accuracy.samples import Sample
from delegate.accuracy.trial import RegionTrial
from delegate.edge.node import op_name, source_line
from delegate.program.instructions import describe_operator

Values = Mapping[str, torch.Tensor]  # by node
Test = Callable[[torch.Tensor], bool]


def describe_nan(
    recorder: RunRecorder[RecordedInstruction],
    method: str,
    trial_of: Callable[[NotFiniteCall[RecordedInstruction]], RegionTrial],
) -> str:
    """Describe the first node of a method that gives NaN, or what has NaN without a node.

    A partition that gives NaN where torch has none on the same inputs goes before all others.

    Args:
        recorder: the recorder of the run.
        method: the name of the method.
        trial_of: returns a runner for parts of the partition on the inputs of the call.
    """
    found = recorder.not_finite(method, "NaN")
    first = next((f for f in found if f.is_own), found[0] if found else None)
    if first is None:
        return "its inputs or states"
    if first.entry.delegate is None:
        return first.entry.describe()
    trial = trial_of(first)
    values = trial.known
    if first.is_own:
        values = {n: v for n, v in trial.read_values().items() if has_more_nan(v, trial.known.get(n, v))}
    text = describe_inside(first.entry, values, has_nan) or first.entry.describe()
    return f"{text}, {'where torch returns none' if first.is_own else 'as in torch'}"


def describe_inside(entry: RecordedInstruction, values: Values, test: Test) -> str:
    """Describe the first node of a partition whose value passes a test, such as `has_nan`; empty if none does."""
    nodes = (n for n in entry.region.calls if n.name in values and test(values[n.name]))
    return next((f"{describe_node(node)}, in {entry.describe()}" for node in nodes), "")


def nan_text(differences: Differences, here: str, reference: ExportedProgram, samples: Iterable[Sample]) -> str:
    """Describe the NaN in results of a program and of its reference; empty if neither has any.

    Args:
        differences: The differences in all results together.
        here: the first node of the program that gives NaN, in words.
        reference: the program that torch ran.
        samples: its calls.
    """
    if not differences.has_expected_nan:
        return f"NaN is first in {here}; the reference returns no NaN" if differences.has_nan else ""
    calls = (flat_arguments(reference, sample.args, sample.kwargs) for sample in samples)
    node = next(filter(None, (first_node(reference, leaves, has_nan) for leaves in calls)), "its inputs or states")
    if not differences.has_nan:
        return f"the reference returns NaN, first in {node}, and the program returns none"
    return f"NaN is first in {here}; the reference returns NaN too, first in {node}"


def first_node(ep: ExportedProgram, leaves: Sequence[Any], test: Test) -> str:
    """Describe the first node whose result in torch passes a test: operator, name, the user's line.

    Args:
        ep: the program.
        leaves: the leaves of the arguments, in the order of its inputs.
        test: for example `has_nan`.

    Returns:
        the text; empty without such a node.
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
    return describe_operator(op_name(node), node.name, source_line(node))
