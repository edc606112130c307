"""Modules of the user, of `--import MODULE` and `MODULE:FUNCTION`: their functions return models or data."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from delegate.errors import DelegateError, ExportError, InputError, did_you_mean
from delegate.plugins import one_line

Error = type[ExportError] | type[InputError]


def import_modules(names: Sequence[str] | None) -> None:
    """Import the modules of `--import`, in order, and call the functions that are named.

    Raises:
        ExportError: the module or function does not exist, or it fails.
    """
    for name in names or ():
        if ":" not in name:
            import_module(name, f"--import {name}")
            continue
        function = load_function(name, f"--import {name}")
        try:
            function()
        except (Exception, SystemExit) as error:
            if isinstance(error, DelegateError):
                raise
            raise ExportError(f"{name} failed: {one_line(error)}", remedy=_TRACEBACK) from error


_TRACEBACK = "`--debug` shows the traceback"


def load_function(name: str, purpose: str, kind: Error = ExportError) -> Callable[[], Any]:
    """Return the function "package.module:function"; arguments and errors as of `import_module`."""
    module_name, _, function_name = name.partition(":")
    module = import_module(module_name, purpose, kind)
    function: Any = getattr(module, function_name, None)
    if function is None:
        own = (n for n, f in vars(module).items() if callable(f) and getattr(f, "__module__", "") == module_name)
        known = [n for n in own if not n.startswith("_")]
        what = f"module {module_name} has no function {function_name!r}"
        raise kind(what, where=purpose, remedy=did_you_mean(function_name, known))
    if not callable(function):
        raise kind(f"{name} is a {type(function).__name__}, not a function", where=purpose, remedy="name a function")
    checked: Callable[[], Any] = function
    return checked


def import_module(name: str, purpose: str, kind: Error = ExportError) -> ModuleType:
    """Import a module of the installed packages or of the working directory.

    Args:
        name: the name of the module.
        purpose: the option, argument or key that names it, for messages.
        kind: the class of the error.

    Raises:
        ExportError, InputError: the module does not exist, or its import fails.
    """
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(missing + "."):
            what = f"there is no module {missing!r} for {purpose}"
            raise kind(what, remedy="modules are searched here and in the installed packages") from None
        raise kind(f"importing {name} failed: {one_line(error)}", remedy="install it") from error
    except (Exception, SystemExit) as error:
        raise kind(f"importing {name} failed: {one_line(error)}", remedy=_TRACEBACK) from error
