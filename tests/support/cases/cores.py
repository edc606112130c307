"""A backend in a process that may use one core: by its affinity mask, or by the quota of its control group."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import delegate
from tests.support.processes import run

_CPU = Path("/sys/fs/cgroup/cpu")  # of cgroup v1
LIMITS = ("mask", "quota")

_CHILD = """
import os
limit, group, requested, path = sys.argv[1:]
last = max(os.sched_getaffinity(0))  # not the core that a library takes first
if limit == "mask":
    os.sched_setaffinity(0, {last})
else:
    with open(f"{group}/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))

import json, time, delegate, numpy
from delegate.program.cores import cores

counts = []
for options in json.loads(requested):
    with delegate.load(path, options=options) as program:
        program(numpy.ones((1, 8, 64, 64), numpy.float32))
        time.sleep(0.2)  # a thread that has ended is listed for a moment
        counts.append(len(os.listdir("/proc/self/task")))
        masks = {tuple(os.sched_getaffinity(int(thread))) for thread in os.listdir("/proc/self/task")}
print(json.dumps({"cores": cores(), "threads": counts, "masks": sorted(masks), "last": last}))
"""


def check(backends: list[str], limit: str, folder: Path) -> None:
    """Assert that a program has the threads of one core, all inside the mask, whatever number is requested.

    Args:
        backends: the only backend's name; an empty list for portable kernels.
        limit: one of `LIMITS`.
        folder: an empty folder.
    """
    model = torch.nn.Sequential(torch.nn.Conv2d(8, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3)).eval()
    program = delegate.to_backend(torch.export.export(model, (torch.ones(1, 8, 64, 64),)), backends)
    assert {node.backend for node in program.report.nodes} == set(backends or ["portable"])
    program.save(folder / "program.dlg")
    requested = [{name: threads} for threads in ({"threads": 1}, {}, {"threads": 64}) for name in backends] or [{}]
    with _group() if limit == "quota" else contextlib.nullcontext(folder) as group:
        done = run(_CHILD, limit, group, json.dumps(requested), folder / "program.dlg")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["cores"] == 1
    assert len(set(found["threads"])) == 1, found["threads"]
    if limit == "mask":
        assert found["masks"] == [[found["last"]]]


@contextlib.contextmanager
def _group() -> Iterator[Path]:
    """Give a control group with a quota of half a core; skip the test if this process may not create one."""
    group = _CPU / f"delegate-{uuid.uuid4().hex}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"needs the right to create a control group of version 1: {error}")
    try:
        (group / "cpu.cfs_quota_us").write_text("50000")
        yield group
    finally:
        os.rmdir(group)
