"""Whether the halves of a backend can be used, for the commands that show one."""

from __future__ import annotations

from delegate.backends.state import BackendState
from delegate.errors import BackendError
from delegate.registry import Registry


def halves_of(registry: Registry, name: str) -> dict[str, str]:
    """Of each half "ok", or why it cannot be used."""
    return {half: _half(registry, name, half) for half in ("aot", "runtime")}


def half_shown(words: str, state: BackendState) -> str:
    """What people are shown of a half, beside the backend's state: not the same once more."""
    return "cannot be used" if words == f"{state.detail}: {state.remedy}" else words


def _half(registry: Registry, name: str, half: str) -> str:
    try:
        registry.half(name, half)
    except BackendError as error:
        return str(error)
    return "ok"
