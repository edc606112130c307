"""No process of ours outlives the one that started it, whenever and however that ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from tests.runtime import stranger

ROOT = Path(__file__).parents[2]

# Each parent is a fork of the script, so that it starts its worker at once; the script kills it after its delay.
SCRIPT = """
import os, signal, sys, time
sys.path.insert(0, {root!r})
from pathlib import Path
import numpy as np
from delegate.placement.runtime.trials import ProcessRunnerFactory, Trial
from delegate.plugins import Plugin
from delegate.processes.probing import Prober
from delegate.processes.process import Process
from delegate.program import file

def isolated():
    return Process("delegate.runtime.isolated:questions")

def measuring():
    folder = Path({folder!r}) / str(os.getpid())
    folder.mkdir()
    factory = ProcessRunnerFactory(folder, [np.ones((2, 3), np.float32)] * 2, None, 60.0)
    return factory.start(Trial("a", file.load({path!r}), "forward"))

def probing():
    return Prober().ask(Plugin("holder", "", "", "tests.runtime.holder:INFO"), "probe", [])

def measuring_that_holds_the_lock():
    return Process("tests.runtime.holder:nothing")

def children(process):  # of all its threads, one of which may have started them
    return [Path("/proc", c) for f in Path(f"/proc/{{process}}/task").glob("*/children") for c in f.read_text().split()]

def lives(process):
    try:
        return "Z" not in (process / "stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False

started, longest = 0, 0.0
for delay in {delays!r}:
    parent = os.fork()
    if not parent:
        worker = {kind}()
        time.sleep(100)
    time.sleep(delay)
    orphans = children(parent)
    started += len(orphans)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    killed = time.monotonic()
    while any(map(lives, orphans)) and time.monotonic() < killed + 20:
        time.sleep(0.01)
    longest = max(longest, time.monotonic() - killed)
print(started, longest)
"""
LONGEST = 2.0  # seconds; Python needs some of them to start, before it learns that its parent has ended
KINDS = ("isolated", "measuring", "probing", "measuring_that_holds_the_lock")


def marked(mark: str) -> list[int]:
    """The processes that have it in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "environ").read_bytes():
                found.append(int(process.name))
        except OSError:  # it has ended, or is another user's
            continue
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize("times", [4, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_ends_with_a_parent_that_is_killed(kind, times, tmp_path):
    delays = [0.5 * number / times for number in range(times)]
    path = tmp_path / "program.dlg"
    path.write_bytes(stranger.program())
    code = SCRIPT.format(root=str(ROOT), folder=str(tmp_path), path=str(path), delays=delays, kind=kind)
    mark = f"ORPHAN={uuid.uuid4().hex}"
    environment = os.environ | dict([mark.split("=")])
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, check=False, text=True, timeout=60 + 3 * times)
    assert done.returncode == 0, done.stderr
    started, longest = done.stdout.split()
    assert int(started) >= times // 2
    assert float(longest) < LONGEST
    deadline = time.monotonic() + LONGEST  # of one that was started between the count and the kill
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left
