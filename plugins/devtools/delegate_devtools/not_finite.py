"""The first NaN and the first infinity of a run, here and in torch, in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from delegate.accuracy.recording import RecordedCall
from delegate.accuracy.reference import NodeRunner, tensors
from delegate.edge.node import op_name, source_line
from delegate.program.instructions import describe_operator
from delegate_devtools.recorder import NOT_FINITE, DebuggedInstruction, Test, ThoroughRecorder

Values = Mapping[str, torch.Tensor]  # by node


def describe_not_finite(
    recorder: ThoroughRecorder,
    method: str,
    kind: str,
    read: Callable[[DebuggedInstruction, RecordedCall], Mapping[str, torch.Tensor]],
    *,
    is_likely: bool,
) -> str:
    """Describe the first node of a method that gives NaN or infinity, also inside of a partition; empty if none does.

    Args:
        recorder: the recorder of the run.
        method: the name of the method.
        kind: a key of `NOT_FINITE`.
        read: returns the values inside of a partition in a call.
        is_likely: read the values inside of partitions whose results are finite.
    """
    found, test = recorder.not_finite(method, kind), NOT_FINITE[kind]
    first = found[0] if found else None
    for entry in recorder.instructions:
        if first is not None and entry is first.entry:
            break
        call = entry.last if is_likely and entry.method == method else None
        if call is not None and (text := describe_inside(entry, read(entry, call), test)):
            return text
    if first is None:
        return ""
    if first.entry.delegate is None:
        return first.entry.describe()
    return describe_inside(first.entry, read(first.entry, first.call), test) or first.entry.describe()


def describe_inside(entry: DebuggedInstruction, values: Values, test: Test) -> str:
    """Describe the first node of a partition whose value passes a test, such as `has_nan`; empty if none does."""
    nodes = (n for n in entry.region.calls if n.name in values and test(values[n.name]))
    return next((f"{describe_node(node)}, in {entry.describe()}" for node in nodes), "")


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
