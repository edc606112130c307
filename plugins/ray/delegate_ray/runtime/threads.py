"""Opens a program with options for the backends that have them: a number of threads, and shared packed weights."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import delegate
from delegate.errors import BackendError
from delegate.program import file
from delegate.registry import default_registry
from delegate.runtime.loaded import LoadedProgram

_THREADS = "threads"  # an option of backends: the number of threads of a call
_PACKED = "weight_cache"  # an option of backends: True also shares packed weights of small programs between processes


def load(path: str, threads: int | None, settings: Mapping[str, Any], *, is_shared: bool = True) -> LoadedProgram:
    """Load a program file; see `delegate.load`.

    Args:
        path: The path of the file, which is mapped: processes of one machine share its memory.
        threads: Threads of each partition; None: the default of its backend.
        settings: other arguments of `delegate.load`. Options there win over the other arguments.
        is_shared: processes of this machine share packed weights, which saves memory, but loading takes longer.
    """
    requested = {} if threads is None else {_THREADS: threads}
    requested |= {_PACKED: True} if is_shared else {}
    return delegate.load(path, **{**settings, "options": _with(requested, path, settings.get("options") or {})})


def replica_options(path: str, threads: int, options: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return options by backend, with threads and shared packed weights for backends that have these options."""
    return _with({_THREADS: threads, _PACKED: True}, path, options)


def _with(
    requested: Mapping[str, Any], path: str, options: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    own = {backend: dict(values) for backend, values in options.items()}
    if requested:
        for backend in {spec.backend for spec in file.load(path).delegates}:
            known = {name: value for name, value in requested.items() if name in _load_options(backend)}
            if known:
                own[backend] = known | own.get(backend, {})
    return own


def _load_options(backend: str) -> Collection[str]:
    try:
        return default_registry().runtime(backend).load_options
    except BackendError:  # reported when the program is loaded
        return ()
