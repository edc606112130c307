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
    return delegate.load(path, **{**settings, "options": with_threads(path, threads, settings.get("options") or {})})


def with_threads(path: str, threads: int | None, options: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return options by backend, with a number of threads for the backends of a program that have such an option."""
    own = {backend: dict(values) for backend, values in options.items()}
    if threads is not None:
        for backend in {spec.backend for spec in file.load(path).delegates}:
            if _has_threads(backend):
                own[backend] = {THREADS: threads} | own.get(backend, {})
    return own


def _has_threads(backend: str) -> bool:
    try:
        return THREADS in default_registry().runtime(backend).load_options
    except BackendError:  # reported when the program is loaded
        return False
