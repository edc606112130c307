"""Profiles: listeners that count the runs of every instruction, and measure their time."""

from __future__ import annotations

import html
import math
import statistics
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from delegate.common.text_table import Table, printable
from delegate.events import SerialCalls
from delegate.events.kinds import BoundInstruction, Event, InstructionRun, Kind, OperatorRun
from delegate.plugins import PORTABLE

_SAMPLES = 1024  # the last runs of an instruction, of which the median is taken
_TITLES = ("method", "value", "what", "runs", "total us", "share", "warm-ups", "warm-up us", "mean us", "median us")
_HEADER = (*_TITLES, "least us", "module", "source")


@dataclass(slots=True)
class Durations:
    """The durations of runs, in bounded memory.

    Args:
        count: the number of runs.
        total: the sum of their nanoseconds.
        minimum: the least of them.
    """

    count: int = 0
    total: int = 0
    minimum: int = 0
    _last: deque[int] = field(default_factory=lambda: deque(maxlen=_SAMPLES))

    def add(self, nanoseconds: int) -> None:
        """Add a run."""
        self.minimum = min(nanoseconds, self.minimum) if self.count else nanoseconds
        self.count += 1
        self.total += nanoseconds
        self._last.append(nanoseconds)

    @property
    def mean(self) -> float:
        """The mean nanoseconds of a run; 0 without runs."""
        return self.total / max(self.count, 1)

    @property
    def median(self) -> float:
        """The median nanoseconds of a run; of the last 1,024 if there are more."""
        return statistics.median(self._last or [0])


@dataclass(slots=True)
class Timing:
    """The runs of an instruction, or of a vendor library's operator.

    The first run after each binding of an instruction is a warm-up run, as is the first run of a library's operator.
    The mean, the median and the minimum cover the other runs, if there are any.

    Args:
        method: the name of its method; of a library's operator empty.
        name: its first result; of a library's operator the library's name of the node.
        what: its operator, partition, or kind of control flow. The time of control flow includes its blocks.
        source: the user's own line; empty if unknown.
        module: path of the user's module; empty if unknown.
        kind: The instruction's kind.
        library: the kernel library of a kernel; else empty.
        warm_up: the warm-up runs.
        later: the other runs.
    """

    method: str
    name: str
    what: str
    source: str = ""
    module: str = ""
    kind: Kind = "kernel"
    library: str = ""
    warm_up: Durations = field(default_factory=Durations)
    later: Durations = field(default_factory=Durations)

    def add(self, nanoseconds: int, *, is_warm_up: bool = False) -> None:
        """Add a completed run."""
        (self.warm_up if is_warm_up else self.later).add(nanoseconds)

    @property
    def count(self) -> int:
        """The number of all runs."""
        return self.warm_up.count + self.later.count

    @property
    def nanoseconds(self) -> int:
        """The nanoseconds of all runs."""
        return self.warm_up.total + self.later.total

    @property
    def per_run(self) -> float:
        """The mean nanoseconds of a run, without warm-up runs if there are others."""
        return self._typical.mean

    @property
    def median(self) -> float:
        """The median nanoseconds of a run, without warm-up runs if there are others; see `Durations.median`."""
        return self._typical.median

    @property
    def minimum(self) -> int:
        """The least nanoseconds of a run, without warm-up runs if there are others."""
        return self._typical.minimum

    @property
    def _typical(self) -> Durations:
        return self.later if self.later.count else self.warm_up

    def to_json(self) -> dict[str, Any]:
        """Return all figures, by name."""
        names = ("method", "name", "what", "source", "module", "kind", "library", "count", "nanoseconds")
        figures = {name: getattr(self, name) for name in (*names, "per_run", "median", "minimum")}
        return {**figures, "warm_ups": self.warm_up.count, "warm_up_nanoseconds": self.warm_up.total}


class Profile:
    """A listener that counts the runs of instructions, and measures their time.

    Views that cost nothing at run time have no timing. A copy that an instruction needs of an input or a result has its
    own timing. The memory of a profile is bounded by the number of instructions.
    """

    def __init__(self) -> None:
        self._timings: dict[str, Timing] = {}
        self._operators: dict[str, dict[tuple[str, str], Timing]] = {}  # by partition, and name and operator
        self._calls = SerialCalls()  # contexts may run in several threads

    def __repr__(self) -> str:
        timings = self.timings
        runs, spent = sum(t.count for t in timings), sum(t.nanoseconds for t in timings if t.kind != "control flow")
        return f"<Profile of {len(timings)} instructions, {runs} runs in {spent / 1e6:.3g} ms>"

    def __call__(self, event: Event) -> None:
        """Add a run of an instruction or of a library's operator; other events do not count."""
        if isinstance(event, InstructionRun | OperatorRun):
            self._calls.call(self._add, event)

    def _add(self, event: InstructionRun | OperatorRun) -> None:
        if isinstance(event, InstructionRun):
            timing = self._timings.get(event.instruction.id) or self._new(event.instruction)
            timing.add(event.duration, is_warm_up=event.is_warm_up)
            return
        operators = self._operators.setdefault(event.partition, {})
        key = event.name, event.what
        is_first = key not in operators
        if is_first:
            operators[key] = Timing("", event.name, event.what)
        operators[key].add(event.duration, is_warm_up=is_first)

    def _new(self, instruction: BoundInstruction) -> Timing:
        i = instruction
        timing = self._timings[i.id] = Timing(i.method, i.name, i.what, i.source, i.module, i.kind, i.library)
        return timing

    @property
    def timings(self) -> tuple[Timing, ...]:
        """The timings of every instruction that ran, the slowest first."""
        return _by_time(self._timings.values())

    def operators_of(self, timing: Timing) -> tuple[Timing, ...]:
        """Return the timings of the vendor library's operators in a partition, the slowest first.

        They are complete after the block of a profile with `inner`. None are known of other instructions, and of
        libraries that do not report them.
        """
        name = timing.what.removeprefix("partition ") if timing.kind == "partition" else ""
        return _by_time(self._operators.get(name, {}).values())

    def portable_shares(self) -> dict[str, float]:
        """Return the share of portable kernels in the time of all instructions, 0 to 1, by method that ran.

        Each instruction counts its runs times `per_run`, which leaves out warm-up runs if there are others. The time of
        control flow is the time of its instructions.
        """
        spent: dict[str, dict[Kind, float]] = {}
        for t in self.timings:
            if t.kind != "control flow":
                own = spent.setdefault(t.method, {})
                own[t.kind] = own.get(t.kind, 0.0) + t.count * t.per_run
        totals = {method: math.fsum(own.values()) for method, own in spent.items()}
        return {method: spent[method].get("kernel", 0.0) / total for method, total in totals.items() if total}

    def table(self) -> Table:
        """Return the timings as a table for people, which `str` formats.

        A profile without runs has one row, which states that. `share` is the part of an instruction in the time of all
        instructions, by its runs times the mean. `mean us`, `median us` and `least us` exclude warm-up runs if there
        are others, and operators of a vendor library follow their partition. Kernels of other libraries than `portable`
        have the name of the library.
        """
        nothing = ("nothing ran", *[""] * (len(_HEADER) - 1))
        return Table(_HEADER, tuple(self._rows()) or (nothing,))

    def _rows(self) -> Iterator[tuple[str, ...]]:
        timings = self.timings
        total = math.fsum(t.count * t.per_run for t in timings if t.kind != "control flow")
        for t in timings:
            yield _row(t, total)
            for inner in self.operators_of(t):
                yield _row(inner, total, "  ")

    def to_json(self) -> list[dict[str, Any]]:
        """Return all figures of every instruction that ran, and of its vendor library's operators if they are known."""
        return [self._figures(timing) for timing in self.timings]

    def _figures(self, timing: Timing) -> dict[str, Any]:
        inner = self.operators_of(timing)
        return timing.to_json() | ({"operators": [t.to_json() for t in inner]} if inner else {})

    def _repr_html_(self) -> str:
        """Return the table, for notebooks."""
        text = "\n".join(map(printable, str(self.table()).splitlines()))
        return f"<pre>{html.escape(text)}</pre>"


def _by_time(timings: Iterable[Timing]) -> tuple[Timing, ...]:
    return tuple(sorted((t for t in timings if t.count), key=lambda t: -t.nanoseconds))


def _row(t: Timing, total: float, indent: str = "") -> tuple[str, ...]:
    share = f"{t.count * t.per_run / total:.1%}" if total else ""
    times = (f"{t.per_run / 1e3:.2f}", f"{t.median / 1e3:.2f}", f"{t.minimum / 1e3:.2f}")
    runs = (str(t.count), f"{t.nanoseconds / 1e3:.1f}", share, str(t.warm_up.count), f"{t.warm_up.total / 1e3:.1f}")
    what = f"{t.what} ({t.library})" if t.library not in ("", PORTABLE) else t.what
    return (t.method, t.name, f"{indent}{what}", *runs, *times, t.module, t.source)
