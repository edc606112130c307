"""Commands with help pages that name every required option, lists of commands with whole sentences, and plugins."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from inspect import Parameter, signature
from typing import Any, ClassVar, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from delegate.cli import output
from delegate.errors import ConfigError
from delegate.plugins import InstalledPlugin, Plugin, import_claimed, read_blocked_names

USAGE = 2  # the exit code of wrong usage


class Command(TyperCommand):
    """A command whose usage line has its required options, and whose help names arguments as the usage line does."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; what others print in it is not a result."""
        with output.results_only():
            return super().invoke(ctx)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line, e.g. "[OPTIONS] --output FILE MODEL"."""
        required = [f"{p.opts[-1]} {p.metavar}" for p in self.params if p.param_type_name == "option" and p.required]
        pieces = super().collect_usage_pieces(ctx)
        return [*pieces[:1], *required, *(piece.replace("{", "").replace("}", "") for piece in pieces[1:])]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and the options, the required ones first."""
        for kind in ("argument", "option"):
            params = [p for p in self.get_params(ctx) if p.param_type_name == kind]
            records = [p.get_help_record(ctx) for p in sorted(params, key=lambda p: not p.required)]
            rows = [
                (name.partition(" <")[0] if kind == "argument" else name, text) for name, text in filter(None, records)
            ]
            if rows:
                with formatter.section(f"{kind.capitalize()}s"):
                    formatter.write_dl(rows)


class PluginCommand(Command):
    """A command of another package, which prints its results by `print`; with `--json` by `output.print_json`."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; with `--json`, what others print in it is not a result."""
        is_json = any(ctx.params.get(p.name) for p in self.params if "--json" in p.opts)
        return super().invoke(ctx) if is_json else super(Command, self).invoke(ctx)


class Group(TyperGroup):
    """A group of commands; its help has the whole first sentence of each command, in the order of the program."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options of the group; wrong usage ends the process."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            _end_if_wrong_usage(error)
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run a command; wrong usage ends the process."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            _end_if_wrong_usage(error)
            raise

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options, then the commands."""
        records = [p.get_help_record(ctx) for p in self.get_params(ctx)]
        with formatter.section("Options"):
            formatter.write_dl([record for record in records if record is not None])
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.summary(ctx, name)) for name in self.list_commands(ctx)])

    def summary(self, ctx: Any, name: str) -> str:
        """Return the line about a command in the list of commands: the first sentence of its help."""
        command: Any = self.get_command(ctx, name)
        text = command.help or ""
        return " ".join(text.split()).partition(". ")[0].rstrip(".") + "."


def build_command(name: str, source: Any, settings: dict[str, bool] | None = None, *, cls: Any = Command) -> Any:
    """Return the command object of a function with typer's annotations, or of a `typer.Typer`, a group of commands.

    A parameter of the function that is a dataclass is a group of options, see `expand_groups`.

    Args:
        name: the name on the command line.
        source: the function or the group.
        settings: The context's settings, see `typer.Typer.command`.
        cls: the class of the command.
    """
    if isinstance(source, typer.Typer):
        group = typer.main.get_group(source)
        group.name = name
        return group
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(name, cls=cls, context_settings=settings)(expand_groups(source))
    return typer.main.get_command(app)


def expand_groups(function: Callable[..., None]) -> Callable[..., None]:
    """Return a command's function with the fields of its option groups as parameters, which is what typer reads.

    A group is a parameter whose type is a dataclass. Each field has typer's annotation and a default, and becomes one
    option; the function gets an instance.
    """
    groups: dict[str, tuple[type, list[str]]] = {}
    parameters: list[Parameter] = []
    for parameter in signature(function, eval_str=True).parameters.values():
        group = parameter.annotation
        if not (isinstance(group, type) and is_dataclass(group)):
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))
            continue
        groups[parameter.name] = group, [field.name for field in fields(group)]
        hints = get_type_hints(group, include_extras=True)
        parameters += (
            Parameter(f.name, Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[f.name])
            for f in fields(group)
        )

    @functools.wraps(function)
    def command(**arguments: Any) -> None:
        for name, (group, names) in groups.items():
            arguments[name] = group(**{field: arguments.pop(field) for field in names})
        function(**arguments)

    command.__signature__ = signature(function).replace(parameters=parameters)  # type: ignore[attr-defined]
    return command


def _end_if_wrong_usage(error: Exception) -> None:
    """Report an error in the form of a command line, and exit with code 2; return for other errors."""
    if not hasattr(error, "format_message") or type(error).__name__ == "NoArgsIsHelpError":  # typer has its own click
        return
    context = getattr(error, "ctx", None)
    is_ours = isinstance(error, typer.BadParameter) and error.param is None
    if context is not None:
        print(f"{context.get_usage()}\n`{context.command_path} --help` explains it", file=sys.stderr)
    output.error(str(error) if is_ours else error.format_message())
    raise typer.Exit(USAGE)


class CommandState(InstalledPlugin):
    """The state of a command on this machine."""

    noun: ClassVar[str] = "command"


def build_plugin_command(name: str, claims: Sequence[Plugin]) -> Any:
    """Return the command of another package from the plugins of its name; if it cannot be used, it raises ConfigError.

    An entry point in the group `delegate.commands` has the name of the command, and refers to a function as those in
    this package, with typer's annotations. `delegate --help` imports its module, so large libraries are imported inside
    of the function.
    """
    with output.results_only():
        function = import_claimed(CommandState, claims, read_blocked_names())
    if not isinstance(function, CommandState) and callable(function):
        return build_command(name, function, cls=PluginCommand)
    problem = f"provides {type(function).__name__} at {claims[0].value}, not a function"
    state = function if isinstance(function, CommandState) else CommandState.broken(claims[0], problem)

    def fail() -> None:
        state.require_ok(ConfigError)

    fail.__doc__ = f"Not usable: {state.detail}."
    return build_command(name, fail, {"ignore_unknown_options": True, "allow_extra_args": True}, cls=PluginCommand)
