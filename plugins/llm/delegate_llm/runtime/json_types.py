"""Types of JSON values that others wrote: a table gives the range of every value, and is checked before any is used.

`check` of a type returns the value with the fields that the type knows, or raises ValueError, which names the place.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


class JsonType(Protocol):
    """The type of a JSON value."""

    def check(self, value: Any, place: str) -> Any:
        """Return the value with the known fields; raise ValueError if it is wrong.

        Args:
            value: the value, as `json.loads` returns it.
            place: its place in the file for the message, e.g. "model.vocab".
        """


def wrong(place: str, expected: str, value: Any) -> ValueError:
    """Return the error about a value that does not have its type."""
    return ValueError(f"{place} should be {expected}, not {reprlib.repr(value)}")


@dataclass(frozen=True)
class Leaf:
    """A value without parts.

    Args:
        expected: a description for the message.
        fits: returns True for a value of this type.
    """

    expected: str
    fits: Callable[[Any], bool]

    def check(self, value: Any, place: str) -> Any:
        """Return the value; raise ValueError if it does not fit."""
        if not self.fits(value):
            raise wrong(place, self.expected, value)
        return value


@dataclass(frozen=True)
class Nullable:
    """A value of a type, or null."""

    kind: JsonType

    def check(self, value: Any, place: str) -> Any:
        """Return the checked value, or None; raise ValueError if it is wrong."""
        return None if value is None else self.kind.check(value, place)


@dataclass(frozen=True)
class Items:
    """A list of `least` to `most` values of one type."""

    kind: JsonType
    most: int
    least: int = 0

    def check(self, value: Any, place: str) -> list[Any]:
        """Return the checked values; raise ValueError if one is wrong, or there are too many or too few."""
        if type(value) is not list or not self.least <= len(value) <= self.most:
            raise wrong(place, f"a list of {self.least} to {self.most:,} items", value)
        return [self.kind.check(item, f"{place}[{number}]") for number, item in enumerate(value)]


@dataclass(frozen=True)
class Entries:
    """An object whose keys are data: up to `most` keys, each of which is a `key`, with values of one type."""

    kind: JsonType
    most: int
    key: JsonType

    def check(self, value: Any, place: str) -> dict[str, Any]:
        """Return the checked values by key; raise ValueError if one is wrong, or there are too many."""
        if type(value) is not dict or len(value) > self.most:
            raise wrong(place, f"an object of up to {self.most:,} entries", value)
        return {self.key.check(k, f"a key of {place}"): self.kind.check(v, f"{place}.{k}") for k, v in value.items()}


@dataclass(frozen=True)
class Fields:
    """An object with these fields; others are left out.

    Args:
        required: the type of each field that the object must have.
        optional: the type of each field that it may have.
    """

    required: Mapping[str, JsonType]
    optional: Mapping[str, JsonType] = field(default_factory=dict)

    def check(self, value: Any, place: str) -> dict[str, Any]:
        """Return the checked fields in the order of the object; raise ValueError if one is wrong or missing."""
        if type(value) is not dict:
            raise wrong(place or "it", "an object", value)
        prefix = f"{place}." if place else ""
        if missing := sorted(self.required.keys() - value.keys()):
            raise ValueError(f"{place or 'it'} lacks {', '.join(missing)}")
        kinds = {**self.required, **self.optional}
        return {name: kinds[name].check(item, prefix + name) for name, item in value.items() if name in kinds}


def text_type(most: int, least: int = 0) -> Leaf:
    """Return the type of texts with a number of characters in a range."""
    return Leaf(f"a text of {least} to {most:,} characters", lambda v: type(v) is str and least <= len(v) <= most)


def integer_type(least: int, most: int) -> Leaf:
    """Return the type of integers in a range; booleans are not integers."""
    return Leaf(f"a whole number from {least} to {most:,}", lambda v: type(v) is int and least <= v <= most)


def number_type(least: float = -math.inf, most: float = math.inf) -> Leaf:
    """Return the type of finite numbers in a range."""
    bounds = "" if (least, most) == (-math.inf, math.inf) else f" from {least:g} to {most:g}"
    return Leaf(f"a finite number{bounds}", lambda v: _is_finite(v) and least <= v <= most)


def choice_type(*texts: str) -> Leaf:
    """Return the type of a text that is one of these."""
    return Leaf(f"one of {', '.join(texts)}", lambda v: type(v) is str and v in texts)


FLAG = Leaf("true or false", lambda v: type(v) is bool)


def _is_finite(value: Any) -> bool:
    try:
        return type(value) in (int, float) and math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        return False
