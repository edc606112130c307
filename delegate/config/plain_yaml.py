"""YAML as plain data, with the line and column of every key and value: no aliases, no tags, no key twice."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.nodes import ScalarNode

from delegate.plugins import one_line

_DEEPEST = 64  # levels of nesting
_TOO_DEEP = "too deeply nested"
_LONGEST = 80  # characters of a key in a message

Path = tuple[str | int, ...]  # the way to a value, e.g. ("backends", 0, "name")
Place = tuple[int, int]  # line and column, from 1


class NotPlain(ValueError):
    """A text is not such YAML.

    Args:
        what: is wrong.
        place: where; column 0 where only the line is known, (0, 0) where nothing is.
        remedy: if there is one.
    """

    def __init__(self, what: str, place: Place = (0, 0), remedy: str = "") -> None:
        super().__init__(what)
        self.what, self.place, self.remedy = what, place, remedy

    def where(self, file: str) -> str:
        """Return the place in a file."""
        return ":".join((file, *(str(number) for number in self.place if number)))


@dataclass(frozen=True, slots=True)
class Parsed:
    """A text that was read.

    Args:
        data: as plain Python values; keys are texts.
        values: path -> place of a value.
        keys: path -> place of the key that leads to a value.
    """

    data: Any
    values: dict[Path, Place] = field(default_factory=dict)
    keys: dict[Path, Place] = field(default_factory=dict)


def parse(text: str) -> Parsed | None:
    """Read a text; return None if it is empty. Raises NotPlain."""
    try:
        loader = _LOADER(text)
        try:
            return _Reader(loader).parsed()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        problem = " ".join(part for part in (error.context, error.problem) if part)
        mark = error.problem_mark or error.context_mark
        place = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        if "nesting depth" in problem:  # the limit of libyaml itself, from PyYAML 6.0.4 on
            problem = _TOO_DEEP
        raise NotPlain(f"not valid YAML: {' '.join(problem.split())}", place) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise NotPlain(f"not valid YAML: {error.reason}", (line, 0)) from None


def dot_path(path: Path) -> str:
    """Format a path for people, e.g. "backends[0].options.threads"."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{cut(str(part))}" for part in path)
    return text.removeprefix(".")


def cut(text: str) -> str:
    """Shorten a key or value of a file for a message."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C it is ten times as fast; it may not be built in
_PLAIN = frozenset({None, "!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"})


@dataclass(slots=True)
class _Reader:
    """A converter of parser events to values and their places.

    Aliases are errors, since a few lines of them can fill the memory, and so is deep nesting.
    """

    loader: Any
    values: dict[Path, Place] = field(default_factory=dict)
    keys: dict[Path, Place] = field(default_factory=dict)
    scalars: dict[tuple[Any, ...], Any] = field(default_factory=dict)  # each text is read once

    def parsed(self) -> Parsed | None:
        self.loader.get_event()  # that the stream begins
        if self.loader.check_event(yaml.StreamEndEvent):
            return None
        self.loader.get_event()  # that a document begins
        data = self._read((), self.loader.get_event())
        self.loader.get_event()
        if not self.loader.check_event(yaml.StreamEndEvent):
            mark = self.loader.peek_event().start_mark
            raise yaml.MarkedYAMLError(
                problem="expected a single document in the stream but found another document", problem_mark=mark
            )
        return Parsed(data, self.values, self.keys)

    def _read(self, path: Path, event: Any) -> Any:
        self.values[path] = _place(event)
        if isinstance(event, yaml.AliasEvent):
            raise _wrong("aliases (*name) are not supported", event)
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event)
        if len(path) >= _DEEPEST:
            raise _wrong(_TOO_DEEP, event)
        if event.tag not in _PLAIN:
            raise _wrong(f"the tag {event.tag!r} is not supported", event)
        if isinstance(event, yaml.SequenceStartEvent):
            items = iter(self.loader.get_event, None)
            return [self._read((*path, i), item) for i, item in enumerate(_until(items, yaml.SequenceEndEvent))]
        return dict(self._entries(path))

    def _scalar(self, event: Any) -> Any:
        key = (event.tag, event.value, event.implicit)
        if key not in self.scalars:
            self.scalars[key] = self._construct(event)
        return self.scalars[key]

    def _construct(self, event: Any) -> Any:
        tag = event.tag if event.tag not in (None, "!") else None
        tag = tag or self.loader.resolve(ScalarNode, event.value, event.implicit)
        try:
            value = self.loader.construct_object(ScalarNode(tag, event.value, event.start_mark, event.end_mark))
            str(value)  # a number of very many digits has no text, which every message about it needs
        except yaml.MarkedYAMLError:
            raise
        except Exception as error:  # of a scalar, such as the date 2026-13-01
            problem = f"this is not a valid value: {one_line(error)}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark) from None
        self.loader.constructed_objects.clear()  # which would keep every node
        return value

    def _entries(self, path: Path) -> Iterator[tuple[str, Any]]:
        seen: dict[str, Place] = {}
        for event in _until(iter(self.loader.get_event, None), yaml.MappingEndEvent):
            place = _place(event)
            if isinstance(event, yaml.AliasEvent):
                raise _wrong("aliases (*name) are not supported", event)
            if not isinstance(event, yaml.ScalarEvent):
                raise NotPlain(f"{dot_path(path) or 'the top level'}: a key must be text", place)
            key = str(event.value)
            if key in seen:
                remedy = f"the first is in line {seen[key][0]}; remove one"
                raise NotPlain(f"{dot_path((*path, key))}: the key appears twice", place, remedy)
            seen[key] = self.keys[(*path, key)] = place
            yield key, self._read((*path, key), self.loader.get_event())


def _until(events: Iterator[Any], end: type) -> Iterator[Any]:
    """Yield the start events of a collection's items; the caller reads the rest of each item."""
    return itertools.takewhile(lambda event: not isinstance(event, end), events)


def _wrong(problem: str, event: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


def _place(event: Any) -> Place:
    return event.start_mark.line + 1, event.start_mark.column + 1
