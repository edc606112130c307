"""Answers of the process of a compiler as JSON.

Each pair of functions encodes there and decodes here. That process may be damaged, so all that it sends is checked.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from delegate import errors
from delegate.backends.aot import Claim, PreprocessResult, RegionFailed, RegionGivenUp, RegionRefused
from delegate.errors import DelegateError
from delegate.plain_data import count, flag, items, mapping, text, texts
from delegate.verdict import Reason, Verdict

Decode = Callable[[Any], Any]

MAKE = "make"  # the query that needs no other answer than that the AOT part is made

SENT_ERRORS = (DelegateError, RegionRefused, RegionFailed)


def encode_error(error: Exception) -> dict[str, Any]:
    """Return one of `SENT_ERRORS` as JSON."""
    match error:
        case RegionRefused():
            return {"refused": error.reasons, "given_up": isinstance(error, RegionGivenUp)}
        case RegionFailed():
            return {"failed": error.reason}
        case _:
            assert isinstance(error, DelegateError)
            kind = type(error.at("")).__name__  # a class that the other process has
            return {"error": kind, "what": error.what, "where": error.where, "remedy": error.remedy}


def decode_error(data: Mapping[str, Any]) -> Exception:
    """Return the error that was encoded; raises ValueError, KeyError or TypeError for anything else."""
    if "refused" in data:
        return (RegionGivenUp if flag(data, "given_up") else RegionRefused)(mapping(data, "refused"))
    if "failed" in data:
        return RegionFailed(text(data, "failed"))
    kind = getattr(errors, text(data, "error"), None)
    if not (isinstance(kind, type) and issubclass(kind, DelegateError)):
        raise ValueError("error")
    return kind(text(data, "what"), where=text(data, "where"), remedy=text(data, "remedy"))


def encode_verdict(verdict: Verdict) -> dict[str, Any]:
    """Return a backend's verdict as JSON."""
    reason = None if verdict.reason is None else verdict.reason.value
    return {"reason": reason, "message": verdict.message, "remedy": verdict.remedy, "tag": verdict.tag}


def decode_verdict(data: Mapping[str, Any]) -> Verdict:
    """Return the verdict that was encoded."""
    reason = None if data["reason"] is None else Reason(text(data, "reason"))
    return Verdict(reason, text(data, "message"), text(data, "remedy"), text(data, "tag"))


def encode_claims(claims: Sequence[Claim]) -> list[dict[str, Any]]:
    """Return claims as JSON, with nodes by name."""
    return [{"name": c.name, "nodes": [n.name for n in c.nodes], "verdict": encode_verdict(c.verdict)} for c in claims]


def decode_claims(rows: Any) -> list[tuple[str, tuple[str, ...], Verdict]]:
    """Return name, names of nodes and verdict of each claim."""
    return [
        (text(row, "name"), texts(row, "nodes"), decode_verdict(mapping(row, "verdict")))
        for row in items({"claims": rows}, "claims")
    ]


def encode_result(result: PreprocessResult) -> tuple[dict[str, Any], list[memoryview]]:
    """Return a compiled region as JSON, and the bytes that go with it."""
    segments = [memoryview(part).cast("B") for part in (result.blob, *result.data)]
    data = {"compile_specs": result.compile_specs, "notes": list(result.notes), "space": result.space}
    return {**data, "segments": [{"size": len(segment)} for segment in segments]}, segments


def decode_result(data: Mapping[str, Any], content: bytes) -> PreprocessResult:
    """Return the compiled region; `content` has the bytes of all segments, one after another."""
    sizes = [count(row, "size") for row in items(data, "segments")]
    if sum(sizes) != len(content):
        raise ValueError("segments")
    ends, whole = itertools.accumulate(sizes), memoryview(content)
    blob, *parts = (whole[end - size : end] for end, size in zip(ends, sizes, strict=True))
    specs, notes, space = mapping(data, "compile_specs"), texts(data, "notes"), text(data, "space")
    return PreprocessResult(blob, specs, notes, space, tuple(parts))
