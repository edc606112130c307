"""Sweep every operator of every backend for differences from torch, and hold them against the tables of deviations.

    python -m tests.deviations.run [BACKEND ...]        or `make deviations BACKENDS="openvino xnnpack"`

Each case is run in a child process, and its records are appended to build/deviations.jsonl. A later run continues there
unless versions have changed. At the end it prints differences without a row, kept rows that no case shows any more, and
rejections and rewrites that the library no longer needs (`tests.support.probes`); the exit code is 1 if there are any.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from delegate.backend.deviations import Deviation, Handling, deviations_of
from delegate.plugins import PORTABLE, PluginState
from delegate.registry import default_registry
from tests.deviations import sweep
from tests.support import probes
from tests.support.children import run_cases

_FILE = Path("build/deviations.jsonl")
_SECONDS = 60.0  # of the processor for a case
_ADDRESSES = 64 << 30  # a compiler of GPU code reserves much
Record = Mapping[str, Any]


def main(backends: Iterable[str]) -> int:
    registry = default_registry()
    named = list(backends) or [PORTABLE, *(n for n in registry.names() if registry.resolve(n) == n)]
    available = [n for n in named if n == PORTABLE or registry.state(n).state is PluginState.OK]
    for absent in set(named) - set(available):
        print(f"{absent} is not available here: {registry.state(absent).detail}")
    _FILE.parent.mkdir(exist_ok=True)
    names, findings = sweep.names(), 0
    for backend in available:
        versions = _versions(backend)
        done = {r["case"] for r in _records(backend, versions) if "operators" in r or r.get("kind") == "end"}
        todo = [number for number, name in enumerate(names) if name not in done]

        def case(number: int, backend: str = backend, versions: str = versions) -> None:
            for record in sweep.records(names[number], backend):
                _write(backend, versions, names[number], record)

        for finding in run_cases(case, iter(todo), seconds=_SECONDS, address_space=_ADDRESSES):
            _write(backend, versions, names[finding.case], {"kind": "end", "result": finding.what})
        findings += _summarize(backend, list(_records(backend, versions)))
    return int(findings > 0)


def _versions(backend: str) -> str:
    availability = None if backend == PORTABLE else default_registry().state(backend).availability
    versions = availability.versions if availability else {}
    return " ".join(f"{name} {version}" for name, version in sorted((*versions.items(), ("torch", torch.__version__))))


def _write(backend: str, versions: str, case: str, record: Record) -> None:
    line = json.dumps({"backend": backend, "versions": versions, "case": case, **record})
    with _FILE.open("a") as file:
        file.write(f"{line}\n")


def _records(backend: str, versions: str) -> Iterator[dict[str, Any]]:
    if _FILE.is_file():
        for line in _FILE.read_text().splitlines():
            record = json.loads(line)
            if (record["backend"], record["versions"]) == (backend, versions):
                yield record


def compare(rows: Sequence[Deviation], records: Sequence[Record]) -> tuple[list[Record], list[Deviation]]:
    """Return the differences that have no row, one for each case, group and kind, and the rows that nothing shows."""
    shown: set[Deviation] = set()
    unknown: dict[tuple[str, str, str], Record] = {}
    operators = {r["case"]: r["operators"] for r in records if "operators" in r}
    for record in (r for r in records if "kind" in r):
        seen = {record.get("points"), record["kind"], record.get("dtype")}
        ran = [sweep.operator_of(record["case"]), *operators.get(record["case"], ())]
        known = {d for operator in ran for d in deviations_of(rows, operator) if seen & set(d.points)}
        shown |= known
        if not known:
            unknown.setdefault((record["case"], record.get("points", ""), record["kind"]), record)
    swept = _swept(records)
    lifted: dict[str, list[bool]] = defaultdict(list)
    for record in (r for r in records if "row" in r):
        lifted[record["row"]].append(record["differs"])
    gone = [
        row
        for row in rows
        if (row.points and row not in shown and any(deviations_of([row], operator) for operator in swept))
        or (row.handling is Handling.REJECTED and lifted[row.message] and not any(lifted[row.message]))
    ]
    return list(unknown.values()), gone


def _swept(records: Sequence[Record]) -> set[str]:
    """Return the operators that the backend ran."""
    return {operator for r in records for operator in r.get("operators", ())}


def _summarize(backend: str, records: Sequence[Record]) -> int:
    """Print what a backend's table lacks and what it no longer needs, and return how much that is."""
    unknown, gone = compare(sweep.table(backend), records)
    gone += probes.needless(backend, sweep.table(backend))
    swept = len(_swept(records))
    print(f"\n{backend}: {swept} operators swept, {len(unknown)} differences without a row, {len(gone)} rows gone")
    for record in unknown:
        where = {True: "the library", False: "ours"}.get(record.get("theirs"), "")
        error = f"{record.get('dtype', '')} {record.get('error', 0):.2g}"
        print(f"  {record['case']}: {record.get('points', '')}, {record['kind']} {error}: ", end="")
        print(f"{record['result']} for {record.get('expected', 'a result')} {where}".rstrip())
    for row in gone:
        print(f"  no longer seen: {row.message} ({row.handling})")
    return len(unknown) + len(gone)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
