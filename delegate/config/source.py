"""A configuration as it was written: plain data, and the line and column of every key and value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from delegate.errors import ConfigError
from delegate.plugins import one_line

MOST_BYTES = 1 << 18  # of a configuration file
_DEEPEST = 64  # levels of nesting
_LONGEST = 80  # characters of a key in a message

Path = tuple[str | int, ...]  # the way to a value, e.g. ("backends", 0, "name")


@dataclass(frozen=True, slots=True)
class Source:
    """Data and where it stands.

    Args:
        data: what was written, as plain Python values.
        file: its name; empty for data that no file holds.
        values: path -> (line, column) of a value, from 1.
        keys: path -> (line, column) of the key that leads to a value, from 1.
    """

    data: Any
    file: str = ""
    values: Mapping[Path, tuple[int, int]] = field(default_factory=dict)
    keys: Mapping[Path, tuple[int, int]] = field(default_factory=dict)

    def where(self, path: Path, *, of_key: bool = False) -> str:
        """The place "file:line:column" of a value or of its key, else of the nearest one around it."""
        marks = self.keys if of_key and path in self.keys else self.values
        for end in range(len(path), -1, -1):
            if found := marks.get(path[:end]):
                return f"{self.file}:{found[0]}:{found[1]}"
        return self.file


def dotted(path: Path) -> str:
    """A path for people, e.g. "backends[0].options.threads"."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{cut(str(part))}" for part in path)
    return text.removeprefix(".")


def cut(text: str) -> str:
    """A text for a message, which a key or a value in a foreign file may be too long for."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def read_yaml(file: FilePath) -> Source:
    """Read a YAML file.

    Raises:
        ConfigError: it is missing, unreadable, no valid YAML, empty, or has a key twice.
    """
    try:
        with file.open("rb") as opened:
            data = opened.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            what = f"the configuration has more than {MOST_BYTES} bytes"
            raise ConfigError(what, where=str(file), remedy="give a YAML file of a few lines")
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
    try:
        return _parse(text, str(file))
    except yaml.MarkedYAMLError as error:
        problem = " ".join(part for part in (error.context, error.problem) if part)
        mark = error.problem_mark or error.context_mark
        where = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else str(file)
        raise ConfigError(f"no valid YAML: {' '.join(problem.split())}", where=where) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(f"no valid YAML: {error.reason}", where=f"{file}:{line}") from None


_PLAIN = frozenset({"tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"})


class _Loader(yaml.SafeLoader):
    """SafeLoader without aliases: a configuration has no use for them, and a few lines of them can fill the memory.

    Nor is it nested deeply.
    """

    depth = 0

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        self.depth += 1
        try:
            if self.depth > _DEEPEST:
                mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
                raise yaml.MarkedYAMLError(problem="too deeply nested", problem_mark=mark)
            return self._compose(parent, index)
        finally:
            self.depth -= 1

    def _compose(self, parent: Node | None, index: Any) -> Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="aliases (*name) are not supported", problem_mark=mark)
        return super().compose_node(parent, index)


def _parse(text: str, file: str) -> Source:
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            raise ConfigError("the configuration is empty", where=file, remedy="write at least `version: 1`")
        values: dict[Path, tuple[int, int]] = {}
        keys: dict[Path, tuple[int, int]] = {}
        data = _Reader(loader, file, values, keys).read(root, ())
    finally:
        loader.dispose()
    return Source(data, file, values, keys)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Turns nodes into values and notes where they stand."""

    loader: _Loader
    file: str
    values: dict[Path, tuple[int, int]]
    keys: dict[Path, tuple[int, int]]

    def read(self, node: Node, path: Path) -> Any:
        self.values[path] = _place(node)
        if not isinstance(node, ScalarNode) and node.tag not in _PLAIN:
            raise yaml.MarkedYAMLError(problem=f"the tag {node.tag!r} is not supported", problem_mark=node.start_mark)
        if isinstance(node, SequenceNode):
            return [self.read(child, (*path, i)) for i, child in enumerate(node.value)]
        if isinstance(node, MappingNode):
            return dict(self._entries(node, path))
        try:
            value = self.loader.construct_object(node)
            str(value)  # a number of very many digits has no text, which every message about it needs
        except yaml.MarkedYAMLError:
            raise
        except Exception as error:  # of a scalar, such as the date 2026-13-01
            problem = f"this is no value: {one_line(error)}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None
        return value

    def _entries(self, node: MappingNode, path: Path) -> Iterator[tuple[str, Any]]:
        seen: dict[str, tuple[int, int]] = {}
        for key_node, value_node in node.value:
            place = _place(key_node)
            where = f"{self.file}:{place[0]}:{place[1]}"
            if not isinstance(key_node, ScalarNode):
                raise ConfigError(f"{dotted(path) or 'the configuration'}: a key must be text", where=where)
            key = str(key_node.value)
            if key in seen:
                what = f"{dotted((*path, key))}: the key stands twice"
                raise ConfigError(what, where=where, remedy=f"the first is in line {seen[key][0]}; take one away")
            seen[key] = self.keys[(*path, key)] = place
            yield key, self.read(value_node, (*path, key))


def _place(node: Node) -> tuple[int, int]:
    return node.start_mark.line + 1, node.start_mark.column + 1
