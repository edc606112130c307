"""The rows of a report: nodes, partitions and figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, TypeVar

from delegate.common.field_checks import Amount
from delegate.plugins import PORTABLE
from delegate.verdict import Verdict


@dataclass(frozen=True, slots=True)
class NodeReport:
    """The backend of one node, and the verdicts of others.

    Args:
        method: the method of the node.
        name: The node's name; in a graph of control flow prefixed by the graph's name, e.g. "true_graph_0.relu".
        op: its operator, e.g. "aten.add.Tensor".
        backend: the backend that runs it, or "portable".
        partition: name of its partition; empty if portable.
        verdicts: backend -> its verdict.
        result: dtype and shape of the result, e.g. "float32[1, 8]".
        source: the user's own line; empty if unknown.
        module: path of the user's module; empty if unknown.
        work: its share of the method's estimated operations, 0 to 1.
        time: its share of the method's estimated time, 0 to 1.
        inputs: the names of the nodes, inputs, constants and states that it reads; those that are not nodes begin with
            "input ", "constant " or "state ".
        nbytes: bytes of its results at the sizes of the export.
    """

    method: str
    name: str
    op: str
    backend: str = PORTABLE
    partition: str = ""
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    result: str = ""
    source: str = ""
    module: str = ""
    work: Amount = 0.0
    time: Amount = 0.0
    inputs: tuple[str, ...] = ()
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The error of results against a reference, the worst of several outputs; see docs/reference/accuracy.md.

    Args:
        sqnr_db: the reference's power over the difference's power, in decibels. Infinite: no difference. Minus
            infinite: one without a signal, or numbers against NaN or infinities. NaN: nothing was finite.
        max_error: the greatest difference.
        relative_error: the greatest difference over the greatest absolute value in the reference.
        top1: the share of rows whose greatest element is at the same place as the reference's; None if no output is a
            row of floats per sample.
        calls: the number of compared calls.
    """

    sqnr_db: float
    max_error: float
    relative_error: float
    top1: float | None = None
    calls: int = 1

    def __str__(self) -> str:
        if math.isnan(self.sqnr_db):
            return "no element is finite"
        top1 = "" if self.top1 is None else f", top-1 {100 * self.top1:.4g}%"
        return f"{decibels(self.sqnr_db)}, max error {self.max_error:.2g} ({self.relative_error:.2g} relative){top1}"


class InputOrigin(StrEnum):
    """The origin of an accuracy check's inputs, by which its figures are strong or weak evidence."""

    GIVEN = "given"
    EXAMPLE = "example"
    RANDOM = "random"

    @property
    def weakness(self) -> str:
        """Why figures on these inputs are weak evidence, for people; empty if they are not."""
        return _WEAKNESSES.get(self, "")


_WEAKNESSES = {
    InputOrigin.EXAMPLE: "the inputs are the example inputs of the export",
    InputOrigin.RANDOM: "the inputs look random",
}


@dataclass(frozen=True, slots=True)
class MethodAccuracy:
    """The error of a method's results against a reference.

    Args:
        method: the name of the method.
        reference: a description of the reference.
        figures: None if results cannot be compared; `why` then has the reason.
        why: the results that were not compared, for people.
        nan: which of the program and the reference return NaN, for people; empty without NaN.
        inputs: the origin of the inputs.
    """

    method: str
    reference: str
    figures: Accuracy | None = None
    why: str = ""
    nan: str = ""
    inputs: InputOrigin = InputOrigin.GIVEN

    def __str__(self) -> str:
        gaps = f"; not compared: {self.why}" if self.why else ""
        nan = f"; {self.nan}" if self.nan else ""
        result = self.why if self.figures is None else f"{self.figures}{gaps}{nan}"
        return f"{self.method} against {self.reference}: {result}"


@dataclass(frozen=True, slots=True)
class LayerAccuracy:
    """The error of one quantized layer against the float reference, on the first inputs of `verify`.

    Args:
        method: the method of the layer.
        node: its operator in the float program, as `quantization.nodes` names it.
        place: module path and operator, for people.
        added_db: the SQNR of its result on the inputs that it has in the float program.
        total_db: the SQNR of its result in the quantized program, with the error of the layers before it; None if
            unknown, which only a kernel or partition of the debugger may be.
    """

    method: str
    node: str
    place: str
    added_db: float
    total_db: float | None


@dataclass(frozen=True, slots=True)
class PatternReport:
    """Nodes that the backend of a partition runs as one operation.

    Args:
        name: the backend's name of the pattern, e.g. "linear, relu".
        nodes: names of the nodes, as in `NodeReport.name`.
    """

    name: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """A partition, which a delegate runs.

    Args:
        method: the method that calls it.
        name: e.g. "xnnpack_0".
        backend: the backend that runs it.
        nodes: names of its nodes that compute, as in `NodeReport.name`.
        bytes_in, bytes_out: bytes of its inputs and outputs in one call, without constants, at the sizes of the export.
        copied_in, copied_out: bytes of these that are copied from and to the host; 0 if `space` is empty.
        space: the device memory that it works in, e.g. "webgpu"; empty for host memory.
        stays: the names of the nodes whose tensors stay in device memory between this partition and others.
        work: its share of the method's estimated work, 0 to 1.
        notes: the notes of the backend.
        accuracy: its error against torch on the inputs of `verify`; None if not measured.
        patterns: the pattern matches of the backend.
        seconds: the estimated seconds of a call, by the profile of a machine; 0 if its placement is not by estimates.
    """

    method: str
    name: str
    backend: str
    nodes: tuple[str, ...] = ()
    bytes_in: int = 0
    bytes_out: int = 0
    work: Amount = 0.0
    notes: tuple[str, ...] = ()
    copied_in: int = 0
    copied_out: int = 0
    space: str = ""
    stays: tuple[str, ...] = ()
    accuracy: Accuracy | None = None
    patterns: tuple[PatternReport, ...] = ()
    seconds: Amount = 0.0


class _OfMethod(Protocol):
    """A row of a method."""

    @property
    def method(self) -> str: ...


Row = TypeVar("Row", bound=_OfMethod)


def by_method(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Return method -> its rows, in their order."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.method, []).append(row)
    return groups


def decibels(number: float) -> str:
    return "exact" if number == math.inf else f"{number:.1f} dB"
