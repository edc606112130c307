"""Where the cache lies."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

VARIABLE = "DELEGATE_CACHE"  # environment variable: the folder, or "off"
OFF = "off"
ARTIFACTS = "artifacts"  # within it: what backends made of partitions
CHOICES = "choices"  # within it: what was chosen by measuring
PACKED = "packed"  # and: weights as a library reads them
PLUGINS = "plugins"  # and: answers of plugins

_warned: set[Path] = set()  # folders, once each in a process


def cache_folder() -> Path | None:
    """The folder of all that is kept; None where the environment says off, or there is no home to put it into.

    It is what `DELEGATE_CACHE` names, else the one that the platform has for this. It need not exist.
    """
    asked = os.environ.get(VARIABLE, "")
    if asked == OFF:
        return None
    if asked:
        return Path(asked).expanduser()
    try:
        return _platform_folder() / "delegate"
    except RuntimeError:  # no home
        return None


def private(folder: Path | None) -> Path | None:
    """Return a cache folder if nobody but its user may write to it, as ssh does; else warn, and return None.

    Who may write there may have any machine code run. Neither the folder nor its parts may be writable by others, or
    belong to a user who is not this one or root. One that is not there is made for the user alone.
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
    """Make a folder, and those above it that are not there, for the user alone; raises OSError."""
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
