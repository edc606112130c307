"""Check the fields of plugin objects at construction, so that the traceback ends in the plugin's code."""

from __future__ import annotations

import reprlib


def expect(owner: object, field: str, fits: bool, expected: str) -> None:
    """Raise an error if a field of an object under construction is wrong.

    Args:
        owner: the object.
        field: its name.
        fits: True if its value is right.
        expected: the required value for the message, e.g. "text".

    Raises:
        TypeError: it does not fit.
    """
    if not fits:
        value = reprlib.repr(getattr(owner, field))
        raise TypeError(f"{type(owner).__name__}.{field} should be {expected}, not {value}")


def is_texts(value: object) -> bool:
    """Return True for a tuple or list of texts; a single text is not one."""
    return isinstance(value, tuple | list) and all(isinstance(item, str) for item in value)
