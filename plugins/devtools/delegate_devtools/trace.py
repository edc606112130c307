"""Traces: files of events that ui.perfetto.dev and chrome://tracing open.

Format: "Trace Event Format" of the Chromium project, as JSON,
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
import mmap
import os
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Self

from delegate.common.files import PathLike, replacing, require_file
from delegate.errors import InputError
from delegate.events import SerialCalls
from delegate.events.kinds import (
    BoundInstruction,
    Compiled,
    DelegateOpened,
    Event,
    InstructionRun,
    MethodRun,
    OperatorRun,
    PassRun,
    Planned,
    ProgramLoaded,
    StageRun,
    SupportChecked,
)

_LOWERING, _LOADING, _CALLS, _PORTABLE = "lowering", "loading", "calls", "portable"  # tracks that are no backend's
_BATCH, _SEPARATOR = 256, ",\n"  # events are written in batches, which is faster
_NANOSECONDS = tuple(f".{i:03}" for i in range(1000))  # of a microsecond, as text
_STATM = "/proc/self/statm"  # of Linux: its second number is the count of resident pages


class _Known(NamedTuple):
    """An instruction in a thread: the text that all its events begin with, its track, and what arrows need."""

    text: str
    track: int
    is_partition: bool
    method: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]


class _Thread:
    """The name of a thread, its tracks by name, and the instructions that ran in it by `id`."""

    __slots__ = ("known", "name", "tracks")

    def __init__(self) -> None:
        self.name = threading.current_thread().name
        self.tracks: dict[str, int] = {}
        self.known: dict[str, _Known] = {}


class _Current(threading.local):
    """The current thread."""

    def __init__(self) -> None:
        self.thread = _Thread()


# The last instruction that wrote a value: its start, its track, and if it was a partition.
_Write = tuple[int, int, bool]


class Trace:
    """A listener that writes a trace file, which replaces an old one at the end of the block, unless that failed.

    Events are collected and written in batches, so memory does not grow with the calls. Each thread has a track for
    calls, one for portable kernels, and one for each backend. Arrows lead from an instruction to its readers on other
    tracks if one of both is a partition. Counters show the resident memory of the process and the bytes of opened
    artifacts.

    Example::

        with Trace("trace.json") as trace, delegate.listen(trace):
            program = delegate.load("model.dlg")
            with program.listen(trace):
                program(x)

    Args:
        path: Where the file is written.

    Raises:
        InputError: the file cannot be written.
    """

    def __init__(self, path: PathLike) -> None:
        require_file(path, "the trace", InputError)
        self._path, self._stack = path, ExitStack()
        self._process, self._zero = os.getpid(), time.perf_counter_ns()
        self._calls = SerialCalls()
        self._file: BinaryIO
        self._current, self._last_track = _Current(), 0
        self._runs: deque[tuple[_Thread, InstructionRun]] = deque()  # that are not yet text
        # In a context and method: by value.
        self._written: defaultdict[tuple[int, str], dict[int, _Write]] = defaultdict(dict)
        self._arrows = 0
        self._artifacts: Counter[str] = Counter()
        self._statm: BinaryIO | None = None
        self._resident = 0
        self._unwritten: list[str] = []
        self._separator = '{"displayTimeUnit":"ns","traceEvents":[\n'

    def __enter__(self) -> Self:
        try:
            self._file = self._stack.enter_context(replacing(os.path.realpath(self._path)))
            self._stack.callback(self._finish)  # if that fails, the file is removed
            if os.path.exists(_STATM):
                self._statm = self._stack.enter_context(open(_STATM, "rb"))
        except OSError as error:
            raise self._not_writable(error) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._stack.__exit__(kind, error, traceback)
        except OSError as failure:
            raise self._not_writable(failure) from failure

    def _finish(self) -> None:
        self._calls.call(self._write_end)

    def _write_end(self) -> None:
        self._write_runs()
        self._write({"ph": "M", "pid": self._process, "name": "process_name", "args": {"name": "delegate"}})
        self._write_batch()
        self._file.write(b"\n]}\n")

    def _not_writable(self, error: OSError) -> InputError:
        what = f"the trace cannot be written: {error.strerror or error}"
        return InputError(
            what, where=str(self._path), remedy="name a file that you may write, on a disk with free space"
        )

    def __call__(self, event: Event) -> None:
        """Write an event."""
        thread = self._current.thread
        if type(event) is InstructionRun:
            (runs := self._runs).append((thread, event))
            if len(runs) < _BATCH:
                return
        self._calls.call(self._write_event, thread, event)

    def _write_event(self, thread: _Thread, event: Event) -> None:
        """Write the collected runs of instructions, then another event."""
        self._write_runs()
        if type(event) is InstructionRun:
            return
        track, name, details = _SLICES[type(event)](event)
        where = {"ph": "X", "pid": self._process, "tid": self._track(thread, track)}
        times = {"ts": self._microseconds(event.start), "dur": event.duration / 1000}
        self._write({**where, "name": name, **times, "cat": track, "args": details})
        if isinstance(event, MethodRun):
            self._written.pop((event.context, event.method), None)
        elif isinstance(event, DelegateOpened):
            self._artifacts[event.backend] += event.bytes
            self._add_counter("artifacts", event, self._artifacts)
        if not isinstance(event, OperatorRun) and (resident := self._resident_bytes()) != self._resident:
            self._resident = resident
            self._add_counter("resident memory", event, {"bytes": resident})

    def _write_runs(self) -> None:
        """Write the collected instruction runs as text, because this takes a tenth of the time of `_write`."""
        zero, take, add = self._zero, self._runs.popleft, self._unwritten.append
        ns, last = _NANOSECONDS, None
        for _ in range(len(self._runs)):  # other threads may add more meanwhile
            thread, (instruction, start, duration, _, context, _) = take()
            known, details = thread.known.get(instruction.id), ""
            if known is None:
                known = thread.known[instruction.id] = self._first(thread, instruction)
                details = f',"args":{_json(_details(instruction))}'
            text, track, is_partition, method, reads, writes = known
            at = start - zero
            add(f'{text},"ts":{at // 1000}{ns[at % 1000]},"dur":{duration // 1000}{ns[duration % 1000]}{details}}}')
            if (context, method) != last:
                last = context, method
                written = self._written[last]
            for value in reads:
                if value in written:
                    other, other_track, was_partition = written[value]
                    if other_track != track and (is_partition or was_partition):
                        self._add_arrow(other, other_track, start, track)
            write = start, track, is_partition
            for value in writes:
                written[value] = write
        if len(self._unwritten) >= _BATCH:
            self._write_batch()

    def _first(self, thread: _Thread, instruction: BoundInstruction) -> _Known:
        is_control_flow = instruction.kind == "control flow"
        track = self._track(thread, instruction.backend or (_CALLS if is_control_flow else _PORTABLE))
        name = instruction.what.removeprefix("partition ")
        text = _json({"ph": "X", "pid": self._process, "tid": track, "name": name, "cat": instruction.kind})
        is_partition, method = instruction.kind == "partition", instruction.method
        return _Known(text.removesuffix("}"), track, is_partition, method, instruction.reads, instruction.writes)

    def _add_arrow(self, source: int, source_track: int, target: int, target_track: int) -> None:
        """Write an arrow from the slice that starts at `source` to the one that starts at `target`."""
        self._arrows += 1
        both = {"name": "data", "cat": "data", "id": self._arrows, "pid": self._process}
        self._write({"ph": "s", **both, "tid": source_track, "ts": self._microseconds(source)})
        self._write({"ph": "f", "bp": "e", **both, "tid": target_track, "ts": self._microseconds(target)})

    def _add_counter(self, name: str, event: Any, values: Mapping[str, int]) -> None:
        at = self._microseconds(event.start + event.duration)
        self._write({"ph": "C", "pid": self._process, "name": name, "ts": at, "args": values})

    def _resident_bytes(self) -> int:
        """Return the resident memory of this process; 0 if the system does not report it."""
        if self._statm is None:
            return 0
        return int(os.pread(self._statm.fileno(), 64, 0).split()[1]) * mmap.PAGESIZE  # without opening it again

    def _track(self, thread: _Thread, name: str) -> int:
        """Return the number of a thread's track; write its name if it is new."""
        tracks = thread.tracks
        if name not in tracks:
            self._last_track = tracks[name] = number = self._last_track + 1
            where = {"ph": "M", "pid": self._process, "tid": number}
            title = f"{name} ({thread.name})"
            self._write({**where, "name": "thread_name", "args": {"name": title}})
            self._write({**where, "name": "thread_sort_index", "args": {"sort_index": number}})
        return tracks[name]

    def _microseconds(self, nanoseconds: int) -> float:
        return (nanoseconds - self._zero) / 1000

    def _write(self, event: Mapping[str, Any]) -> None:
        self._unwritten.append(_json(event))
        if len(self._unwritten) >= _BATCH:
            self._write_batch()

    def _write_batch(self) -> None:
        self._file.write(f"{self._separator}{_SEPARATOR.join(self._unwritten)}".encode())
        self._separator = _SEPARATOR
        self._unwritten.clear()


def _json(data: Mapping[str, Any]) -> str:
    return json.dumps(data, separators=(",", ":"))


# Class of an event -> its track, its name there, and its details.
_SLICES: Mapping[type, Callable[[Any], tuple[str, str, Mapping[str, Any]]]] = {
    StageRun: lambda e: (_LOWERING, e.name, {"method": e.method} if e.method else {}),
    PassRun: lambda e: (
        _LOWERING, e.name, {"method": e.method, "nodes before": e.before, "nodes after": e.after},
    ),
    SupportChecked: lambda e: (
        e.backend, "support checks", {"method": e.method, "nodes": e.nodes, "supported": e.supported},
    ),
    Planned: lambda e: (
        _LOWERING, "plan", {"method": e.method, "nodes": dict(e.nodes), "partitions": dict(e.partitions)},
    ),
    Compiled: lambda e: (
        e.backend, f"compile {e.partition}",
        {"nodes": e.nodes, "bytes": e.bytes, "from the cache": e.is_cached, "refusal": e.refusal},
    ),
    DelegateOpened: lambda e: (e.backend, f"open {e.partition}", {"bytes": e.bytes}),
    ProgramLoaded: lambda e: (
        _LOADING, "load", {"methods": list(e.methods), "bytes": e.bytes, "bytes of arenas": e.arenas},
    ),
    MethodRun: lambda e: (_CALLS, e.method, {"context": e.context}),
    OperatorRun: lambda e: (f"operators of {e.backend}", e.what, {"partition": e.partition, "name": e.name}),
}  # fmt: skip


def _details(instruction: BoundInstruction) -> Mapping[str, Any]:
    sizes = {"bytes of inputs": instruction.input_bytes, "bytes of results": instruction.output_bytes}
    texts = {"value": instruction.name, "module": instruction.module, "source": instruction.source}
    return {**{name: text for name, text in texts.items() if text}, **sizes}
