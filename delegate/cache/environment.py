"""What the work of a library may depend on besides what it is given: code, versions, the machine."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import sys
from collections.abc import Iterator
from pathlib import Path

_CODE = (".py", ".so", ".pyd", ".dylib", ".dll")
_CPU = ("model name", "flags", "Features", "CPU implementer", "CPU part")  # lines of Linux's /proc/cpuinfo


@functools.cache
def host_features() -> str:
    """This machine as compilers see it: system, architecture, the CPU with its instruction sets, its cores."""
    words = [platform.system(), platform.machine(), platform.processor(), str(os.cpu_count())]
    try:
        lines = {line.strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith(_CPU)}
    except (OSError, UnicodeDecodeError):
        lines = {os.environ.get("PROCESSOR_IDENTIFIER", "")}
    return "; ".join((*words, *sorted(lines)))


def machine() -> str:
    """This machine in a few words: system, architecture, CPU, cores."""
    system, architecture, _, cores, *cpu = host_features().split("; ")
    model = next((line.partition(":")[2].strip() for line in cpu if line.startswith("model name")), "")
    return ", ".join(part for part in (system, architecture, model, f"{cores} cores") if part)


@functools.cache
def code_of(package: str) -> str | None:
    """A digest that changes with the code of a package or module, by names, sizes and times of its files.

    None where it has no file, as what is typed into an interpreter.
    """
    lines = []
    for path in sorted(_files(package)):
        status = os.stat(path)
        lines.append(f"{path} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest() if lines else None


def _files(package: str) -> Iterator[str]:
    module = sys.modules.get(package)
    if package == "__main__" or module is None:
        return
    folders = list(getattr(module, "__path__", ()))
    if not folders and (file := getattr(module, "__file__", None)):
        yield file
    for folder in folders:
        for place, _, names in os.walk(folder):
            yield from (os.path.join(place, name) for name in names if name.endswith(_CODE))


@functools.cache
def versions_of(distribution: str) -> tuple[str, ...]:
    """A distribution and those that it asks for, extras included, with their versions, as far as they are installed."""
    from importlib import metadata

    try:
        asked = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        return ()
    names = {_normal(re.split(r"[^\w.-]", line, maxsplit=1)[0]) for line in (distribution, *asked)}
    return tuple(sorted(f"{name} {version}" for name, version in _installed().items() if name in names))


def _installed() -> dict[str, str]:
    """Name -> version of every distribution; of several of a name, the first on `sys.path`."""
    found: dict[str, str] = {}
    for folder in sys.path:
        try:
            names = sorted(os.listdir(folder or "."))
        except OSError:  # a folder of sys.path need not exist
            continue
        for name, _, rest in (n.partition("-") for n in names if n.endswith((".dist-info", ".egg-info"))):
            found.setdefault(_normal(name), rest)
    return found


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()
