"""Opens a program with a number of threads for the backends that have such an option."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import delegate
from delegate.errors import BackendError
from delegate.program import file
from delegate.registry import default_registry
from delegate.runtime.loaded import LoadedProgram
from delegate.runtime.parallel import THREADS


def load(path: str, threads: int | None, settings: Mapping[str, Any]) -> LoadedProgram:
    """Load a program file; see `delegate.load`.

    Args:
        path: of the file, which is mapped: processes of one machine share its memory.
        threads: of each partition; None: the default of its backend.
        settings: other arguments of `delegate.load`. Options there win over `threads`.
    """
    options = {backend: dict(own) for backend, own in (settings.get("options") or {}).items()}
    if threads is not None:
        for backend in {spec.backend for spec in file.load(path).delegates}:
            if _has_threads(backend):
                options[backend] = {THREADS: threads} | options.get(backend, {})
    return delegate.load(path, **{**settings, "options": options})


def _has_threads(backend: str) -> bool:
    try:
        return THREADS in default_registry().runtime(backend).load_options
    except BackendError:  # reported when the program is loaded
        return False
