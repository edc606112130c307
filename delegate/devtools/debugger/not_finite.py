"""The first NaN and the first infinity of a run, here and in torch, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch

from delegate.accuracy.nan import describe_node, first_node, has_infinity, has_nan, node_text
from delegate.accuracy.reference import flat_arguments
from delegate.devtools.debugger.program_run import ProgramRun
from delegate.devtools.debugger.recording import RecordedInstruction
from delegate.devtools.debugger.search import PartitionSearch

_TESTS: Mapping[str, Callable[[torch.Tensor], bool]] = {"NaN": has_nan, "infinity": has_infinity}


def not_finite(run: ProgramRun, searches: Mapping[str, PartitionSearch]) -> Iterator[str]:
    """Yield sentences on the first NaN and the first infinity, in the program and in torch, by method.

    Args:
        run: of the program.
        searches: by partition.
    """
    for name, calls in run.samples.items():
        entries = [entry for entry in run.recorder.instructions if entry.method == name]
        ep = run.model.exported[name]
        for kind, test in _TESTS.items():
            there = first_node(ep, flat_arguments(ep, calls[0].args, calls[0].kwargs), test)
            texts = (_first(entry, kind, searches.get(entry.name), is_likely=bool(there)) for entry in entries)
            here = next(filter(None, texts), "")
            if here or there:
                yield f"first {kind} here: {here or 'none'}"
                yield f"first {kind} in torch: {there or 'none'}"


def _first(entry: RecordedInstruction, kind: str, search: PartitionSearch | None, *, is_likely: bool) -> str:
    """Describe a kernel, or the first node of a partition, with such a value; empty if there is none.

    The values inside of a partition are read if its results have such a value, or if torch has one.
    """
    recorded = entry.nan if kind == "NaN" else entry.infinity
    if search is None or entry.region is None:
        return "" if recorded is None else node_text(entry.operator, entry.name, entry.source)
    call = recorded or (entry.last if is_likely else None)
    if call is None:
        return ""
    known = search.values(call)
    node = next((n for n in entry.region.calls if n.name in known and _TESTS[kind](known[n.name])), None)
    place = f"partition {entry.name} on {search.backend}"
    if node is None:
        return "" if recorded is None else place
    return f"{describe_node(node)}, in {place}"
