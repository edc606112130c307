"""Checks of the two parts of a backend, for the commands that show one."""

from __future__ import annotations

from delegate.backends.state import BackendState
from delegate.errors import BackendError
from delegate.registry import Registry


def check_parts(registry: Registry, name: str) -> dict[str, str]:
    """Return "ok", or the problem, of the AOT and the runtime part."""
    return {part: _check(registry, name, part) for part in ("aot", "runtime")}


def part_text(words: str, state: BackendState) -> str:
    """Return the text for people about a part, without repeating the problem of the backend itself."""
    return "cannot be used" if words == f"{state.detail}: {state.remedy}" else words


def _check(registry: Registry, name: str, part: str) -> str:
    try:
        registry.half(name, part)
    except BackendError as error:
        return str(error)
    return "ok"
