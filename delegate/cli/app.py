"""The application: its commands, and the reporting of their errors."""

from __future__ import annotations

import functools
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

import delegate
from delegate.cli import commands, output
from delegate.errors import ConfigError, DelegateError
from delegate.plugins import COMMANDS, Plugin, discover, load_object

_AOT_LIBRARIES = frozenset({"torch", "pydantic", "yaml"})
# The commands of this project. Each is the function or the group that is imported when it is needed, so that a command
# does not wait for the libraries of another, and its line in the list of commands.
_COMMANDS = {
    "backends": (
        "delegate.cli.backends:backends",
        "List the installed backends and other plugins with their states, and remedies for those that are not ok.",
    ),
    "lower": ("delegate.cli.lower:lower", "Lower a model to a program file that runs without torch."),
    "explain": ("delegate.cli.inspect:explain", "Report the backend of each node, and why others reject it."),
    "run": (
        "delegate.cli.run:run",
        "Run a program file on .npy files, or on seeded random inputs, without torch.",
    ),
    "inspect": (
        "delegate.cli.inspect:inspect",
        "Show methods, values, instructions, memory, delegates and constants of a program file.",
    ),
    "report": (
        "delegate.cli.report:report",
        "Write the graph, the placement, the memory and the time of a program as one page for a browser.",
    ),
    "strip": (
        "delegate.cli.inspect:strip",
        "Remove the report, the module paths and the source lines of a program file.",
    ),
    "calibrate": (
        "delegate.cli.upkeep:calibrate",
        "Measure how fast backends and kernels are on this machine, for the placement of nodes.",
    ),
    "new-backend": (
        "delegate.cli.backends:new_backend",
        "Write an installable backend as a start; it passes the tests that every backend must pass.",
    ),
    "config": ("delegate.cli.upkeep:config_app", "Check a configuration, or print its schema."),
    "lock": ("delegate.cli.upkeep:lock_app", "Compare lockfiles, or check one."),
    "cache": ("delegate.cli.upkeep:cache_app", "Show or clear the cache."),
}


# The commands of plugins/, for messages: each package is found by its entry points.
_PACKAGES = {
    "batch": "ray", "check-backend": "testing", "debug": "devtools", "demo": "demo", "diff": "devtools",
    "export-graph": "devtools", "llm": "llm", "lower-many": "ray", "measure": "remote", "ops": "devtools",
    "serve": "serve",
}  # fmt: skip


class _OwnCommands(Mapping[str, Any]):
    """The commands of this project by name, each imported when it is read."""

    def __getitem__(self, name: str) -> Any:
        path, _ = _COMMANDS[name]
        return commands.build_command(name, load_object(path))

    def __iter__(self) -> Iterator[str]:
        return iter(_COMMANDS)

    def __len__(self) -> int:
        return len(_COMMANDS)


class Commands(commands.Group):
    """Commands whose errors are one line on stderr and exit code 1; `--debug`, anywhere, shows the traceback."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "commands": _OwnCommands()})

    @functools.cached_property
    def _plugins(self) -> Mapping[str, Sequence[Plugin]]:
        return discover(COMMANDS).claims

    def main(self, *args: Any, **kwargs: Any) -> Any:
        with output.escape_output():
            return super().main(*args, **kwargs)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of this project's commands, followed by the commands of other packages."""
        return [*_COMMANDS, *(name for name in self._plugins if name not in _COMMANDS)]

    def get_command(self, ctx: Any, name: str) -> Any:
        """Return a command by name, or None if nobody has it; a command of another package is imported now.

        Raises ConfigError for a command of plugins/ whose package is not installed.
        """
        if name in _COMMANDS:
            return super().get_command(ctx, name)
        if name in self._plugins:
            return commands.build_plugin_command(name, self._plugins[name])
        if name in _PACKAGES:
            what = f"the command {name!r} is in the package delegate-{_PACKAGES[name]}, which is not installed"
            raise ConfigError(what, remedy=f"pip install ./plugins/{_PACKAGES[name]}")
        return None

    def summary(self, ctx: Any, name: str) -> str:
        """Return the line about a command; imports only commands of other packages."""
        return _COMMANDS[name][1] if name in _COMMANDS else super().summary(ctx, name)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--debug" in args:
            args = ["--debug", *(a for a in args if a != "--debug")]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        with warnings.catch_warnings():
            warnings.showwarning = output.show_warning
            try:
                result = super().invoke(ctx)
                output.results().flush()  # a full disk is an error of the command, not of the interpreter's end
                return result
            except (typer.Exit, typer.Abort):
                raise
            except Exception as error:
                if hasattr(error, "show"):  # the help, if no command is given
                    raise
                if isinstance(error, OSError):
                    output.drop()
                if isinstance(error, BrokenPipeError):  # the reader of our output has gone
                    raise typer.Exit(1) from None
                if ctx.params.get("debug"):
                    print(traceback.format_exc().rstrip(), file=sys.stderr)
                for message in _messages(error):
                    output.error(message)
                raise typer.Exit(1) from None


def _messages(error: Exception) -> list[str]:
    """Return the messages about an error; a configuration may have several."""
    return str(error).splitlines() if isinstance(error, ConfigError) else [_message(error)]


def _message(error: Exception) -> str:
    if isinstance(error, DelegateError):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in _AOT_LIBRARIES:
        return f"this command needs {error.name}, which is not installed: pip install 'delegate[aot]'"
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}: `--debug` shows the traceback"


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(show: bool) -> None:
    if show:
        output.print_line(f"delegate {delegate.__version__}")
        raise typer.Exit


@app.callback()
def root(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error, and verify the program after each pass.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Run an exported PyTorch model on several backends, from one file."""
    if debug:
        os.environ["DELEGATE_VERIFY_PASSES"] = "1"
