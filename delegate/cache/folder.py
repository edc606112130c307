"""The folder of the cache, and its safety."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

VARIABLE = "DELEGATE_CACHE"  # environment variable: the folder, or "off"
OFF = "off"
ARTIFACTS = "artifacts"  # within it: compiled partitions
CHOICES = "choices"  # within it: placements chosen by measuring
PACKED = "packed"  # within it: weights in the layout of a library
PLUGINS = "plugins"  # within it: answers of plugins to probes

_warned: set[Path] = set()  # folders, once each in a process


def cache_folder() -> Path | None:
    """Return the folder of the cache; None if the environment turns it off or the user has no home folder.

    The folder is the value of `DELEGATE_CACHE`, else the platform's default. It need not exist.
    """
    requested = os.environ.get(VARIABLE, "")
    if requested == OFF:
        return None
    if requested:
        return Path(requested).expanduser()
    try:
        return _platform_folder() / "delegate"
    except RuntimeError:  # no home
        return None


def private(folder: Path | None) -> Path | None:
    """Return a cache folder if only its user may write to it, as ssh requires; else warn, and return None.

    A user who may write there can have machine code run. Neither the folder nor its parts may be writable by others.
    Their owner must be this user or root. A missing folder is later created for the user alone.
    """
    if folder is None or not hasattr(os, "getuid"):
        return folder
    for place in (folder, *(folder / part for part in (ARTIFACTS, CHOICES, PACKED, PLUGINS))):
        try:
            status = os.stat(place)
        except OSError:
            continue
        problem = ""
        if status.st_uid not in (0, os.getuid()):
            problem, remedy = f"belongs to the user {status.st_uid}", "name a folder of your own"
        elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            problem, remedy = "may be written by others", f"run `chmod go-w {place}`, and `delegate cache clear`"
        if problem:
            if place not in _warned:
                import warnings

                _warned.add(place)
                what = f"the cache is not used, for its folder {place} {problem}, who could have any code run"
                warnings.warn(f"{what}: {remedy}; {VARIABLE} names another folder", RuntimeWarning, stacklevel=3)
            return None
    return folder


def make_private(folder: Path) -> None:
    """Create a folder and its missing parents for the user alone; raise OSError on failure."""
    for place in (*reversed(folder.parents), folder):
        if not place.exists():
            place.mkdir(mode=0o700, exist_ok=True)


def _platform_folder() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return named if named.is_absolute() else Path.home() / ".cache"  # as the XDG specification has it
