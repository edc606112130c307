"""Checks of fields: of plugin objects at construction, and of JSON and YAML that others wrote.

A wrong field of a plugin object is a TypeError, whose traceback ends in the plugin's code. The other functions read one
key of a mapping, and convert no value. They raise KeyError if the key is missing, TypeError or ValueError if the value
is wrong. `fault` describes these errors. `build` reads all fields of a dataclass by these functions.
"""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import cache, partial
from types import UnionType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")
Reader = Callable[[Mapping[str, Any], str], Any]
S = TypeVar("S")
_MOST_COUNT = 2**63
_NOT_FINITE = ("inf", "-inf", "nan")  # their JSON form


def fault(error: Exception) -> str:
    """Describe in plain words why data cannot be read, from an error that the reading raised."""
    if isinstance(error, RecursionError):
        return "it is too deeply nested"
    if isinstance(error, UnicodeError):
        return "it is not valid UTF-8"
    if isinstance(error, json.JSONDecodeError):
        return (
            f"it is not valid JSON, {error.msg[0].lower()}{error.msg[1:]} (line {error.lineno}, column {error.colno})"
        )
    if isinstance(error, KeyError):
        return f"it has no {error}"
    return "a value has the wrong type" if isinstance(error, TypeError | AttributeError) else str(error)


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


def expect_texts(owner: object, *names: str) -> None:
    """Raise TypeError unless these fields of an object under construction are texts."""
    for name in names:
        expect(owner, name, isinstance(getattr(owner, name), str), "text")


def expect_version(owner: Any) -> None:
    """Raise TypeError unless the field `api_version` of an object under construction is a pair of integers."""
    version = owner.api_version
    is_pair = isinstance(version, tuple) and [type(part) for part in version] == [int, int]
    expect(owner, "api_version", is_pair, "two whole numbers, (major, minor)")


def is_texts(value: object) -> bool:
    """Return True for a tuple or list of texts; a single text is not one."""
    return isinstance(value, tuple | list) and all(isinstance(item, str) for item in value)


def plain_json(value: Any) -> Any:
    """Return a value of plain types and dataclasses for JSON: infinities and NaN become text, which `number` reads."""
    if isinstance(value, str | int | None):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {key: plain_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(item) for item in value]
    if is_dataclass(value):
        return {name: plain_json(getattr(value, name)) for name in value.__dataclass_fields__}
    return value


def round_measurements(value: Any) -> Any:
    """Return measurements, in plain types and dataclasses, with floats of four digits: more are noise in a diff."""
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.4g}")
    if isinstance(value, tuple):
        return tuple(map(round_measurements, value))
    if isinstance(value, Mapping):
        return {key: round_measurements(item) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: round_measurements(getattr(value, field.name)) for field in fields(value)})
    return value


def require_format(data: Mapping[str, Any], known: int) -> None:
    """Raise ValueError if the data has another format."""
    format_number = data["format"]
    if type(format_number) is not int or format_number != known:
        raise ValueError(f"its format is {format_number!r}, but only format {known} is supported")


def text(data: Mapping[str, Any], key: str) -> str:
    """Return a text."""
    value = data[key]
    if not isinstance(value, str):
        raise _wrong(key, "text", value)
    return value


def texts(data: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Return a list of texts as a tuple."""
    value = data[key]
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise _wrong(key, "a list of text values", value)
    return tuple(value)


def mapping(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return a mapping with text keys."""
    value = data[key]
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise _wrong(key, "a mapping with text keys", value)
    return value


def items(data: Mapping[str, Any], key: str) -> tuple[Mapping[str, Any], ...]:
    """Return a list of mappings with text keys as a tuple."""
    value = data[key]
    if not isinstance(value, list | tuple):
        raise _wrong(key, "a list of mappings", value)
    return tuple(mapping({key: item}, key) for item in value)


def flag(data: Mapping[str, Any], key: str) -> bool:
    """Return True or False."""
    value = data[key]
    if not isinstance(value, bool):
        raise _wrong(key, "true or false", value)
    return value


def count(data: Mapping[str, Any], key: str) -> int:
    """Return an integer of 0 or more, of at most 63 bits."""
    value = data[key]
    if type(value) is not int or not 0 <= value < _MOST_COUNT:
        raise _wrong(key, "a whole number of 0 or more", value)
    return value


def number(data: Mapping[str, Any], key: str) -> float:
    """Return a number. Non-finite numbers may be texts."""
    value = data[key]
    if value not in _NOT_FINITE and type(value) not in (int, float):
        raise _wrong(key, "a number", value)
    try:
        return float(value)
    except OverflowError:  # of a whole number
        raise _wrong(key, "a number", value) from None


def finite(data: Mapping[str, Any], key: str) -> float:
    """Return a finite number."""
    value = number(data, key)
    if not math.isfinite(value):
        raise _wrong(key, "a finite number", data[key])
    return value


def amount(data: Mapping[str, Any], key: str) -> float:
    """Return a finite number of 0 or more."""
    value = number(data, key)
    if not 0 <= value < math.inf:
        raise _wrong(key, "a finite number of 0 or more", data[key])
    return value


def default(data: Mapping[str, Any], key: str, read: Callable[[Mapping[str, Any], str], T], absent: S) -> T | S:
    """Return a field that may be missing, read by one of these functions; `absent` without it."""
    return read(data, key) if key in data else absent


Amount = Annotated[float, amount]  # a field that `build` reads by this function


def build(kind: Callable[..., T], data: Mapping[str, Any]) -> T:
    """Return a dataclass from the mapping that `plain_json` makes of it; raises KeyError, TypeError or ValueError.

    Each field is read by its type. One with a default may be missing, and one that is not compared is not read. A class
    in a field may have a class method `from_data` in place of this function.
    """
    found = (field for field in _fields(kind) if field[1] or field[0] in data)
    return kind(**{name: read(data, name) for name, _, read in found})


@cache
def _fields(kind: Any) -> tuple[tuple[str, bool, Reader], ...]:
    """Return the name of each field, whether it is required, and the function that reads it."""
    hints = get_type_hints(kind, include_extras=True)
    return tuple(
        (field.name, field.default is field.default_factory is MISSING, _reader(hints[field.name]))
        for field in fields(kind)
        if field.compare
    )


def _reader(hint: Any) -> Reader:
    """Return the function that reads a field of a type."""
    origin, arguments = get_origin(hint), get_args(hint)
    known: dict[Any, Reader] = {str: text, int: count, float: number, bool: flag, Any: lambda data, key: data[key]}
    if hint in known or origin is Annotated:
        return known[hint] if hint in known else arguments[1]
    if origin is UnionType:
        inner = _reader(arguments[0])
        return lambda data, key: None if data[key] is None else inner(data, key)
    if origin in (tuple, list):
        inner = _reader(arguments[0])
        return lambda data, key: origin(inner({key: item}, key) for item in _list(data, key))
    if origin is Mapping:
        inner = _reader(arguments[1])
        return lambda data, key: {name: inner(data[key], name) for name in mapping(data, key)}
    if is_dataclass(hint):
        kind: Any = hint
        make: Callable[..., Any] = getattr(hint, "from_data", None) or partial(build, kind)
        return lambda data, key: make(mapping(data, key))
    return lambda data, key: hint(text(data, key))  # an enumeration


def _list(data: Mapping[str, Any], key: str) -> Any:
    value = data[key]
    if not isinstance(value, list | tuple):
        raise _wrong(key, "a list", value)
    return value


def _wrong(key: str, expected: str, value: Any) -> ValueError:
    return ValueError(f"{key} should be {expected}, not {reprlib.repr(value)}")
