"""Warnings that name the user's line of code, and libraries' log lines that users should not see."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_INTERNAL = frozenset({"delegate", "torch", "contextlib"})  # packages whose frames lie between a warning and the user


def warn_user(message: str | Warning, category: type[Warning] = RuntimeWarning) -> None:
    """Warn at the innermost line that is outside of this project, its plugins, torch and contextlib.

    If no line is theirs, e.g. in a command, the warning names the outermost one.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_internal(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=frame.f_globals.get("__name__", ""),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )


@contextmanager
def limit_logs(*names: str, level: str = "ERROR") -> Iterator[None]:
    """Limit the loggers with these names, and those below them, to messages of a level."""
    import logging  # a program that only runs does not need it

    loggers = [logging.getLogger(name) for name in names]
    former = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(level)
    try:
        yield
    finally:
        for logger, own in zip(loggers, former, strict=True):
            logger.setLevel(own)


def _is_internal(module: str) -> bool:
    package = module.partition(".")[0]
    return package in _INTERNAL or package.startswith("delegate_")
