"""The folder for what may be deleted at any time: the platform's own, or the one that DELEGATE_CACHE names."""

from __future__ import annotations

import os
import sys
from pathlib import Path

VARIABLE = "DELEGATE_CACHE"  # environment variable: the folder to use instead


def cache_folder() -> Path:
    """Where this project keeps what it can make again; it need not exist.

    Linux: $XDG_CACHE_HOME or ~/.cache; macOS: ~/Library/Caches; Windows: %LOCALAPPDATA%.
    """
    if given := os.environ.get(VARIABLE):
        return Path(given)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or os.path.expanduser("~/AppData/Local")
    elif sys.platform == "darwin":
        base = os.path.expanduser("~/Library/Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "delegate"
