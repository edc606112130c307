"""The data of the page: a report, the memory of its methods, and the times of a profile, as the page reads them.

Names come from untrusted files, so all texts of the data have escapes for characters that are not printable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from delegate.common.text_table import printable
from delegate.program.memory_picture import MemoryPicture

_MOST_BLOCKS = 20_000  # of a memory picture; the largest ones

Row = Mapping[str, Any]  # of the JSON of a report or of a profile


def report_data(
    report: Row,
    name: str,
    summary: Iterable[str],
    memory: Sequence[MemoryPicture] = (),
    timings: Sequence[Row] = (),
    diagnosis: Row | None = None,
) -> dict[str, Any]:
    """Return the data of one report.

    Args:
        report: the JSON of `Report.to_json`, read.
        name: The model's name, for people.
        summary: the lines below the title.
        memory: The methods' memory, if it is known.
        timings: the result of `Profile.to_json`, if there is a profile.
        diagnosis: the JSON of `Diagnosis.to_json`, read, if the debugger ran.
    """
    texts = _Pool()
    verdicts = _Verdicts(texts)
    pictures = {picture.method: picture for picture in memory}
    rows = {key: _by_method(report[key]) for key in ("nodes", "partitions", "accuracy", "layers", "placements")}
    times = _by_method(timings)
    found = {key: _by_method(() if diagnosis is None else diagnosis[key]) for key in ("faults", "errors", "layers")}
    methods = [
        {
            "name": printable(method),
            "nodes": [_node(n, texts, verdicts) for n in rows["nodes"].get(method, ())],
            "partitions": [_partition(p) for p in rows["partitions"].get(method, ())],
            "accuracy": [
                _pick(a, {"reference": "reference", "why": "why"}) | {"figures": _figures(a["figures"])}
                for a in rows["accuracy"].get(method, ())
            ],
            "layers": [_pick(row, _LAYER) for row in rows["layers"].get(method, found["layers"].get(method, ()))],
            "placements": [_placement(p) for p in rows["placements"].get(method, ())],
            "memory": _memory(pictures[method]) if method in pictures else None,
            "faults": [_fault(f) for f in found["faults"].get(method, ())],
            "errors": [_error(e) for e in found["errors"].get(method, ())],
            "timings": [_timing(t) for t in times.get(method, ())],
        }
        for method in report["methods"]
    ]
    return {
        "name": printable(name),
        "summary": _texts(summary),
        "notes": _texts(report["notes"]),
        "diagnosis": None if diagnosis is None else _diagnosis(diagnosis),
        "texts": list(texts),
        "verdicts": list(verdicts),
        "methods": methods,
    }


def _by_method(rows: Iterable[Row]) -> dict[str, list[Row]]:
    methods: dict[str, list[Row]] = {}
    for row in rows:
        methods.setdefault(row["method"], []).append(row)
    return methods


class _Pool:
    """Texts, each stored once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers))

    def __iter__(self) -> Iterator[str]:
        return map(printable, self._numbers)


class _Verdicts:
    """Verdicts, each stored once: 1 for yes, and the numbers of the answer, message and remedy texts."""

    def __init__(self, texts: _Pool) -> None:
        self._texts = texts
        self._numbers: dict[tuple[int, ...], int] = {}

    def number(self, verdict: Row) -> int:
        answer = verdict["reason"] or ("yes, decomposed" if verdict["in_parts"] else "yes")
        words = (answer, verdict["message"], verdict["remedy"])
        row = (int(verdict["reason"] is None), *map(self._texts.number, words))
        return self._numbers.setdefault(row, len(self._numbers))

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return iter(self._numbers)


def _node(node: Row, texts: _Pool, verdicts: _Verdicts) -> list[Any]:
    """Return a row: name, operator, backend, partition, result, source, module, work, time, bytes, inputs, verdicts."""
    own = (node[key] for key in ("op", "backend", "partition", "result", "source", "module"))
    asked = [[texts.number(backend), verdicts.number(verdict)] for backend, verdict in node["verdicts"].items()]
    shares = _share(node["work"]), _share(node["time"])
    name, inputs = printable(node["name"]), _texts(node["inputs"])
    return [name, *map(texts.number, own), *shares, node["nbytes"], inputs, asked]


_PARTITION = {
    "name": "name",
    "backend": "backend",
    "bytesIn": "bytes_in",
    "bytesOut": "bytes_out",
    "copiedIn": "copied_in",
    "copiedOut": "copied_out",
    "space": "space",
    "notes": "notes",
}
_FIGURES = {"sqnr": "sqnr_db", "maxError": "max_error", "relative": "relative_error", "top1": "top1", "calls": "calls"}
_LAYER = {"node": "node", "place": "place", "added": "added_db", "total": "total_db"}
_PLACEMENT = {key: key for key in ("objective", "chosen", "machine", "busy")} | {"notTried": "not_tried"}
_PLAN = {key: key for key in ("name", "partitions", "cost", "rounds", "why")} | {"sqnr": "sqnr_db"}
_TIMING = {key: key for key in ("name", "what", "source", "module", "kind", "count", "median", "minimum")} | {
    "perRun": "per_run"
}


def _pick(row: Row, keys: Mapping[str, str]) -> dict[str, Any]:
    """Return some values of a row by the names that the page has for them; texts have escapes.

    Args:
        row: the row.
        keys: name in the page -> name in the row.
    """
    return {name: _escape(row[key]) for name, key in keys.items()}


def _escape(value: Any) -> Any:
    """Return a number, a text with escapes, or a list of these."""
    if isinstance(value, str):
        return printable(value)
    return _texts(value) if isinstance(value, list) else value


def _partition(partition: Row) -> dict[str, Any]:
    figures = {"work": _share(partition["work"]), "accuracy": _figures(partition["accuracy"])}
    return {**_pick(partition, _PARTITION), "nodes": len(partition["nodes"]), **figures}


def _figures(accuracy: Row | None) -> dict[str, Any] | None:
    return None if accuracy is None else _pick(accuracy, _FIGURES)


def _error(error: Row) -> list[Any]:
    """Return a row: name, place, added and total SQNR."""
    return [_escape(error[key]) for key in ("node", "place", "added_db", "total_db")]


def _diagnosis(diagnosis: Row) -> dict[str, Any]:
    return {
        "figures": [[printable(name), _figures(figures)] for name, figures in diagnosis["figures"].items()],
        "sentences": _texts((*diagnosis["not_finite"], *diagnosis["notes"])),
    }


def _fault(fault: Row) -> dict[str, Any]:
    nodes = [[printable(node["name"]), printable(node["operator"])] for node in fault["nodes"]]
    kind = _pick(fault["kind"], {"name": "name", "explanation": "explanation"})
    remedy = _texts(fault["remedy"].splitlines())
    place = _pick(fault, {"place": "place", "partition": "partition"})
    return {**place, "remedy": remedy, "kind": kind, "nodes": nodes, "figures": _figures(fault["figures"])}


def _placement(placement: Row) -> dict[str, Any]:
    return {**_pick(placement, _PLACEMENT), "plans": [_plan(plan) for plan in placement["plans"]]}


def _plan(plan: Row) -> dict[str, Any]:
    return {**_pick(plan, _PLAN), "against": _interval(plan["against"])}


def _interval(ratio: Row | None) -> list[Any] | None:
    return None if ratio is None else [ratio["ratio"], ratio["low"], ratio["high"]]


def _memory(picture: MemoryPicture) -> dict[str, Any]:
    blocks = sorted(picture.blocks, key=lambda block: -block.size)
    return {
        "spaces": _texts(picture.spaces),
        "arenas": list(picture.arenas),
        "steps": picture.steps,
        "blocks": [[printable(b.name), *b[1:]] for b in blocks[:_MOST_BLOCKS]],
        "more": len(blocks[_MOST_BLOCKS:]),
        "constants": _size_text(picture.constants),
        "delegates": [
            [printable(d.name), printable(d.backend), *d[2:]]
            for d in sorted(picture.delegates, key=lambda d: -d.blob - d.weights)
        ],
        "peaks": [[printable(sizes), peak] for sizes, peak in picture.peaks],
    }


def _size_text(rows: Iterable[tuple[str, int]]) -> list[list[Any]]:
    return [[printable(name), size] for name, size in sorted(rows, key=lambda row: -row[1])]


def _timing(timing: Row) -> dict[str, Any]:
    return {**_pick(timing, _TIMING), "operators": [_timing(operator) for operator in timing.get("operators", ())]}


def _share(share: float | str) -> float:
    """Return a share with the digits that people read; 0 for a forged one, such as NaN."""
    return float(f"{share:.4g}") if isinstance(share, float) else 0.0


def _texts(texts: Iterable[str]) -> list[str]:
    return list(map(printable, texts))
