"""Backend options at load time. They do not change a blob."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from delegate.errors import ConfigError, did_you_mean
from delegate.option_rules import Alternative, Rule
from delegate.program.model import Program
from delegate.registry import Registry
from delegate.report import Report

LoadOptions = Mapping[str, Mapping[str, Any]]  # backend -> option -> value
# An option that does not exist at lowering has only the type of the runtime part.
_BY_TYPE: Mapping[type, Rule] = {
    int: Rule((Alternative("integer", minimum=0),)),
    bool: Rule((Alternative("boolean"),)),
    str: Rule((Alternative("string"),)),
    float: Rule((Alternative("number"),)),
}


def with_load_options(program: Program, options: LoadOptions, registry: Registry) -> Program:
    """Return the program with changed compile specs, for options that the backend's runtime part allows.

    Raises:
        ConfigError: the program has no partition of a backend. Or an option is unknown, was fixed at lowering, or has a
            value that lowering would reject, too.
        ProgramError: the report, which holds the rules for values, cannot be read.
        BackendError: the backend cannot be used here.
    """
    if not options:
        return program
    rules = Report.from_json(program.report).load_rules if program.report else {}
    used = {spec.backend for spec in program.delegates}
    for backend, requested in options.items():
        if backend not in used:
            what = f"options are given for backend {backend!r}, and the program has no partition of it"
            raise ConfigError(what, remedy=did_you_mean(backend, used) if used else "give none")
        known = {name: _BY_TYPE[kind] for name, kind in registry.runtime(backend).load_options.items()}
        known |= {name: rule for name, rule in rules.get(backend, {}).items() if name in known}
        fixed = {key for spec in program.delegates if spec.backend == backend for key in spec.compile_specs}
        for key, value in requested.items():
            _check(backend, key, value, known, fixed)
    changed = (s._replace(compile_specs={**s.compile_specs, **options.get(s.backend, {})}) for s in program.delegates)
    return program._replace(delegates=tuple(changed))


def _check(backend: str, key: str, value: Any, known: Mapping[str, Rule], fixed: set[str]) -> None:
    where = f"options of {backend}"
    if key in known:
        if not known[key].accepts(value):
            raise ConfigError(f"{key} should be {known[key]}, not {value!r}", where=where)
        return
    if key in fixed:
        raise ConfigError(f"{key} is fixed: the blob was compiled with it", where=where, remedy="lower the model anew")
    remedy = did_you_mean(key, known) if known else "it has none that are given at load"
    raise ConfigError(f"there is no option {key!r} at load", where=where, remedy=remedy)
