"""Profiles: the number of runs of every instruction, and their time."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from delegate.program.model import DelegateCall, Instruction, KernelCall, Method, Program, Ref, StorageKind
from delegate.program.text import printable
from delegate.runtime.steps import CompactStep, Step

T = TypeVar("T")

Kind = Literal["kernel", "partition", "copy", "control flow"]  # of an instruction; a copy is between devices


@dataclass(slots=True)
class Timing:
    """The runs of an instruction.

    Args:
        method: that it belongs to.
        name: its first result.
        what: its operator, partition, or kind of control flow. The time of control flow includes its blocks.
        source: the user's own line; empty where unknown.
        count: the number of completed runs.
        nanoseconds: of all these runs.
        first: nanoseconds of the first run, which fills caches and may prepare what later runs reuse.
        kind: of the instruction.
    """

    method: str
    name: str
    what: str
    source: str = ""
    count: int = 0
    nanoseconds: int = 0
    first: int = 0
    kind: Kind = "kernel"

    @property
    def per_run(self) -> float:
        """The mean nanoseconds of a run, without the first one if there are others."""
        return (self.nanoseconds - self.first) / (self.count - 1) if self.count > 1 else float(self.nanoseconds)

    def add(self, nanoseconds: int) -> None:
        """Add a run."""
        if not self.count:
            self.first = nanoseconds
        self.count += 1
        self.nanoseconds += nanoseconds


class TimedStep:
    """A step with timing."""

    __slots__ = ("clock", "failed", "step", "timings")

    def __init__(self, step: Step, timings: Sequence[Timing], clock: Callable[[], int]) -> None:
        self.step, self.timings, self.clock, self.failed = step, timings, clock, step.failed

    def __call__(self) -> None:
        start = self.clock()
        self.step()
        spent = self.clock() - start
        for timing in self.timings:
            timing.add(spent)


class Profile:
    """The number of runs of methods' instructions, and their time.

    Views that cost nothing at run time have no timing. A copy that an instruction needs of an input or a result has its
    own timing.
    """

    def __init__(self) -> None:
        self._timings: dict[tuple[str, str, tuple[int, ...], str], Timing] = {}

    @property
    def timings(self) -> tuple[Timing, ...]:
        """The timings of every instruction that ran, the slowest first."""
        ran = (t for t in self._timings.values() if t.count)
        return tuple(sorted(ran, key=lambda t: -t.nanoseconds))

    def portable_shares(self) -> dict[str, float]:
        """Return the share of portable kernels in the time of all instructions, 0 to 1, by method that ran.

        Each instruction counts its runs times `per_run`: the first run is left out if there are others. The time of
        control flow is that of its instructions.
        """
        spent: dict[str, dict[Kind, float]] = {}
        for t in self.timings:
            if t.kind != "control flow":
                own = spent.setdefault(t.method, {})
                own[t.kind] = own.get(t.kind, 0.0) + t.count * t.per_run
        totals = {method: math.fsum(own.values()) for method, own in spent.items()}
        return {method: spent[method].get("kernel", 0.0) / total for method, total in totals.items() if total}

    def table(self) -> str:
        """Return the timings as a table for people; `us per run` excludes the first run if there are others."""
        rows = [("method", "value", "what", "runs", "total us", "first us", "us per run", "source")]
        for t in self.timings:
            times = (f"{t.nanoseconds / 1e3:.1f}", f"{t.first / 1e3:.1f}", f"{t.per_run / 1e3:.2f}")
            rows.append((t.method, t.name, t.what, str(t.count), *times, t.source))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(r, widths, strict=True)).rstrip() for r in rows)

    def _repr_html_(self) -> str:
        """Return the table, for notebooks."""
        text = "\n".join(map(printable, self.table().splitlines()))
        return f"<pre>{html.escape(text)}</pre>"

    def timing(self, program: Program, method: Method, call: Instruction, is_copy: bool = False) -> Timing:
        """Return the timing of an instruction, or of its copy."""
        what, source = _described(program, method, call)
        if is_copy:
            what = f"copy for {what}"
        name = method.values[call.outputs[0]].name if call.outputs else ""
        timing = Timing(method.name, name, what, source, kind=_kind(method, call))
        return self._timings.setdefault((method.name, name, call.outputs, what), timing)


class Watch(Protocol):
    """An observer of the instructions of a context. Steps that are bound without one have no overhead."""

    def watched(self, program: Program, method: Method, call: Instruction, steps: Iterable[Step]) -> list[Step]:
        """Return the steps of an instruction, wrapped."""

    def run(self, program: Program, method: Method, call: Instruction, function: Callable[..., T], *args: Any) -> T:
        """Return the result of an instruction's function that is no step."""


class Stopwatch(NamedTuple):
    """The active profiles of a context.

    Args:
        profiles: each counts all runs.
        clock: nanoseconds.
    """

    profiles: tuple[Profile, ...]
    clock: Callable[[], int]

    def watched(self, program: Program, method: Method, call: Instruction, steps: Iterable[Step]) -> list[Step]:
        """Return the steps of an instruction, timed."""
        return [
            TimedStep(
                step,
                [p.timing(program, method, call, isinstance(step, CompactStep)) for p in self.profiles],
                self.clock,
            )
            for step in steps
        ]

    def run(self, program: Program, method: Method, call: Instruction, function: Callable[..., T], *args: Any) -> T:
        """Return the result of an instruction's function that is no step, timed."""
        start = self.clock()
        result = function(*args)
        spent = self.clock() - start
        for profile in self.profiles:
            profile.timing(program, method, call).add(spent)
        return result


def _kind(method: Method, call: Instruction) -> Kind:
    """Return the kind of an instruction, which is also that of the copies that it needs."""
    if isinstance(call, KernelCall):
        values = (*call.outputs, *(arg.index for arg in call.args if isinstance(arg, Ref)))
        stored = (method.values[i].storage for i in values)
        is_across = any(storage.kind is StorageKind.ARENA and storage.index > 0 for storage in stored)
        return "copy" if is_across else "kernel"
    return "partition" if isinstance(call, DelegateCall) else "control flow"


def _described(program: Program, method: Method, call: Instruction) -> tuple[str, str]:
    """Return a description of an instruction, and the user's line."""
    if isinstance(call, KernelCall):
        return program.operators[call.operator], method.sources[call.source] if call.source >= 0 else ""
    if isinstance(call, DelegateCall):
        return f"partition {program.delegates[call.delegate].name}", ""
    return call.kind.name.lower(), ""
