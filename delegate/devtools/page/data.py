"""The data of the page: a report, the memory of its methods, and the times of a profile, as plain JSON values.

Names come from untrusted files. All texts of the data have escapes for characters that are not printable.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from delegate.program.memory_picture import MemoryPicture
from delegate.program.text import printable

if TYPE_CHECKING:
    from delegate.measured import Placement, PlanCost, StretchCost
    from delegate.report import Accuracy, NodeReport, PartitionReport, Report
    from delegate.runtime.profile import Timing
    from delegate.verdict import Verdict

_MOST_BLOCKS = 20_000  # of a memory picture; the largest ones


def report_data(report: Report, name: str, timings: Sequence[Timing] = ()) -> dict[str, Any]:
    """Return the data of one report.

    Args:
        report: with the memory of its methods, if it is known.
        name: of the model, for people.
        timings: of a profile, if there is one.
    """
    texts = _Pool()
    verdicts = _Verdicts(texts)
    pictures = {picture.method: picture for picture in report.memory}
    methods = [
        {
            "name": printable(method),
            "nodes": [_node(n, texts, verdicts) for n in report.nodes if n.method == method],
            "partitions": [_partition(p) for p in report.partitions if p.method == method],
            "accuracy": [
                {"reference": printable(a.reference), "why": printable(a.why), "figures": _figures(a.figures)}
                for a in report.accuracy
                if a.method == method
            ],
            "placements": [_placement(p) for p in report.placements if p.method == method],
            "memory": _memory(pictures[method]) if method in pictures else None,
            "timings": [_timing(t) for t in timings if t.method == method],
        }
        for method in report.methods
    ]
    return {
        "name": printable(name),
        "summary": [printable(line) for line in report.summary.splitlines()],
        "notes": list(map(printable, report.notes)),
        "texts": list(texts),
        "verdicts": list(verdicts),
        "methods": methods,
    }


class _Pool:
    """Texts, each stored once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers))

    def __iter__(self) -> Any:
        return map(printable, self._numbers)


class _Verdicts:
    """Verdicts, each stored once: a text of the reason, of the message and of the remedy."""

    def __init__(self, texts: _Pool) -> None:
        self._texts = texts
        self._numbers: dict[tuple[int, ...], int] = {}

    def number(self, verdict: Verdict) -> int:
        answer = ("yes, decomposed" if verdict.in_parts else "yes") if verdict else str(verdict.reason)
        row = (int(bool(verdict)), *map(self._texts.number, (answer, verdict.message, verdict.remedy)))
        return self._numbers.setdefault(row, len(self._numbers))

    def __iter__(self) -> Any:
        return iter(self._numbers)


def _node(node: NodeReport, texts: _Pool, verdicts: _Verdicts) -> list[Any]:
    """Return a row: name, operator, backend, partition, result, source, module, work, time, bytes, inputs, verdicts."""
    own = (node.op, node.backend, node.partition, node.result, node.source, node.module)
    asked = [[texts.number(backend), verdicts.number(verdict)] for backend, verdict in node.verdicts.items()]
    return [
        printable(node.name),
        *map(texts.number, own),
        _share(node.work),
        _share(node.time),
        node.nbytes,
        list(map(printable, node.inputs)),
        asked,
    ]


def _partition(partition: PartitionReport) -> dict[str, Any]:
    return {
        "name": printable(partition.name),
        "backend": printable(partition.backend),
        "nodes": len(partition.nodes),
        "bytesIn": partition.bytes_in,
        "bytesOut": partition.bytes_out,
        "copiedIn": partition.copied_in,
        "copiedOut": partition.copied_out,
        "space": printable(partition.space),
        "work": _share(partition.work),
        "notes": list(map(printable, partition.notes)),
        "accuracy": _figures(partition.accuracy),
    }


def _figures(accuracy: Accuracy | None) -> dict[str, Any] | None:
    if accuracy is None:
        return None
    return {"sqnr": _number(accuracy.sqnr_db), "text": str(accuracy), "calls": accuracy.calls}


def _placement(placement: Placement) -> dict[str, Any]:
    return {
        "objective": printable(placement.objective),
        "chosen": printable(placement.chosen),
        "plans": [_plan(p) for p in placement.plans],
        "segments": [_segment(s) for s in placement.stretches],
        "notTried": list(map(printable, placement.not_tried)),
        "machine": printable(placement.machine),
        "busy": printable(placement.busy),
    }


def _plan(plan: PlanCost) -> dict[str, Any]:
    return {
        "name": printable(plan.name),
        "partitions": plan.partitions,
        "cost": None if plan.cost is None else _number(plan.cost),
        "rounds": plan.rounds,
        "against": _interval(plan),
        "sqnr": None if plan.sqnr_db is None else _number(plan.sqnr_db),
        "why": printable(plan.why),
    }


def _segment(segment: StretchCost) -> dict[str, Any]:
    return {
        "name": printable(segment.name),
        "candidate": printable(segment.candidate),
        "nodes": segment.nodes,
        "cost": None if segment.seconds is None else _number(segment.seconds),
        "runnerUp": printable(segment.runner_up),
        "against": _interval(segment),
    }


def _interval(row: PlanCost | StretchCost) -> list[float | str] | None:
    ratio = row.against
    return None if ratio is None else [_number(ratio.ratio), _number(ratio.low), _number(ratio.high)]


def _memory(picture: MemoryPicture) -> dict[str, Any]:
    blocks = sorted(picture.blocks, key=lambda block: -block.size)
    return {
        "spaces": list(map(printable, picture.spaces)),
        "arenas": list(picture.arenas),
        "steps": picture.steps,
        "blocks": [[printable(b.name), *b[1:]] for b in blocks[:_MOST_BLOCKS]],
        "more": len(blocks[_MOST_BLOCKS:]),
        "constants": _sized(picture.constants),
        "delegates": _sized(picture.delegates),
    }


def _sized(rows: Iterable[tuple[str, int]]) -> list[list[Any]]:
    return [[printable(name), size] for name, size in sorted(rows, key=lambda row: -row[1])]


def _timing(timing: Timing) -> dict[str, Any]:
    return {
        "name": printable(timing.name),
        "what": printable(timing.what),
        "source": printable(timing.source),
        "count": timing.count,
        "kind": timing.kind,
        "perRun": timing.per_run,
        "first": timing.first,
    }


def _share(share: float) -> float:
    """Return a share with the digits that people read."""
    return float(f"{share:.4g}")


def _number(number: float) -> float | str:
    """Return a number as JSON holds it: infinities and NaN are text."""
    return number if math.isfinite(number) else str(number)
