"""Modules of the user, of `--import MODULE` and `MODULE:FUNCTION`: their functions return models or data."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from delegate.errors import DelegateError, ExportError, did_you_mean
from delegate.plugins import one_line


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
