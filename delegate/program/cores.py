"""How many cores this process may use: its affinity mask, and the quotas of its control groups (cgroup v1 and v2).

Also work in another thread, because importing `concurrent.futures`, and `logging` with it, would slow down loading.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator
from functools import cache
from typing import Generic, TypeVar

# The kind of a mounted hierarchy -> its files with a quota of CPU time and its period, in microseconds.
# https://docs.kernel.org/admin-guide/cgroup-v2.html, https://docs.kernel.org/scheduler/sched-bwc.html
_QUOTAS = {"cgroup2": ("cpu.max",), "cgroup": ("cpu.cfs_quota_us", "cpu.cfs_period_us")}
_UNLIMITED = ("max", "-1")


def cores() -> int:
    """Return the number of cores that this process may use now, at least 1.

    A quota of CPU time is rounded up: of 1.5 cores, two threads use all, and it is read once for each process.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(min(affinity, _own_quota()), 1)


def library_threads(requested: int) -> int:
    """Return the number of threads to request from a library that counts the machine's cores by itself.

    Args:
        requested: the user's number; 0 for the default.

    Returns:
        at most `cores()`; 0, for which the library decides, if that is the default and the whole machine is available.
    """
    available = cores()
    if requested:
        return min(requested, available)
    return available if available < (os.cpu_count() or 1) else 0


@cache
def _own_quota() -> int:
    quota = cpu_quota()
    return math.ceil(quota) if math.isfinite(quota) else os.cpu_count() or 1


def cpu_quota(process: str = "/proc/self") -> float:
    """Return the seconds of CPU time that the control groups of a process allow per second; inf without a quota.

    Args:
        process: the folder of the process in /proc, with the files cgroup and mountinfo.
    """
    try:
        with open(f"{process}/cgroup") as groups, open(f"{process}/mountinfo") as mounts:
            rows = (line.rstrip("\n").split(":", 2) for line in groups)  # "4:cpu,cpuacct:/a/b" of v1, "0::/a/b" of v2
            paths = {name: path for _, names, path in rows for name in names.split(",")}
            folders = [*_folders(paths, mounts)]
    except OSError:  # not Linux
        return math.inf
    return min((_quota(kind, folder) for kind, folder in folders), default=math.inf)


def _folders(paths: dict[str, str], mounts: Iterator[str]) -> Iterator[tuple[str, str]]:
    """Yield the kind and folder of each control group with CPU quotas: the process's own one and its ancestors."""
    for mount in mounts:  # "36 35 98:0 /root /mount/point rw - cgroup cgroup rw,cpu"
        start, _, end = mount.partition(" - ")
        (root, point), (kind, *_, options) = start.split(" ")[3:5], end.split()
        controller = {"cgroup": "cpu", "cgroup2": ""}.get(kind)
        if controller not in paths or (controller and controller not in options.split(",")):
            continue
        inner = os.path.relpath(paths[controller], root)
        names = [] if inner.startswith(".") else inner.split("/")
        for depth in range(len(names) + 1):
            yield kind, "/".join((point, *names[:depth]))


def _quota(kind: str, folder: str) -> float:
    texts = []
    for name in _QUOTAS[kind]:
        try:
            with open(f"{folder}/{name}") as file:
                texts += file.read().split()
        except OSError:  # the root has none
            return math.inf
    return math.inf if texts[0] in _UNLIMITED else int(texts[0]) / int(texts[1])


T = TypeVar("T")


class BackgroundCall(Generic[T]):
    """A call that starts immediately in another thread.

    >>> BackgroundCall(lambda: 6 * 7).result()
    42
    """

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="delegate-task", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._results.append(self._function())
        except BaseException as error:  # raised again in `result`
            self._error = error

    def result(self) -> T:
        """Wait for the end of the call; return its result, or raise its error."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._results[0]
