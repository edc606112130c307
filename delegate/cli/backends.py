"""`delegate backends` and `new-backend`: the installed backends, and a start of one."""

from __future__ import annotations

import keyword
import re
import warnings
from collections.abc import Mapping, Sequence
from enum import StrEnum
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any

import typer

from delegate.backend.state import BackendState
from delegate.cli import options, output
from delegate.cli.options import backend_names
from delegate.errors import BackendError, DelegateError
from delegate.kernels.libraries import KernelLibrary
from delegate.plugins import InstalledPlugin, PluginState
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
                "measurements": [_plugin_data(s) for s in registry.measurements],
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
    _list_measurements(registry.measurements)


def _list_measurements(states: Sequence[InstalledPlugin]) -> None:
    if states:
        output.print_line()
        output.table(("remote measurement", "state", "from"), [(s.name, str(s.state), _owner(s)) for s in states])
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
    return _plugin_data(
        state,
        stands_for=state.stands_for,
        description=state.info.description if state.info else "",
        api_version=list(state.info.api_version) if state.info else None,
        licence=state.info.licence if state.info else "",
        versions=dict(versions),
        devices=list(state.availability.devices) if state.availability else [],
    )


def _library_data(library: KernelLibrary) -> dict[str, Any]:
    return _plugin_data(library, kernels=sum(1 for _ in library.table or ()), overrides=list(library.overrides))


def _plugin_data(plugin: InstalledPlugin, **fields: Any) -> dict[str, Any]:
    """Return a plugin as JSON values, with the fields of its kind."""
    common = {"name": plugin.name, "state": str(plugin.state), "owner": plugin.owner, "version": plugin.version}
    return {**common, **fields, "detail": plugin.detail, "remedy": plugin.remedy, "traceback": plugin.traceback}


def _name(state: BackendState) -> str:
    return f"{state.name} (here: {state.stands_for})" if state.stands_for else state.name


def _owner(state: InstalledPlugin) -> str:
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


class Template(StrEnum):
    """The kinds of backends that `delegate new-backend` writes."""

    TABLE = "table"
    ASK = "ask"
    COMPILER = "compiler"


_NAMES = {"pyproject.toml.txt": "pyproject.toml", "delegate_acme": "delegate_{name}", "check_acme.py": "test_{name}.py"}


def new_backend(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the backend, e.g. acme.")],
    folder: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", callback=options.PACKAGE, help="Folder to write. Default: delegate-NAME."
        ),
    ] = None,
    template: Annotated[
        Template,
        typer.Option(
            help="table: a row per operator. ask: the library is queried about each node. "
            "compiler: Prims, compiled for each shape."
        ),
    ] = Template.TABLE,
) -> None:
    """Write an installable backend as a start; it passes the tests that every backend must pass."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise DelegateError(
            f"{name!r} is not a valid name for a backend", remedy="use lowercase letters, digits and '_'"
        )
    if name in Registry().names() or name == "portable":
        raise DelegateError(f"there is already a backend {name!r}", remedy="use another name")
    target = Path(_distribution(name)) if folder is None else folder
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise DelegateError(f"{str(target)!r} already exists", remedy="give another folder with --output")
    skeleton = resources.files("delegate.skeleton")
    _write(skeleton, target, name)
    if template is not Template.TABLE:
        _write(skeleton / template, target / f"delegate_{name}", name)
    output.print_line(f"wrote {target}")
    output.print_line("next: pip install 'setuptools>=77'")
    output.print_line(
        f"then: pip install --no-build-isolation --editable {target}, and `delegate check-backend {name}`"
    )


def _write(source: Traversable, target: Path, name: str) -> None:
    """Write a folder of the skeleton, without the folders of other templates."""
    target.mkdir(parents=True, exist_ok=True)
    for item in source.iterdir():
        if item.name in ("__pycache__", "py.typed", *Template):
            continue
        if item.name == "__init__.py" and source.name != "delegate_acme":
            continue
        place = target / _NAMES.get(item.name, item.name).format(name=name)
        if item.is_dir():
            _write(item, place, name)
        else:
            place.write_text(replace_names(item.read_text(encoding="utf-8"), name), encoding="utf-8")


def _distribution(name: str) -> str:
    return f"delegate-{name.replace('_', '-')}"


def replace_names(text: str, name: str) -> str:
    """Replace the names of the package, classes and the backend in a text of the skeleton."""
    title = "".join(part.capitalize() for part in name.split("_"))
    text = re.sub(r"delegate\.skeleton\.(delegate_acme|ask|compiler)", "delegate_acme", text)
    return text.replace("delegate-acme", _distribution(name)).replace("acme", name).replace("Acme", title)
