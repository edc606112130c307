"""`delegate demo`: its table, its conclusion, its files, and the programs that fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from delegate_demo import command
from delegate_demo.command import DemoRow, conclusion, partly_quantized

from tests.support.commands import call

TORCH = DemoRow("torch (eager)", "float", 0.98, 300e-6, None)
EXACT = DemoRow("fast", "dynamic_int8", 0.98, 20e-6, 1)
LOSSY = DemoRow("fast", "static_int8", 0.965, 15e-6, 1)
SLOW = DemoRow("slow", "float", 0.98, 600e-6, 1)


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([EXACT, TORCH], "fast dynamic_int8 is fastest: 15 times as fast as torch, with the same accuracy."),
        (
            [LOSSY, EXACT, TORCH],
            "fast static_int8 is fastest: 20 times as fast as torch, for 1.5 points of accuracy;\n"
            "fast dynamic_int8 loses none at 15 times.",
        ),
        ([LOSSY, TORCH], "fast static_int8 is fastest: 20 times as fast as torch, for 1.5 points of accuracy."),
        ([TORCH, SLOW], "torch is fastest; slow float is next, at 0.5 times torch's speed."),
        ([TORCH], "No backend ran on its own device."),
    ],
)
def test_conclusion(rows: list[DemoRow], sentence: str) -> None:
    assert conclusion(rows) == sentence


def test_schemes_that_leave_layers_in_float_are_named() -> None:
    rows = [DemoRow("fast", scheme, 0.98, 20e-6, 1, layers=5, integer_layers=n) for scheme, n in
            (("float", 0), ("static_int8", 5), ("dynamic_int8", 1))]  # fmt: skip
    line = "fast dynamic_int8 runs 1 of 5 layers in int8, and the others in float."
    assert partly_quantized([*rows, TORCH]) == [line]


def test_the_table_the_files_and_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stdout, stderr = call("demo", "-b", "portable", "-o", "programs", "--report")
    lines = stdout.splitlines()
    assert lines[0].startswith("899 images of digits")
    assert lines[2].split() == ["backend", "accuracy", "latency", "file"]
    assert {line.split("  ")[0] for line in lines[3:5]} == {"torch (eager)", "portable float"}
    assert os.listdir("programs") == ["digits-portable-float.dlg"]
    assert f"saved report.html, {os.path.getsize('report.html'):,} bytes" in stdout
    assert "  delegate inspect programs/digits-portable-float.dlg" in lines
    assert max(map(len, lines)) <= 100
    assert stderr.startswith("demo: importing torch, exporting the network\n")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--report", "report.html"),
        ("-o file/below", "file"),
        ("-b xnnpak", "did you mean 'xnnpack'"),
    ],
)
def test_what_cannot_be_done_is_said_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("report.html").mkdir()
    Path("file").touch()
    *before, last = call("demo", *line.split(), code=1)[1].splitlines()
    assert words in last
    assert [line for line in before if "probing" not in line] == []  # nothing is trained before it


@pytest.mark.parametrize(("status", "words"), [(3, "exit code 3"), (-signal.SIGKILL, "exit code -9")])
def test_a_process_that_fails_is_named(monkeypatch: pytest.MonkeyPatch, status: int, words: str) -> None:

    def fail(*args: Any, **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(args, status)

    monkeypatch.setattr(command.subprocess, "run", fail)
    data = json.loads(call("demo", "-b", "portable", "--json", code=1)[0])
    assert words in data["failures"]["portable float"]
    assert [row["backend"] for row in data["rows"]] == ["torch (eager)"]


@pytest.mark.extended
def test_int8_costs_something() -> None:
    """The float programs agree with torch; a fixed range of int8 loses points that a range per image keeps."""
    rows = {(r["backend"], r["scheme"]): r for r in json.loads(call("demo", "-b", "xnnpack", "--json")[0])["rows"]}
    accuracy = {scheme: rows["xnnpack", scheme]["accuracy"] for scheme in ("float", "static_int8", "dynamic_int8")}
    assert accuracy["float"] == rows["torch (eager)", "float"]["accuracy"] >= 0.96
    assert accuracy["static_int8"] <= accuracy["float"] - 0.01
    assert accuracy["dynamic_int8"] >= accuracy["float"] - 0.003
    assert [rows["xnnpack", scheme]["integer_layers"] for scheme in accuracy] == [0, 5, 5]
    sizes = {scheme: rows["xnnpack", scheme]["file_bytes"] for scheme in accuracy}
    assert max(sizes["static_int8"], sizes["dynamic_int8"]) < sizes["float"] / 2


@pytest.mark.slow
def test_every_backend_here() -> None:
    data = json.loads(call("demo", "--json")[0])
    assert data["failures"] == {}
    assert [r["stand_in"] for r in data["rows"]] == sorted(r["stand_in"] for r in data["rows"])
