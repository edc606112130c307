"""`delegate backends`: list backends and other plugins with their states."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from delegate.backend.state import BackendState
from delegate.cli import output
from delegate.cli.completions import backend_names
from delegate.errors import BackendError
from delegate.kernels.libraries import KernelLibrary
from delegate.plugins import PluginState, blocked_in_vain
from delegate.plugins.measurements import MeasurementState
from delegate.registry import Registry


def backends(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", autocompletion=backend_names, help="Show the details of one backend."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    refresh: Annotated[bool, typer.Option("--refresh", help="Probe all plugins again, without the cache.")] = False,
) -> None:
    """List the installed backends and other plugins with their states, and remedies for those that are not ok."""
    registry = Registry(refresh=refresh)
    if name is not None:
        _show_backend(registry, name, as_json)
        return
    with output.working("probing the installed backends"):
        registry.states()
    if as_json:
        output.print_json(
            {
                "backends": [_data(s) for s in registry.states()],
                "refused": [_data(s) for s in registry.refused()],
                "kernel_libraries": [_library_data(lib) for lib in registry.kernels.libraries],
                "measurements": [_measurement_data(s) for s in registry.measurements.states],
            }
        )
    else:
        _list(registry)


def _list(registry: Registry) -> None:
    states = registry.states()
    rows = [(_name(s), str(s.state), _owner(s), _versions(s), _devices(s)) for s in states]
    output.table(("backend", "state", "from", "library", "device"), rows)
    with warnings.catch_warnings(action="ignore"):  # the table has the broken ones
        default = registry.available()
    if len(default) > 1:
        output.show(f"without a list, the cheapest of these is used, and of equal ones the first: {', '.join(default)}")
    for s in states:
        if s.state is not PluginState.OK:
            output.show(f"{s.detail}; remedy: {s.remedy}")
    for s in registry.refused():
        output.show(s.detail)
    for name, matches in registry.blocked_in_vain().items():
        if not matches:  # of the others the registry warns
            output.show(blocked_in_vain(name, matches))
    if any(s.kept for s in states):
        output.show("some of these results are cached: `delegate backends --refresh` probes again")
    output.print_line()
    libraries = registry.kernels.libraries
    kernels = [(lib.name, str(lib.state), f"{lib.owner} {lib.version}".strip(), _count(lib)) for lib in libraries]
    output.table(("kernel library", "state", "from", "kernels"), kernels)
    for lib in libraries:
        if lib.overrides:
            output.show(f"{lib.name} overrides {', '.join(lib.overrides)}")
        if lib.detail:
            output.show(lib.detail)
    _list_measurements(registry.measurements.states)


def _list_measurements(states: Sequence[MeasurementState]) -> None:
    rows = [(s.name, str(s.state), _owner(s), s.info.description if s.info else "") for s in states]
    if rows:
        output.print_line()
        output.table(("remote measurement", "state", "from", "measures"), rows)
    for s in states:
        if s.detail:
            output.show(f"{s.detail}; remedy: {s.remedy}")


def _count(library: KernelLibrary) -> str:
    """Return the number of kernels in a library; empty if it was not loaded."""
    return str(sum(1 for _ in library.table)) if library.table is not None else ""


def _show_backend(registry: Registry, name: str, as_json: bool) -> None:
    registry.state(name)
    with output.working(f"importing both parts of {name}"):
        parts = check_parts(registry, name)
    state = registry.state(name)  # again: a part that fails to import makes it broken
    if as_json:
        output.print_json({**_data(state), **parts})
        return
    lines = {
        "backend": _name(state),
        "state": str(state.state),
        "from": _owner(state),
        "description": state.info.description if state.info else "",
        "plugin API": ".".join(map(str, state.info.api_version)) if state.info else "",
        "library": _versions(state),
        "device": _devices(state),
        "without": state.availability.reason if state.availability and state.availability.ok else "",
        "licence": state.info.licence if state.info else "",
        "aot part": part_text(parts["aot"], state),
        "runtime part": part_text(parts["runtime"], state),
        "problem": state.detail,
        "remedy": state.remedy,
    }
    for key, value in lines.items():
        if value:
            output.show(f"{key + ':':<14}{value}")
    if state.traceback:
        output.print_line(f"\n{state.traceback.rstrip()}")


def _data(state: BackendState) -> dict[str, Any]:
    versions: Mapping[str, str] = state.availability.versions if state.availability else {}
    return {
        "name": state.name,
        "stands_for": state.stands_for,
        "state": str(state.state),
        "owner": state.owner,
        "version": state.version,
        "description": state.info.description if state.info else "",
        "api_version": list(state.info.api_version) if state.info else None,
        "licence": state.info.licence if state.info else "",
        "versions": dict(versions),
        "devices": list(state.availability.devices) if state.availability else [],
        "detail": state.detail,
        "remedy": state.remedy,
        "traceback": state.traceback,
    }


def _library_data(library: KernelLibrary) -> dict[str, Any]:
    return {
        "name": library.name,
        "state": str(library.state),
        "owner": library.owner,
        "version": library.version,
        "kernels": sum(1 for _ in library.table or ()),
        "overrides": list(library.overrides),
        "detail": library.detail,
        "traceback": library.traceback,
    }


def _measurement_data(state: MeasurementState) -> dict[str, Any]:
    return {
        "name": state.name,
        "state": str(state.state),
        "owner": state.owner,
        "version": state.version,
        "description": state.info.description if state.info else "",
        "api_version": list(state.info.api_version) if state.info else None,
        "detail": state.detail,
        "remedy": state.remedy,
        "traceback": state.traceback,
    }


def _name(state: BackendState) -> str:
    return f"{state.name} (here: {state.stands_for})" if state.stands_for else state.name


def _owner(state: BackendState | MeasurementState) -> str:
    return f"{state.owner} {state.version}".strip()


def _versions(state: BackendState) -> str:
    return ", ".join(f"{lib} {v}" for lib, v in state.availability.versions.items()) if state.availability else ""


def _devices(state: BackendState) -> str:
    return "; ".join(state.availability.devices) if state.availability else ""


def check_parts(registry: Registry, name: str) -> dict[str, str]:
    """Return "ok", or the problem, of the AOT and the runtime part."""
    return {part: _check(registry, name, part) for part in ("aot", "runtime")}


def part_text(words: str, state: BackendState) -> str:
    """Return the text for people about a part, without repeating the problem of the backend itself."""
    return "cannot be used" if words == f"{state.detail}: {state.remedy}" else words


def _check(registry: Registry, name: str, part: str) -> str:
    try:
        registry.check_part(name, part)
    except BackendError as error:
        return str(error)
    return "ok"
