"""What stands in the place of parts of a closed program, and why objects of the runtime are not pickled."""

from __future__ import annotations

from typing import NoReturn

from delegate.errors import ProgramError


def closed_error() -> ProgramError:
    """The error of whatever is asked of a closed program."""
    return ProgramError("the program is closed", remedy="load it again")


class Closed:
    """Stands for what a method runs on: any call of it raises ProgramError."""

    def run(self, *args: object) -> NoReturn:
        """Raise ProgramError."""
        raise closed_error()

    execute = arrays = symbols = run


class NotPicklable:
    """Base of what is bound to memory and delegates of this process."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled or copied: it holds memory and delegates of this process; "
            "load the program's file where it is wanted, or make another context of it"
        )
