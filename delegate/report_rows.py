"""The rows of a report: nodes, partitions and figures, with their readers from JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from delegate.field_checks import number, text
from delegate.plugins import PORTABLE
from delegate.verdict import Reason, Verdict


@dataclass(frozen=True, slots=True)
class NodeReport:
    """The backend of one node, and the verdicts of others.

    Args:
        method: the method of the node.
        name: of the node; in a graph of control flow prefixed by the graph's name, e.g. "true_graph_0.relu".
        op: its operator, e.g. "aten.add.Tensor".
        backend: the backend that runs it, or "portable".
        partition: name of its partition; empty if portable.
        verdicts: backend -> its verdict.
        result: dtype and shape of the result, e.g. "float32[1, 8]".
        source: the user's own line; empty if unknown.
        module: path of the user's module; empty if unknown.
        work: its share of the method's estimated operations, 0 to 1.
        time: its share of the method's estimated time, 0 to 1, with all partitions on one CPU core; 0 in reports of
            earlier versions.
        inputs: the names of the nodes, inputs, constants and states that it reads; those that are no nodes begin with
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
    work: float = 0.0
    time: float = 0.0
    inputs: tuple[str, ...] = ()
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The error of results against a reference, the worst of several outputs; see docs/reference/accuracy.md.

    Args:
        sqnr_db: the reference's power over that of the difference, in decibels. Infinite: no difference. Minus
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


@dataclass(frozen=True, slots=True)
class MethodAccuracy:
    """The error of the results of a method against a reference.

    Args:
        method: the name of the method.
        reference: a description of the reference.
        figures: None if results cannot be compared; `why` then has the reason.
        why: the results that were not compared, for people.
        nan: the first nodes that return NaN in the program and in the reference, for people; empty without NaN.
    """

    method: str
    reference: str
    figures: Accuracy | None = None
    why: str = ""
    nan: str = ""

    def __str__(self) -> str:
        gaps = f"; not compared: {self.why}" if self.why else ""
        nan = f"; {self.nan}" if self.nan else ""
        result = self.why if self.figures is None else f"{self.figures}{gaps}{nan}"
        return f"{self.method} against {self.reference}: {result}"


@dataclass(frozen=True, slots=True)
class LayerAccuracy:
    """The error of one quantized layer against the float reference, on the first of the inputs of `verify`.

    Args:
        method: the method of the layer.
        node: its operator in the float program, as `quantization.nodes` names it.
        place: module path and operator, for people.
        added_db: the SQNR of its result on the inputs that it has in the float program.
        total_db: the SQNR of its result in the quantized program, with the error of the layers before it.
    """

    method: str
    node: str
    place: str
    added_db: float
    total_db: float


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
    """

    method: str
    name: str
    backend: str
    nodes: tuple[str, ...] = ()
    bytes_in: int = 0
    bytes_out: int = 0
    work: float = 0.0
    notes: tuple[str, ...] = ()
    copied_in: int = 0
    copied_out: int = 0
    space: str = ""
    stays: tuple[str, ...] = ()
    accuracy: Accuracy | None = None
    patterns: tuple[PatternReport, ...] = ()


def decibels(number: float) -> str:
    return "exact" if number == math.inf else f"{number:.1f} dB"


def accuracy_of(data: Mapping[str, Any] | None) -> Accuracy | None:
    """Return figures from their JSON form; raises KeyError, TypeError or ValueError."""
    if data is None:
        return None
    top1 = data["top1"]
    figures = {key: float(data[key]) for key in ("sqnr_db", "max_error", "relative_error")}
    return Accuracy(**figures, top1=None if top1 is None else float(top1), calls=int(data["calls"]))


def method_accuracy_of(data: Mapping[str, Any]) -> MethodAccuracy:
    texts = {key: str(data[key]) for key in ("method", "reference", "why")}
    return MethodAccuracy(**texts, figures=accuracy_of(data["figures"]), nan=str(data.get("nan", "")))


def layer_of(data: Mapping[str, Any]) -> LayerAccuracy:
    texts = {key: text(data, key) for key in ("method", "node", "place")}
    return LayerAccuracy(**texts, added_db=number(data, "added_db"), total_db=number(data, "total_db"))


def node_of(data: Mapping[str, Any]) -> NodeReport:
    verdicts = {str(backend): _verdict(v) for backend, v in data["verdicts"].items()}
    texts = {
        key: str(data[key]) for key in ("method", "name", "op", "backend", "partition", "result", "source", "module")
    }
    return NodeReport(
        **texts,
        verdicts=verdicts,
        work=float(data["work"]),
        time=float(data.get("time", 0.0)),
        inputs=tuple(map(str, data.get("inputs", ()))),
        nbytes=int(data.get("nbytes", 0)),
    )


def _verdict(data: Mapping[str, Any]) -> Verdict:
    reason = None if data["reason"] is None else Reason(data["reason"])
    return Verdict(
        reason,
        str(data["message"]),
        str(data["remedy"]),
        str(data["tag"]),
        bool(data.get("in_parts", False)),
    )


def partition_of(data: Mapping[str, Any]) -> PartitionReport:
    return PartitionReport(
        method=str(data["method"]),
        name=str(data["name"]),
        backend=str(data["backend"]),
        nodes=tuple(map(str, data["nodes"])),
        bytes_in=int(data["bytes_in"]),
        bytes_out=int(data["bytes_out"]),
        work=float(data["work"]),
        notes=tuple(map(str, data["notes"])),
        copied_in=int(data.get("copied_in", 0)),
        copied_out=int(data.get("copied_out", 0)),
        space=str(data.get("space", "")),
        stays=tuple(map(str, data.get("stays", ()))),
        accuracy=accuracy_of(data.get("accuracy")),
        patterns=tuple(PatternReport(text(p, "name"), tuple(map(str, p["nodes"]))) for p in data.get("patterns", ())),
    )
