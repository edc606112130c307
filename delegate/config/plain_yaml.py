"""YAML as plain data, with the line and column of every key and value: no aliases, no tags, no key twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from delegate.plugins import one_line

_DEEPEST = 64  # levels of nesting
_LONGEST = 80  # characters of a key in a message

Path = tuple[str | int, ...]  # the way to a value, e.g. ("backends", 0, "name")
Place = tuple[int, int]  # line and column, from 1


class NotPlain(ValueError):
    """A text is no such YAML.

    Args:
        what: is wrong.
        place: where; column 0 where only the line is known, (0, 0) where nothing is.
        remedy: if there is one to tell.
    """

    def __init__(self, what: str, place: Place = (0, 0), remedy: str = "") -> None:
        super().__init__(what)
        self.what, self.place, self.remedy = what, place, remedy

    def where(self, file: str) -> str:
        """The place in a file."""
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
    """Read a text; None where nothing is in it. Raises NotPlain."""
    try:
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
            return None if root is None else _Reader(loader).parsed(root)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        problem = " ".join(part for part in (error.context, error.problem) if part)
        mark = error.problem_mark or error.context_mark
        place = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        raise NotPlain(f"no valid YAML: {' '.join(problem.split())}", place) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise NotPlain(f"no valid YAML: {error.reason}", (line, 0)) from None


def dotted(path: Path) -> str:
    """A path for people, e.g. "backends[0].options.threads"."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{cut(str(part))}" for part in path)
    return text.removeprefix(".")


def cut(text: str) -> str:
    """A text for a message, which a key or a value in a foreign file may be too long for."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


_PLAIN = frozenset({"tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"})


class _Loader(yaml.SafeLoader):
    """SafeLoader without aliases: nothing here has a use for them, and a few lines of them can fill the memory.

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


@dataclass(frozen=True, slots=True)
class _Reader:
    """Turns nodes into values and notes where they stand."""

    loader: _Loader
    values: dict[Path, Place] = field(default_factory=dict)
    keys: dict[Path, Place] = field(default_factory=dict)

    def parsed(self, root: Node) -> Parsed:
        return Parsed(self._read(root, ()), self.values, self.keys)

    def _read(self, node: Node, path: Path) -> Any:
        self.values[path] = _place(node)
        if not isinstance(node, ScalarNode) and node.tag not in _PLAIN:
            raise yaml.MarkedYAMLError(problem=f"the tag {node.tag!r} is not supported", problem_mark=node.start_mark)
        if isinstance(node, SequenceNode):
            return [self._read(child, (*path, i)) for i, child in enumerate(node.value)]
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
        seen: dict[str, Place] = {}
        for key_node, value_node in node.value:
            place = _place(key_node)
            if not isinstance(key_node, ScalarNode):
                raise NotPlain(f"{dotted(path) or 'the top level'}: a key must be text", place)
            key = str(key_node.value)
            if key in seen:
                remedy = f"the first is in line {seen[key][0]}; take one away"
                raise NotPlain(f"{dotted((*path, key))}: the key stands twice", place, remedy)
            seen[key] = self.keys[(*path, key)] = place
            yield key, self._read(value_node, (*path, key))


def _place(node: Node) -> Place:
    return node.start_mark.line + 1, node.start_mark.column + 1
