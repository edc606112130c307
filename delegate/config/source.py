"""The source of a configuration: YAML as plain data with the places of keys and values, and errors that name them.

Validation errors of pydantic become ConfigErrors with key, place, problem and the nearest valid key.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from yaml.nodes import ScalarNode

from delegate.common.files import open_to_read
from delegate.errors import ConfigError, did_you_mean
from delegate.plugins import one_line

AnyModel = TypeVar("AnyModel", bound=BaseModel)

MOST_BYTES = 1 << 18  # of a configuration file
_DEEPEST = 64  # levels of nesting
_TOO_DEEP = "too deeply nested"
_LONGEST = 80  # characters of a key in a message

Path = tuple[str | int, ...]  # the way to a value, e.g. ("backends", 0, "name")
Place = tuple[int, int]  # line and column, from 1


@dataclass(frozen=True, slots=True)
class Source:
    """Data and the places of its keys and values.

    Args:
        data: plain Python values.
        file: its name; empty for data that no file holds.
        values: path -> (line, column) of a value, from 1.
        keys: path -> (line, column) of the key that leads to a value, from 1.
    """

    data: Any
    file: str = ""
    values: Mapping[Path, Place] = field(default_factory=dict)
    keys: Mapping[Path, Place] = field(default_factory=dict)

    def where(self, path: Path, *, of_key: bool = False) -> str:
        """Return the place "file:line:column" of a value or of its key, else of the nearest value around it."""
        marks = self.keys if of_key and path in self.keys else self.values
        for end in range(len(path), -1, -1):
            if mark := marks.get(path[:end]):
                return f"{self.file}:{mark[0]}:{mark[1]}"
        return self.file


def parse(text: str, file: str = "") -> Source:
    """Read YAML as plain data: no aliases, no tags, no key twice. The data of an empty text are None.

    Args:
        text: the text.
        file: The file's name; for places.

    Raises:
        ConfigError: the text is not YAML of plain data.
    """
    try:
        loader = _LOADER(text)
        try:
            return _Reader(loader, file).read()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        problem = " ".join(part for part in (error.context, error.problem) if part)
        mark = error.problem_mark or error.context_mark
        where = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else file
        if "nesting depth" in problem:  # the limit of libyaml itself, from PyYAML 6.0.4 on
            problem = _TOO_DEEP
        raise ConfigError(f"not valid YAML: {' '.join(problem.split())}", where=where) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(f"not valid YAML: {error.reason}", where=f"{file}:{line}") from None


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
    file: str
    values: dict[Path, Place] = field(default_factory=dict)
    keys: dict[Path, Place] = field(default_factory=dict)
    scalars: dict[tuple[Any, ...], Any] = field(default_factory=dict)  # each text is read once

    def read(self) -> Source:
        self.loader.get_event()  # that the stream begins
        if self.loader.check_event(yaml.StreamEndEvent):
            return Source(None, self.file)
        self.loader.get_event()  # that a document begins
        data = self._read((), self.loader.get_event())
        self.loader.get_event()
        if not self.loader.check_event(yaml.StreamEndEvent):
            mark = self.loader.peek_event().start_mark
            raise yaml.MarkedYAMLError(
                problem="expected a single document in the stream but found another document", problem_mark=mark
            )
        return Source(data, self.file, self.values, self.keys)

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
            where = f"{self.file}:{place[0]}:{place[1]}"
            if isinstance(event, yaml.AliasEvent):
                raise _wrong("aliases (*name) are not supported", event)
            if not isinstance(event, yaml.ScalarEvent):
                raise ConfigError(f"{dot_path(path) or 'the top level'}: a key must be text", where=where)
            key = str(event.value)
            if key in seen:
                remedy = f"the first is in line {seen[key][0]}; remove one"
                raise ConfigError(f"{dot_path((*path, key))}: the key appears twice", where=where, remedy=remedy)
            seen[key] = self.keys[(*path, key)] = place
            yield key, self._read((*path, key), self.loader.get_event())


def _until(events: Iterator[Any], end: type) -> Iterator[Any]:
    """Yield the start events of a collection's items; the caller reads the rest of each item."""
    return itertools.takewhile(lambda event: not isinstance(event, end), events)


def _wrong(problem: str, event: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


def _place(event: Any) -> Place:
    return event.start_mark.line + 1, event.start_mark.column + 1


_MAPPING, _LIST = "should be a mapping (key: value)", "should be a list"
_SENTENCES = {
    "model_type": _MAPPING,
    "model_attributes_type": _MAPPING,
    "dict_type": _MAPPING,
    "list_type": _LIST,
    "tuple_type": _LIST,
    "string_type": "should be text",
    "int_type": "should be a whole number",
    "float_type": "should be a number",
    "bool_type": "should be true or false",
}


def problems(error: ValidationError, model: type[BaseModel], source: Source, prefix: Path = ()) -> list[ConfigError]:
    """Return a ConfigError for each problem of a validation.

    Args:
        error: pydantic's error.
        model: the model that was validated; its keys are those that are proposed.
        source: where the data came from.
        prefix: the path of the validated data in the source.
    """
    schema = model.model_json_schema()
    return [_problem(details, schema, source, prefix) for details in error.errors(include_url=False)]


def sentences(error: ValidationError, model: type[BaseModel]) -> str:
    """Return the problems in validated values that are in no file, separated by semicolons."""
    return "; ".join(problem.what for problem in problems(error, model, Source({})))


def raise_all(problems: Iterable[ConfigError]) -> None:
    """Raise the problems as one ConfigError, one line each; nothing for none."""
    errors = list(problems)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ConfigError("\n".join(str(e) for e in errors))


def _problem(details: ErrorDetails, schema: Mapping[str, Any], source: Source, prefix: Path) -> ConfigError:
    path = (*prefix, *details["loc"])
    key, kind = dot_path(path), details["type"]
    if kind == "extra_forbidden":
        known = _keys(schema, details["loc"][:-1])
        where = source.where(path, of_key=True)
        return ConfigError(f"{key}: unknown key", where=where, remedy=did_you_mean(str(path[-1]), known))
    if kind == "missing":
        return ConfigError(f"{key}: missing", where=source.where(path), remedy="add it")
    sentence = _SENTENCES.get(kind) or details["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if kind != "value_error":
        sentence += f", not {_short(details['input'])}"
    return ConfigError(f"{key}: {sentence}" if key else sentence, where=source.where(path))


def _short(value: Any) -> str:
    if value is None:
        return "empty"
    try:
        kinds = {dict: "a mapping", list: "a list", bool: str(value).lower()}
        text = kinds.get(type(value)) or repr(value)
    except ValueError:  # of a number of very many digits
        return "a number of very many digits"
    return text if len(text) <= 40 else text[:37] + "..."


def _keys(schema: Mapping[str, Any], path: Path) -> list[str]:
    """Return the valid keys at a path, by the JSON schema."""
    at = [schema]
    for part in (*path, None):
        at = [resolved for s in at for resolved in _alternatives(s, schema)]
        if part is None:
            break
        at = [inner for s in at if (inner := _inner(s, part)) is not None]
    return [key for s in at for key in s.get("properties", ())]


def _alternatives(schema: Mapping[str, Any], root: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    while "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    return [one for s in schema["anyOf"] for one in _alternatives(s, root)] if "anyOf" in schema else [schema]


def _inner(schema: Mapping[str, Any], part: str | int) -> Mapping[str, Any] | None:
    """Return the schema of an item, or of a key's value; None if it has none."""
    others = schema.get("additionalProperties")  # False, or the schema of values whose keys are free
    inner: Mapping[str, Any] | None = (
        schema.get("items") if isinstance(part, int) else schema.get("properties", {}).get(part, others or None)
    )
    return inner


def read_yaml(file: FilePath, kind: str = "a configuration", remedy: str = "write at least `version: 1`") -> Source:
    """Read a YAML file that holds a mapping.

    Args:
        file: the file.
        kind, remedy: what it should hold, and what its author can write; for messages.

    Raises:
        ConfigError: it is missing, unreadable, no valid YAML, empty, no mapping, or has a key twice.
    """
    try:
        with open_to_read(file) as opened:
            data = opened.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            what = f"the configuration has more than {MOST_BYTES} bytes"
            raise ConfigError(what, where=str(file), remedy="give a smaller YAML file")
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        where = f"{file}:{line}"
        raise ConfigError(f"the configuration is not UTF-8 text: byte {error.start}", where=where) from None
    except ValueError as error:  # of a path with a null byte
        raise ConfigError(f"cannot read the configuration {str(file)!r}: {error}", remedy="check the path") from None
    except FileNotFoundError:
        raise ConfigError(f"there is no configuration file {str(file)!r}", remedy="check the path") from None
    except OSError as error:
        raise ConfigError(f"cannot read the configuration: {error.strerror}", where=str(file)) from None
    source = parse(text, str(file))
    if source.data is None:
        raise ConfigError("the file is empty", where=str(file), remedy=remedy)
    if not isinstance(source.data, Mapping):
        what = f"{kind} is a mapping (key: value), not {type(source.data).__name__}"
        raise ConfigError(what, where=source.where(()), remedy=remedy)
    return source


def validate(source: Source, model: type[AnyModel]) -> AnyModel:
    """Return the data of a source as a model.

    Raises:
        ConfigError: the data do not fit; it lists all problems, one per line, with place and key.
    """
    try:
        return model.model_validate(source.data)
    except ValidationError as error:
        raise_all(problems(error, model, source))
        raise AssertionError("pydantic refused the data without a reason") from error
