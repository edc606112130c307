"""Quotas of control groups, as the kernel shows them in each version and from inside a container."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from delegate.program import cores as module
from delegate.program.cores import cores, cpu_quota, library_threads

V1 = {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"}

# The process's groups, its mounts as (root, point, "kind options"), files by folder, and the quota.
CASES: Mapping[str, tuple[str, list[tuple[str, str, str]], Mapping[str, Mapping[str, str]], float]] = {
    "v2": ("0::/a", [("/", "", "cgroup2 rw")], {"a": {"cpu.max": "150000 100000"}}, 1.5),
    "v2 without a quota": ("0::/a", [("/", "", "cgroup2 rw")], {"a": {"cpu.max": "max 100000"}}, math.inf),
    "v2, an ancestor's": (
        "0::/a/b", [("/", "", "cgroup2 rw")],
        {"a": {"cpu.max": "50000 100000"}, "a/b": {"cpu.max": "400000 100000"}}, 0.5,
    ),
    "v2 in a container": ("0::/", [("/", "", "cgroup2 rw")], {"": {"cpu.max": "20000 10000"}}, 2),
    "v2, the host's path in a container": (
        "0::/docker/1/b", [("/docker/1", "", "cgroup2 rw")], {"b": {"cpu.max": "30000 10000"}}, 3,
    ),
    "v2, a path outside of the namespace": ("0::/../x", [("/", "", "cgroup2 rw")], {"": {"cpu.max": "9 3"}}, 3),
    "v1": (
        "4:cpu,cpuacct:/a\n3:memory:/m\n0::/",
        [("/", "", "cgroup rw,cpu,cpuacct"), ("/", "memory", "cgroup rw,memory")],
        {"a": {**V1, "cpu.cfs_quota_us": "250000"}}, 2.5,
    ),
    "v1 without a quota": ("1:cpu:/a", [("/", "", "cgroup rw,cpu")], {"a": V1}, math.inf),
    "v1, a container's mount": (
        "1:cpu:/docker/1", [("/docker/1", "", "cgroup rw,cpu")], {"": {**V1, "cpu.cfs_quota_us": "100000"}}, 1,
    ),
    "both, the CPU in v1": (
        "1:cpu:/a\n0::/a", [("/", "one", "cgroup rw,cpu"), ("/", "two", "cgroup2 rw")],
        {"one/a": {**V1, "cpu.cfs_quota_us": "300000"}, "two/a": {}}, 3,
    ),
    "no CPU controller": ("3:memory:/m", [("/", "", "cgroup rw,memory")], {}, math.inf),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_quota(name: str, tmp_path: Path) -> None:
    groups, mounts, files, expected = CASES[name]
    (tmp_path / "cgroup").write_text(groups + "\n")
    lines = [
        f"31 23 0:28 {root} {tmp_path / 'mounted' / point} rw,relatime shared:1 - {kind} cgroup {options}\n"
        for root, point, (kind, options) in ((r, p, k.split()) for r, p, k in mounts)
    ]
    (tmp_path / "mountinfo").write_text("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n" + "".join(lines))
    for folder, contents in files.items():
        (tmp_path / "mounted" / folder).mkdir(parents=True, exist_ok=True)
        for file, text in contents.items():
            (tmp_path / "mounted" / folder / file).write_text(text + "\n")
    assert cpu_quota(str(tmp_path)) == expected


def test_a_system_without_control_groups(tmp_path: Path) -> None:
    assert cpu_quota(str(tmp_path)) == math.inf


@pytest.mark.parametrize(
    ("available", "machine", "requested", "expected"),
    [(4, 4, 0, 0), (2, 4, 0, 2), (1, 4, 0, 1), (2, 4, 1, 1), (2, 4, 64, 2), (4, 4, 64, 4)],
)
def test_threads_of_a_library(available, machine, requested, expected, monkeypatch):
    monkeypatch.setattr("delegate.program.cores.cores", lambda: available)
    monkeypatch.setattr("os.cpu_count", lambda: machine)
    assert library_threads(requested) == expected


@pytest.mark.parametrize(("quota", "expected"), [(0.2, 1), (1.0, 1), (1.5, 2), (math.inf, 3), (64.0, 3)])
def test_a_quota_is_rounded_up(quota, expected, monkeypatch):
    monkeypatch.setattr(module, "cpu_quota", lambda: quota)
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    module._own_quota.cache_clear()
    try:
        assert cores() == expected
    finally:
        module._own_quota.cache_clear()
