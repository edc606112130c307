"""Options that several commands have, with the completions of names, and how a model is read.

Paths of output files are checked before any work. `delegate --install-completion` adds the completions to the shell.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from delegate.cli import output
from delegate.common.files import require_file, require_folder
from delegate.errors import (
    ConfigError,
    DelegateError,
    InputError,
    PartitionError,
    ProgramError,
)
from delegate.events import Listener, listen
from delegate.plugins import BACKENDS, KERNELS, PORTABLE, discover, load_developer_tool
from delegate.plugins.user_modules import import_modules

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from delegate.config import Config


def backend_names(incomplete: str) -> list[str]:
    """Return the names of installed backends that begin with a text; no plugin is imported."""
    return _beginning([*discover(BACKENDS).claims, PORTABLE], incomplete)


def kernel_names(incomplete: str) -> list[str]:
    """Return the names of installed kernel libraries that begin with a text; no plugin is imported."""
    return _beginning(discover(KERNELS).claims, incomplete)


def method_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the methods of the program files that are already on the command line."""
    return _beginning(dict.fromkeys(_methods(context)), incomplete)


def _methods(context: typer.Context) -> Iterator[str]:
    from delegate.program import file  # which takes longer than all else

    for value in (*context.params.values(), *context.args):
        if isinstance(value, str | Path) and Path(value).suffix == ".dlg":
            try:
                yield from (method.name for method in file.load(Path(value)).methods)
            except DelegateError:
                continue


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


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


Check = Callable[[Path | None], Path | None]  # of an option, as typer takes it


def check_destination(require: Callable[..., None], what: str, error: type[DelegateError], **kinds: bool) -> Check:
    """Return the check of an option that names an output file or folder; arguments as of `require_file`."""

    def check(value: Path | None) -> Path | None:
        if value is not None:
            require(value, what, error, **kinds)
        return value

    return check


PROGRAM = check_destination(require_file, "the program", ProgramError)
REPORT = check_destination(require_file, "the report", DelegateError)
BUNDLE = check_destination(require_file, "the bundle", ProgramError)
LOCK = check_destination(require_file, "the lockfile", PartitionError, streams=True)
COSTS = check_destination(require_file, "costs", PartitionError, streams=True)
PROFILE = check_destination(require_file, "the profile", PartitionError)
TRACE = check_destination(require_file, "the trace", InputError)
OUTPUTS = check_destination(require_folder, "the outputs", InputError)
PACKAGE = check_destination(require_folder, "the package", DelegateError)


TraceFile = Annotated[
    Path | None,
    typer.Option(
        "--trace", metavar="FILE", callback=TRACE, help="Write a trace of all events, for ui.perfetto.dev (JSON)."
    ),
]


@contextmanager
def tracing(path: Path | None) -> Iterator[Listener | None]:
    """Write a trace of the lowering and loading in a `with` block; yield its listener, for runs. None: write nothing.

    Raises:
        InputError: the file cannot be written.
        ConfigError: the package delegate-devtools is not installed.
    """
    if path is None:
        yield None
        return
    with load_developer_tool("trace", "--trace")(path) as trace, listen(trace):
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


Model = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="file.pt2, or package.module:function returning (module, example_inputs)."),
]


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """The options that say how a model is read, and which backends run it."""

    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", help="YAML file; `delegate config check` checks it."),
    ] = None
    backend: Annotated[
        list[str] | None,
        typer.Option(
            "--backend",
            "-b",
            metavar="NAME",
            autocompletion=backend_names,
            help="Backend; repeat it in order of preference. Default: all available.",
        ),
    ] = None
    example_inputs: Annotated[
        list[str] | None,
        typer.Option("--input", "-i", metavar="A.npy", help="Example input of a TorchScript file, in order."),
    ] = None
    imports: Imports = None

    @property
    def backends(self) -> list[str] | None:
        """The backends in order of preference; None for all available."""
        return self.backend or None

    @property
    def is_given(self) -> bool:
        """Whether the command line has one of these options."""
        return bool(self.config or self.backend or self.example_inputs or self.imports)

    def load_model(self, model: str) -> ExportedProgram | Path:
        """Import the modules of `--import`, and return the model for `to_backend`; raises as `models.load_model`."""
        import_modules(self.imports)
        with output.working("importing torch"):
            from delegate.cli.models import load_model
        with output.working(f"exporting {model}"):
            return load_model(model, self.example_inputs or ())


@dataclass(frozen=True, slots=True)
class LoweringOptions(PlanOptions):
    """The options of commands that compile a model."""

    calibration: Annotated[
        str | None,
        typer.Option(
            metavar="DATA",
            help="Data to quantize with, in place of the configuration's: .npz, a folder of these, or module:function.",
        ),
    ] = None

    def read_settings(self) -> Config | None:
        """Return the configuration, with other calibration data if given; raises as `models.read_settings`."""
        from delegate.cli.models import read_settings

        return read_settings(self.config, self.calibration)
