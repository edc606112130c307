"""Values of JSON and YAML that others wrote, by what they should be: nothing is taken for something else.

Each reads one key of a mapping, and raises KeyError where it is not there, TypeError or ValueError where it is wrong.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from typing import Any

_MOST_COUNT = 2**63
_NOT_FINITE = ("inf", "-inf", "nan")  # what JSON has for these


def require_format(data: Mapping[str, Any], known: int) -> None:
    """Raise ValueError where it is of another format."""
    given = data["format"]
    if type(given) is not int or given != known:
        raise ValueError(f"its format is {given!r}, known is {known}")


def text(data: Mapping[str, Any], key: str) -> str:
    """A text."""
    value = data[key]
    if not isinstance(value, str):
        raise _wrong(key, "a text", value)
    return value


def texts(data: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """A list of texts."""
    value = data[key]
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise _wrong(key, "a list of texts", value)
    return tuple(value)


def mapping(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A mapping by texts."""
    value = data[key]
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise _wrong(key, "a mapping by texts", value)
    return value


def items(data: Mapping[str, Any], key: str) -> tuple[Mapping[str, Any], ...]:
    """A list of mappings by texts."""
    value = data[key]
    if not isinstance(value, list | tuple):
        raise _wrong(key, "a list of mappings", value)
    return tuple(mapping({key: item}, key) for item in value)


def flag(data: Mapping[str, Any], key: str) -> bool:
    """True or False."""
    value = data[key]
    if not isinstance(value, bool):
        raise _wrong(key, "true or false", value)
    return value


def count(data: Mapping[str, Any], key: str) -> int:
    """A whole number of 0 or more, of 63 bits at most."""
    value = data[key]
    if type(value) is not int or not 0 <= value < _MOST_COUNT:
        raise _wrong(key, "a whole number of 0 or more", value)
    return value


def number(data: Mapping[str, Any], key: str) -> float:
    """A number; one that is not finite may be its text."""
    value = data[key]
    if value not in _NOT_FINITE and type(value) not in (int, float):
        raise _wrong(key, "a number", value)
    try:
        return float(value)
    except OverflowError:  # of a whole number
        raise _wrong(key, "a number", value) from None


def finite(data: Mapping[str, Any], key: str) -> float:
    """A finite number."""
    found = number(data, key)
    if not math.isfinite(found):
        raise _wrong(key, "a finite number", data[key])
    return found


def amount(data: Mapping[str, Any], key: str) -> float:
    """A finite number of 0 or more."""
    found = number(data, key)
    if not 0 <= found < math.inf:
        raise _wrong(key, "a finite number of 0 or more", data[key])
    return found


def _wrong(key: str, wanted: str, value: Any) -> ValueError:
    return ValueError(f"{key} should be {wanted}, not {reprlib.repr(value)}")
