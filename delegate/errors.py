"""The exception tree of the project.

    DelegateError
    |-- ExportError          the model could not be taken from torch                      (AOT)
    |-- DialectError         a graph breaks the rules of its dialect                      (AOT)
    |-- ConfigError          a configuration or an option is wrong                        (AOT)
    |-- PartitionError       a plan cannot be made or is not valid                        (AOT)
    |-- LoweringError        a region or a leftover node cannot be lowered                (AOT)
    |-- AccuracyError        results are farther from the reference than allowed         (AOT)
    |-- ProgramError         a program file is damaged, foreign, or of another version    (file)
    |-- BackendError
    |   |-- BackendNotFound       no backend of that name is registered
    |   |-- BackendBroken         its plugin fails to import; the traceback is kept
    |   |-- BackendIncompatible   its plugin speaks another API version
    |   |-- BackendUnavailable    its library or its device is absent here
    |   `-- BackendFailed         it accepted the work and then failed at it
    |       `-- DeviceLost        its device's memory cannot be read or written any more
    |-- ListenerError        a listener of events failed
    `-- ExecutionError
        |-- InputError            the caller's inputs do not fit the method
        `-- KernelError           a kernel is missing or failed

Every message says what was wrong, where, and what to do about it, on one line.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any


class DelegateError(Exception):
    """Base of all errors of this project.

    Args:
        what: what is wrong, naming the thing, without a full stop.
        where: the place: a node, an operator, a file and line, an input.
        remedy: what the reader can do.
    """

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        self.what, self.where, self.remedy = what, where, remedy
        super().__init__(what, where, remedy)

    def __reduce__(self) -> tuple[Any, ...]:
        """Support pickling, by which worker processes send errors to their parent."""
        return functools.partial(type(self), where=self.where, remedy=self.remedy), (self.what,)

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        remedy = f": {self.remedy}" if self.remedy else ""
        return f"{self.what}{place}{remedy}"

    def at(self, place: str, remedy: str = "") -> DelegateError:
        """Return the error, of a class in this module, with a place before its own and a remedy after its own."""
        kind = next(c for c in type(self).__mro__ if c.__module__ == __name__)
        where = ", ".join(part for part in (place, " ".join(self.where.split())) if part)
        error: DelegateError = kind(self.what, where=where, remedy="; or ".join(r for r in (self.remedy, remedy) if r))
        return error


class ExportError(DelegateError):
    """The model could not be taken from torch."""


class DialectError(DelegateError):
    """A graph breaks the rules of its dialect."""


class ConfigError(DelegateError):
    """A configuration or an option is wrong."""


class PartitionError(DelegateError):
    """A plan cannot be made, or is not valid."""


class LoweringError(DelegateError):
    """A region, or a node that no backend supports, cannot be lowered."""


class AccuracyError(DelegateError):
    """Results are farther from the reference than the policy allows, or cannot be compared with them."""


class ProgramError(DelegateError):
    """A program file is damaged, foreign, or of another version."""


class BackendError(DelegateError):
    """Something is wrong with a backend."""


class BackendNotFound(BackendError):
    """No backend of that name is registered."""


class BackendBroken(BackendError):
    """A backend's plugin fails to import."""


class BackendIncompatible(BackendError):
    """A backend's plugin speaks another version of the plugin API."""


class BackendUnavailable(BackendError):
    """A backend's library or device is absent on this machine."""


class BackendFailed(BackendError):
    """A backend accepted the work and then failed at it."""


class DeviceLost(BackendFailed):
    """The memory of a backend's device cannot be read or written any more."""


class ListenerError(DelegateError):
    """A listener of events failed, but the results are valid."""


class ExecutionError(DelegateError):
    """A run of a method failed."""


class InputError(ExecutionError):
    """The caller's inputs do not fit the method."""


class KernelError(ExecutionError):
    """A kernel is missing or failed."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a remedy: the nearest known name, else all of them.

    >>> did_you_mean("xnnpak", ["xnnpack", "gpu"])
    "did you mean 'xnnpack'?"
    """
    names = sorted(known)
    import difflib  # an error is rare, and every process imports this module

    matches = difflib.get_close_matches(name, names, n=1) if len(name) <= 200 else []
    if matches:
        return f"did you mean {matches[0]!r}?"
    return f"known: {', '.join(names)}" if names else "none is known"
