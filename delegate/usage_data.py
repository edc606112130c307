"""Usage data that libraries send by themselves: a package of ours that uses such a library opts out of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence


def opt_out(
    *, variables: Mapping[str, str] | None = None, packages: Sequence[str] = (), answers: Sequence[str] = ()
) -> None:
    """Keep a library from sending usage data, and from the files that it keeps for this, in this process.

    Call it in the `__init__` of the package whose modules import the library. It then comes before every import of the
    library, in separate processes for compilers and isolated programs too, because after the import it is too late.

    Args:
        variables: environment variables -> the value that turns the usage data off. One that the user has set stays.
            Child processes inherit them.
        packages: packages that send the data for a library that has no variable; imports do not find them. One that
            was imported before stays.
        answers: files in which a user agrees or refuses, such as "~/.vendor/consent". If one exists, the library
            follows it, and nothing is changed.
    """
    if any(os.path.exists(os.path.expanduser(path)) for path in answers):
        return
    for name, value in (variables or {}).items():
        os.environ.setdefault(name, value)
    for package in packages:
        sys.modules.setdefault(package, None)  # type: ignore[arg-type]
