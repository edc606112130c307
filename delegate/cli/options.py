"""Options that several commands have: modules to import, how program files are loaded, and output files.

`--import MODULE` imports a module of the user, with functions that return models or data. The paths of output files are
checked before any work.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from delegate.cli.completions import kernel_names
from delegate.common.files import require_file, require_folder
from delegate.common.interrupts import interruptible
from delegate.devtools.listeners import listen
from delegate.errors import (
    ConfigError,
    DelegateError,
    ExportError,
    InputError,
    PartitionError,
    ProgramError,
    did_you_mean,
)
from delegate.plugins import one_line

if TYPE_CHECKING:
    from delegate.devtools.trace import Trace

Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE[:FUNCTION]",
        help="Import a module first, and call its function, e.g. to register classes of inputs.",
    ),
]
Kernels = Annotated[
    list[str] | None,
    typer.Option(
        "--kernels",
        "-k",
        metavar="NAME",
        autocompletion=kernel_names,
        help="Kernel library, e.g. aten; repeat it in order of preference.",
    ),
]
TrustCode = Annotated[
    bool,
    typer.Option(
        "--trust-code", help="Open partitions of machine code, as of TVM and QNN, which runs with your permissions."
    ),
]


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """The options that say how a program file is loaded."""

    kernels: Kernels = None
    fallback: Annotated[
        Literal["allow", "warn", "error"] | None,
        typer.Option(
            "--fallback", case_sensitive=False, help="Reaction if a delegate fails whose partition has kernels."
        ),
    ] = None
    trust_code: TrustCode = False
    isolate: Annotated[
        bool, typer.Option("--isolate", help="Run delegates in a separate process, for an untrusted file.")
    ] = False
    options: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="BACKEND.NAME=VALUE", help="Option of a backend, e.g. xnnpack.threads=4."),
    ] = None

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `delegate.load`; raises InputError if an option is not BACKEND.NAME=VALUE."""
        return {**asdict(self), "options": parse_load_options(self.options or [])}


def import_modules(names: Sequence[str] | None) -> None:
    """Import the modules of `--import`, in order.

    Raises:
        ExportError: the module or function does not exist, or it fails.
    """
    for name in names or ():
        module_name, colon, function_name = name.partition(":")
        module = import_module(module_name, f"--import {name}")
        if colon:
            function = getattr(module, function_name, None)
            if not callable(function):
                known = [n for n, f in vars(module).items() if callable(f)]
                what = f"module {module_name} has no function {function_name!r}"
                raise ExportError(what, where=f"--import {name}", remedy=did_you_mean(function_name, known))
            try:
                with interruptible():
                    function()
            except (Exception, SystemExit) as error:
                if isinstance(error, DelegateError):
                    raise
                what = f"{name} failed: {one_line(error)}"
                raise ExportError(what, remedy="`--debug` shows the traceback") from error


def import_module(name: str, purpose: str) -> ModuleType:
    """Import a module of the installed packages or of the working directory.

    Args:
        name: the name of the module.
        purpose: the option or argument that names it, for messages.

    Raises:
        ExportError: the module does not exist, or its import fails.
    """
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        with interruptible():
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(missing + "."):
            what = f"there is no module {missing!r} for {purpose}"
            raise ExportError(what, remedy="modules are searched here and in the installed packages") from None
        raise ExportError(f"importing {name} failed: {one_line(error)}", remedy="install it") from error
    except (Exception, SystemExit) as error:
        what = f"importing {name} failed: {one_line(error)}"
        raise ExportError(what, remedy="`--debug` shows the traceback") from error


Check = Callable[[Path | None], Path | None]  # of an option, as typer takes it


def _file(what: str, error: type[DelegateError], *, streams: bool = False) -> Check:
    def check(value: Path | None) -> Path | None:
        if value is not None:
            require_file(value, what, error, streams=streams)
        return value

    return check


def _folder(what: str, error: type[DelegateError]) -> Check:
    def check(value: Path | None) -> Path | None:
        if value is not None:
            require_folder(value, what, error)
        return value

    return check


PROGRAM = _file("the program", ProgramError)
REPORT = _file("the report", DelegateError)
GRAPH = _file("the graph", DelegateError)
BUNDLE = _file("the bundle", ProgramError)
LOCK = _file("the lockfile", PartitionError, streams=True)
COSTS = _file("costs", PartitionError, streams=True)
PROFILE = _file("the profile", PartitionError)
TRACE = _file("the trace", InputError)
OUTPUTS = _folder("the outputs", InputError)
PACKAGE = _folder("the package", DelegateError)


TraceFile = Annotated[
    Path | None,
    typer.Option(
        "--trace", metavar="FILE", callback=TRACE, help="Write a trace of all events, for ui.perfetto.dev (JSON)."
    ),
]


@contextmanager
def tracing(path: Path | None) -> Iterator[Trace | None]:
    """Write a trace of the lowering and loading in a `with` block; yield its listener, for runs. None: write nothing.

    Raises:
        InputError: the file cannot be written.
    """
    if path is None:
        yield None
        return
    from delegate.devtools.trace import Trace

    with Trace(path) as trace, listen(trace):
        yield trace


def require_distinct(written: Mapping[str, Path | None], read: Mapping[str, Path | None]) -> None:
    """Raise ConfigError if an output file is also an input file or another output file.

    Args:
        written: option -> the output file, if any.
        read: option -> the input file, if any.
    """
    seen: dict[str, str] = {os.path.realpath(path): option for option, path in read.items() if path is not None}
    for option, path in written.items():
        if path is None or (os.path.exists(path) and not os.path.isfile(path)):
            continue  # streams are not overwritten
        other = seen.setdefault(os.path.realpath(path), option)
        if other != option:
            raise ConfigError(f"{option} would overwrite {other}", where=str(path), remedy="name another file")


def parse_load_options(items: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the options of `--option` by backend; a value that is valid JSON is decoded, others are text.

    Raises:
        InputError: an item is not of the form BACKEND.NAME=VALUE.
    """
    options: dict[str, dict[str, Any]] = {}
    for item in items:
        name, equals, value = item.partition("=")
        backend, dot, option = name.rpartition(".")
        if not (equals and dot and backend and option):
            remedy = "write BACKEND.NAME=VALUE, e.g. xnnpack.threads=4"
            raise InputError(f"--option {item!r} is not an option", remedy=remedy)
        own = options.setdefault(backend, {})
        try:
            own[option] = json.loads(value)
        except ValueError:
            own[option] = value
    return options
