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
    """Return the data of one report: the rows of its JSON by method, and the nodes with each text and verdict once.

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
    found: Row = diagnosis or {"faults": (), "errors": (), "layers": ()}
    rows = {
        "partitions": _by_method({**p, "nodes": len(p["nodes"]), "patterns": ()} for p in report["partitions"]),
        "accuracy": _by_method(report["accuracy"]),
        "layers": _by_method(found["layers"]) | _by_method(report["layers"]),
        "placements": _by_method(report["placements"]),
        "faults": _by_method({**fault, "remedy": fault["remedy"].splitlines()} for fault in found["faults"]),
        "errors": _by_method(found["errors"]),
        "timings": _by_method(timings),
    }
    nodes = _by_method(report["nodes"])
    methods = [
        {
            "name": printable(method),
            "nodes": [_node(n, texts, verdicts) for n in nodes.get(method, ())],
            "memory": _memory(pictures[method]) if method in pictures else None,
            **{key: _escape(of.get(method, ())) for key, of in rows.items()},
        }
        for method in report["methods"]
    ]
    sentences = None if diagnosis is None else [*diagnosis["not_finite"], *diagnosis["notes"]]
    return {
        "name": printable(name),
        "summary": _escape(list(summary)),
        "notes": _escape(report["notes"]),
        "diagnosis": None if diagnosis is None else _escape({"figures": diagnosis["figures"], "sentences": sentences}),
        "texts": list(texts),
        "verdicts": list(verdicts),
        "methods": methods,
    }


def _by_method(rows: Iterable[Row]) -> dict[str, list[Row]]:
    methods: dict[str, list[Row]] = {}
    for row in rows:
        methods.setdefault(row["method"], []).append(row)
    return methods


def _escape(value: Any) -> Any:
    """Return JSON data whose texts have escapes."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {printable(key): _escape(item) for key, item in value.items()}
    return [_escape(item) for item in value] if isinstance(value, list | tuple) else value


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
    shares = map(_round, (node["work"], node["time"]))
    return [printable(node["name"]), *map(texts.number, own), *shares, node["nbytes"], _escape(node["inputs"]), asked]


def _round(share: float | str) -> float:
    """Return a share with the digits that people read; 0 for a forged one, such as NaN."""
    return float(f"{share:.4g}") if isinstance(share, float) else 0.0


def _memory(picture: MemoryPicture) -> dict[str, Any]:
    blocks = sorted(picture.blocks, key=lambda block: -block.size)
    data = {
        "spaces": picture.spaces,
        "arenas": picture.arenas,
        "steps": picture.steps,
        "blocks": blocks[:_MOST_BLOCKS],
        "more": len(blocks[_MOST_BLOCKS:]),
        "constants": sorted(picture.constants, key=lambda row: -row[1]),
        "delegates": sorted(picture.delegates, key=lambda d: -d.blob - d.weights),
        "peaks": picture.peaks,
    }
    return {key: _escape(value) for key, value in data.items()}
