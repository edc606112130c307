"""Where the cache lies."""

from __future__ import annotations

import os
import sys
from pathlib import Path

VARIABLE = "DELEGATE_CACHE"  # environment variable: the folder, or "off"
OFF = "off"
ARTIFACTS = "artifacts"  # within it: what backends made of partitions
CHOICES = "choices"  # within it: what was chosen by measuring
PACKED = "packed"  # and: weights as a library reads them


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


def _platform_folder() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return named if named.is_absolute() else Path.home() / ".cache"  # as the XDG specification has it
