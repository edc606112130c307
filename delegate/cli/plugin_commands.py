"""Commands of other packages, found by entry point in the group `delegate.commands`.

An entry point has the name of the command, and refers to a function as those in this package, with typer's annotations.
`delegate --help` imports its module, so large libraries are imported inside of the function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from delegate.cli import output
from delegate.cli.commands import PluginCommand, build_command
from delegate.errors import ConfigError
from delegate.plugins import BLOCK_VARIABLE, COMMANDS, Plugin, blocked_names, discover, is_blocked, one_line

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


def _function(name: str, claims: tuple[Plugin, ...]) -> tuple[Callable[..., None], dict[str, bool]]:
    """Return the function of a command, and the settings of its context."""
    plugin = claims[0]
    if is_blocked(name, blocked_names()):
        what = f"command {name!r} is blocked by the environment variable {BLOCK_VARIABLE}"
        return _unusable(what, "remove it from this variable"), _ANY_ARGUMENTS
    if len(claims) > 1:
        owners = " and ".join(p.label for p in claims)
        what = f"several distributions provide the command {name!r}: {owners}"
        return _unusable(what, "uninstall all but one of them"), _ANY_ARGUMENTS
    try:
        with output.results_only():
            function = plugin.load()
        if callable(function):
            return function, {}
        problem, cause = f"provides {type(function).__name__} at {plugin.value}, not a function", None
    except (Exception, SystemExit) as error:
        problem, cause = f"fails to import: {one_line(error)}", error
    what = f"command {name!r} of {plugin.label} is broken: it {problem}"
    return _unusable(what, f"update or uninstall {plugin.owner}", cause), _ANY_ARGUMENTS


def _unusable(what: str, remedy: str, cause: BaseException | None = None) -> Callable[[], NoReturn]:
    def fail() -> NoReturn:
        raise ConfigError(what, remedy=remedy) from cause

    fail.__doc__ = f"Not usable: {what}."
    return fail
