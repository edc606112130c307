"""Random changes of what a reader reads: it returns something that can be used, or raises an error of this project."""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from delegate.errors import DelegateError

FILES = int(os.environ.get("FILES", "150"))  # of each kind
INTEGERS = (0, 1, -1, 2, 255, 2**31, 2**63, 2**64, 10**30, 10**400)
TEXTS = ("", "a", "\ud800", "x" * 300, "nan", "-inf", "forward", "\0", "../x")
OTHERS = (None, True, [], {}, [[]], {"x": 1}, 1.5, float("nan"), float("inf"))
Reader = Callable[[Any], object]


@contextmanager
def errors(*kinds: type[Exception]) -> Iterator[None]:
    """Return a context that raises an error of this project for the documented ones of a reader."""
    try:
        yield
    except kinds as error:
        raise DelegateError(str(error)) from error


def check_values(value: Any, write: Callable[[Any], str], read: Reader) -> None:
    """Read the texts of a JSON value of which some parts are changed; some are errors."""
    read(write(value))
    assert _outcomes(read, (write(_changed(value, random.Random(number))) for number in range(FILES))) >= {"error"}


def check_bytes(content: bytes, read: Reader) -> None:
    """Read a file of which some bytes are changed; some are errors."""
    read(content)
    assert _outcomes(read, (_damaged(content, random.Random(number)) for number in range(FILES))) >= {"error"}


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values within another."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from _places(item, (*path, key))


def _changed(value: Any, choose: random.Random) -> Any:
    """Return a copy of a value with some parts removed, replaced, renamed or repeated."""
    value = copy.deepcopy(value)
    for _ in range(choose.choice((1, 1, 2, 4))):
        paths = [*_places(value)]
        if not paths:
            return value
        *parents, key = choose.choice(paths)
        parent = value
        for each in parents:
            parent = parent[each]
        match choose.randrange(5):
            case 0:
                parent.pop(key)
            case 1:
                parent[key] = choose.choice((*INTEGERS, *TEXTS, *OTHERS))
            case 2:
                other = value
                for each in choose.choice(paths):
                    other = other[each]
                parent[key] = copy.deepcopy(other)
            case 3 if isinstance(parent, dict):
                parent[choose.choice(TEXTS)] = parent.pop(key)
            case _ if isinstance(parent, list):
                parent.insert(0, copy.deepcopy(parent[key]))
    return value


def _damaged(content: bytes, choose: random.Random) -> bytes:
    """Return bytes of which some are changed, removed or repeated."""
    result = bytearray(content)
    for _ in range(choose.choice((1, 2, 8))):
        at = choose.randrange(len(result) or 1)
        match choose.randrange(3):
            case 0:
                result[at : at + 1] = bytes([choose.choice((0, 1, 127, 128, 255, choose.randrange(256)))])
            case 1:
                del result[at : at + choose.randrange(1, 9)]
            case _:
                result[at:at] = result[choose.randrange(len(result) or 1) :][: choose.randrange(1, 9)]
    return bytes(result)


def _outcomes(read: Reader, contents: Iterator[Any]) -> set[str]:
    found = set()
    for content in contents:
        try:
            read(content)
            found.add("read")
        except DelegateError:
            found.add("error")
    return found
