"""What plugins hand over is checked where they make it: the traceback then ends in their own code."""

from __future__ import annotations

import reprlib


def expect(owner: object, field: str, fits: bool, wanted: str) -> None:
    """Refuse a field of an object that is being made.

    Args:
        owner: the object.
        field: its name.
        fits: whether its value is right.
        wanted: what it should be, for the message, e.g. "text".

    Raises:
        TypeError: it does not fit.
    """
    if not fits:
        value = reprlib.repr(getattr(owner, field))
        raise TypeError(f"{type(owner).__name__}.{field} should be {wanted}, not {value}")


def is_texts(value: object) -> bool:
    """Whether it is a tuple or list of texts; one text alone is none."""
    return isinstance(value, tuple | list) and all(isinstance(item, str) for item in value)
