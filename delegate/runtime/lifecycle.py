"""The end of a program's life: replacements for parts of a closed program, and the error for pickling."""

from __future__ import annotations

from typing import NoReturn

from delegate.errors import ProgramError


def closed_error() -> ProgramError:
    """Return the error for any use of a closed program."""
    return ProgramError("the program is closed", remedy="load it again")


class Closed:
    """A replacement for the executor of a closed method: any call raises ProgramError."""

    def run(self, *args: object) -> NoReturn:
        """Raise ProgramError."""
        raise closed_error()

    execute = arrays = symbols = run


class NotPicklable:
    """A base of objects that are bound to memory and delegates of this process."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled or copied: it holds memory and delegates of this process; "
            "load the program's file where it is wanted, or make another context of it"
        )
