"""Traces: complete JSON in the trace event format, whose slices nest and whose arrows start and end in slices."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from delegate_devtools.trace import Trace
from torch import nn

import delegate
from delegate.errors import InputError
from delegate.events.kinds import BoundInstruction, InstructionRun, MethodRun
from tests.support.cases.watched import Loop, Net, X, net
from tests.support.lowering import assert_runs, assert_same, compiled

# The required keys of each kind of event, and their types; "args" has only numbers in a counter.
_TYPES = {
    "ph": str,
    "name": str,
    "pid": int,
    "tid": int,
    "ts": float,
    "dur": float,
    "id": int,
    "cat": str,
    "args": dict,
}
_KEYS = {
    "X": {"name", "pid", "tid", "ts", "dur", "cat"},
    "M": {"name", "pid", "args"},
    "C": {"name", "pid", "ts", "args"},
    "s": {"name", "cat", "id", "pid", "tid", "ts"},
    "f": {"name", "cat", "id", "pid", "tid", "ts", "bp"},
}


class Opened:
    """A trace that was read and checked.

    Attributes:
        events: all events.
        tracks: number -> name.
        slices: name of a track -> its slices, by start.
        counters: name -> values in order.
        arrows: pairs of (track, slice) names.
    """

    def __init__(self, path: Path) -> None:
        self.events: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["traceEvents"]
        for event in self.events:
            assert _KEYS[event["ph"]] <= event.keys(), event
            assert [k for k, value in event.items() if not isinstance(value, _TYPES.get(k, object))] == [], event
            assert event.get("ts", 0) >= 0
            assert event.get("dur", 0) >= 0
        names = [e for e in self.events if e["name"] == "thread_name"]
        self.tracks = {e["tid"]: e["args"]["name"] for e in names}
        assert len(names) == len(set(self.tracks.values())) == len(self.tracks)
        assert {e["pid"] for e in self.events} == {os.getpid()}
        self.slices: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for event in sorted((e for e in self.events if e["ph"] == "X"), key=lambda e: (e["ts"], -e["dur"])):
            self.slices[self.tracks[event["tid"]]].append(event)
        for slices in self.slices.values():
            _require_nesting(slices)
        self.counters: dict[str, list[Any]] = defaultdict(list)
        for event in self.events:
            if event["ph"] == "C":
                assert all(isinstance(value, int) for value in event["args"].values())
                self.counters[event["name"]].append(event["args"])
        starts, ends = ({e["id"]: e for e in self.events if e["ph"] == kind} for kind in "sf")
        assert starts.keys() == ends.keys()
        assert all(e["bp"] == "e" for e in ends.values())
        self.arrows = [(self._around(starts[i]), self._around(ends[i])) for i in starts]
        assert all(starts[i]["ts"] <= ends[i]["ts"] for i in starts)

    def _around(self, event: dict[str, Any]) -> tuple[str, str]:
        """Return the innermost slice around an end of an arrow."""
        track = self.tracks[event["tid"]]
        around = [s for s in self.slices[track] if s["ts"] <= event["ts"] <= s["ts"] + s["dur"]]
        return track.partition(" (")[0], around[-1]["name"]

    def names(self, track: str) -> list[str]:
        """Return the names of the slices of tracks that begin with a name."""
        return [s["name"] for name, slices in self.slices.items() if name.startswith(track) for s in slices]


def _require_nesting(slices: list[dict[str, Any]]) -> None:
    """Assert that each slice of a track lies inside the one around it, or after it."""
    open_: list[float] = []
    for event in slices:
        end = event["ts"] + event["dur"]
        while open_ and open_[-1] <= event["ts"]:
            open_.pop()
        assert not open_ or end <= open_[-1] + 1e-6, event
        open_.append(end)


def test_a_trace_of_everything(tmp_path):
    path = tmp_path / "trace.json"
    with Trace(path) as trace, delegate.listen(trace):
        program = delegate.to_backend(delegate.export(Net().eval(), (X,)), ["xnnpack"], cache=False)
        want = program(X)
        with program.listen(trace):
            assert_same(program(X), want)
            program(X)
    assert_runs(program, "xnnpack", {"aten.cumsum.default": 1})
    opened = Opened(path)
    assert opened.names("calls (MainThread)") == ["forward"] * 2
    assert opened.names("xnnpack (MainThread)") == [
        "support checks",
        *("compile xnnpack_0", "compile xnnpack_1", "open xnnpack_0", "open xnnpack_1"),
        *("xnnpack_0", "xnnpack_1") * 2,
    ]
    assert opened.names("portable (MainThread)") == ["aten.cumsum.default"] * 2
    assert {"lower", "export to edge", "emit", "plan", "remove_no_ops"} <= set(opened.names("lowering (MainThread)"))
    arrow_in = ("xnnpack", "xnnpack_0"), ("portable", "aten.cumsum.default")
    arrow_out = ("portable", "aten.cumsum.default"), ("xnnpack", "xnnpack_1")
    assert opened.arrows == [arrow_in, arrow_out] * 2
    assert opened.counters["artifacts"][-1]["xnnpack"] > opened.counters["artifacts"][0]["xnnpack"] > 0
    assert all(c["bytes"] > 1 << 20 for c in opened.counters["resident memory"])
    first, second = opened.slices["portable (MainThread)"]
    assert first["args"]["bytes of results"] == 96
    assert "watched.py" in first["args"]["source"]
    assert "args" not in second


def test_control_flow_holds_its_blocks(tmp_path):
    program = compiled(Loop(), (X,)).loaded
    with Trace(tmp_path / "trace.json") as trace, program.listen(trace):
        program(X.numpy())
    opened = Opened(tmp_path / "trace.json")
    assert opened.names("calls") == ["forward", "while"]
    assert opened.names("portable").count("aten.sin.default") == 5


def test_threads_have_tracks_of_their_own(tmp_path):
    program = net().loaded
    with Trace(tmp_path / "trace.json") as trace:

        def work() -> None:
            context = program.context()
            with context.listen(trace):
                context(X.numpy())

        threads = [threading.Thread(target=work, name=f"caller {i}") for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    opened = Opened(tmp_path / "trace.json")
    assert len(opened.names("calls")) == len(opened.arrows) / 2 == 3
    assert [len(opened.slices[f"calls (caller {i})"]) for i in range(3)] == [1, 1, 1]
    assert len({s["args"]["context"] for i in range(3) for s in opened.slices[f"calls (caller {i})"]}) == 3


def test_without_events(tmp_path):
    with Trace(tmp_path / "trace.json") as trace, net().loaded.listen(trace):
        pass
    assert [e["name"] for e in Opened(tmp_path / "trace.json").events] == ["process_name"]


def test_a_trace_of_many_calls_is_small(tmp_path):
    """Each instruction takes about a hundred bytes: 1,000 calls of 100 instructions stay under 20 MB."""
    program = compiled(nn.Sequential(*[nn.Sigmoid() for _ in range(50)]), (X,)).loaded
    with Trace(tmp_path / "trace.json") as trace, program.listen(trace):
        for _ in range(20):
            program(X.numpy())
    assert len(Opened(tmp_path / "trace.json").names("portable")) == 1000
    assert (tmp_path / "trace.json").stat().st_size < 20e6 / 1000 / 100 * 1000 * 0.8


def test_a_long_call_does_not_collect_its_events_in_memory(tmp_path):
    instruction = BoundInstruction("forward/sin", "forward", "sin", "aten.sin.default", reads=(0,), writes=(1,))
    with Trace(tmp_path / "trace.json") as trace:
        start = time.perf_counter_ns()
        for i in range(10_000):
            trace(InstructionRun(instruction, start + 10_000 * i, i, threading.get_ident(), 0, False))
        (unfinished,) = tmp_path.iterdir()
        assert unfinished.stat().st_size > 0.8e6
    slices = Opened(tmp_path / "trace.json").slices["portable (MainThread)"]
    assert [s["dur"] for s in slices] == [i / 1000 for i in range(10_000)]
    assert slices[-1]["ts"] - slices[0]["ts"] == pytest.approx(9_999 * 10)


def test_names_are_escaped(tmp_path):
    name = 'a"\\\x1b[2J\n\u202e'
    with Trace(tmp_path / "trace.json") as trace:
        trace(MethodRun(name, 10**30, 5, threading.get_ident(), 0))
    text = (tmp_path / "trace.json").read_text("utf-8")
    assert text.replace("\n", "").isprintable()
    assert Opened(tmp_path / "trace.json").names("calls") == [name]


def test_a_failed_block_changes_no_file(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text("old")
    program = net().loaded

    def fail() -> None:
        with Trace(path) as trace, program.listen(trace):
            program(X.numpy())
            program(np.zeros(1, np.float32))

    with pytest.raises(InputError):
        fail()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["trace.json"]


@pytest.mark.parametrize(("place", "problem"), [("none/trace.json", "there is no folder"), ("", "is a folder")])
def test_a_file_that_cannot_be_written(tmp_path, place, problem):
    with pytest.raises(InputError, match=f"the trace cannot be written: .*{problem}"):
        Trace(tmp_path / place)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no full device here")
def test_a_full_disk(tmp_path, monkeypatch):
    program = net().loaded

    def full(path: str) -> Any:
        return open("/dev/full", "wb", buffering=0)

    monkeypatch.setattr("delegate_devtools.trace.replacing", full)

    def fill() -> None:
        with Trace(tmp_path / "trace.json") as trace, program.listen(trace):
            program(X.numpy())

    with pytest.raises(InputError, match="the trace cannot be written: No space left on device"):
        fill()
