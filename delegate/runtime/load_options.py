"""Options of backends that are given when a program is loaded: those that change nothing of a blob."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from delegate.errors import ConfigError, did_you_mean
from delegate.program.model import Program
from delegate.registry import Registry

LoadOptions = Mapping[str, Mapping[str, Any]]  # backend -> option -> value
_WORDS = {int: "a whole number of 0 or more", bool: "true or false", str: "text", float: "a number"}


def with_load_options(program: Program, options: LoadOptions, registry: Registry) -> Program:
    """The program with other compile specs: of each backend those that its runtime half lets through.

    Raises:
        ConfigError: the program has no partition of a backend, or an option is unknown, fixed since the program was
            lowered, or of another type.
        BackendError: the backend cannot be used here.
    """
    if not options:
        return program
    used = {spec.backend for spec in program.delegates}
    for backend, given in options.items():
        if backend not in used:
            what = f"options are given for backend {backend!r}, and the program has no partition of it"
            raise ConfigError(what, remedy=did_you_mean(backend, used) if used else "give none")
        known = registry.runtime(backend).load_options
        fixed = {key for spec in program.delegates if spec.backend == backend for key in spec.compile_specs}
        for key, value in given.items():
            _check(backend, key, value, known, fixed)
    changed = (s._replace(compile_specs={**s.compile_specs, **options.get(s.backend, {})}) for s in program.delegates)
    return program._replace(delegates=tuple(changed))


def _check(backend: str, key: str, value: Any, known: Mapping[str, type], fixed: set[str]) -> None:
    where = f"options of {backend}"
    if key in known:
        wanted = known[key]
        if type(value) is not wanted or (isinstance(value, int) and value < 0):
            raise ConfigError(f"{key} should be {_WORDS[wanted]}, not {value!r}", where=where)
        return
    if key in fixed:
        raise ConfigError(f"{key} is fixed: the blob was compiled with it", where=where, remedy="lower the model anew")
    remedy = did_you_mean(key, known) if known else "it has none that are given at load"
    raise ConfigError(f"there is no option {key!r} at load", where=where, remedy=remedy)
