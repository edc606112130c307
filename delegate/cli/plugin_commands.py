"""Commands of other packages, found by entry point in the group `delegate.commands`.

An entry point has the name of the command, and refers to a function as those in this package, with typer's annotations.
`delegate --help` imports its module, so large libraries are imported inside of the function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

from delegate.cli import output
from delegate.cli.commands import PluginCommand, build_command
from delegate.errors import ConfigError
from delegate.plugins import COMMANDS, InstalledPlugin, Plugin, discover, import_plugin, read_blocked_names

_ANY_ARGUMENTS = {"ignore_unknown_options": True, "allow_extra_args": True}  # of a command that cannot be used


def names() -> list[str]:
    """Return the names of all commands of other packages, in alphabetical order; imports nothing."""
    return list(discover(COMMANDS).claims)


def find(name: str) -> Any:
    """Return the command object of a name, None if there is none. If it cannot be used, its run raises ConfigError."""
    claims = discover(COMMANDS).claims.get(name)
    if claims is None:
        return None
    return build_command(name, *_function(name, claims), cls=PluginCommand)


class CommandState(InstalledPlugin):
    """The state of a command on this machine."""

    noun: ClassVar[str] = "command"


def _function(name: str, claims: tuple[Plugin, ...]) -> tuple[Callable[..., None], dict[str, bool]]:
    """Return the function of a command, and the settings of its context."""
    state = CommandState.refused(claims, read_blocked_names())
    if state is None:
        with output.results_only():
            function = import_plugin(CommandState, claims[0])
        if not isinstance(function, CommandState):
            if callable(function):
                return function, {}
            problem = f"provides {type(function).__name__} at {claims[0].value}, not a function"
            function = CommandState.broken(claims[0], problem)
        state = function
    return _unusable(state), _ANY_ARGUMENTS


def _unusable(state: CommandState) -> Callable[[], NoReturn]:
    def fail() -> NoReturn:
        state.require_ok(ConfigError)
        raise AssertionError(state)

    fail.__doc__ = f"Not usable: {state.detail}."
    return fail
