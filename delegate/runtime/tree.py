"""Nested containers of leaves, without torch: flattening of arguments and construction of results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from delegate.errors import InputError
from delegate.program.model import Tree


class Record(dict[str, Any]):
    """Named results, such as a model output's: `result["logits"]` or `result.logits`."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no field {name!r}; there are: {', '.join(self)}") from None


class NamedTuple(tuple[Any, ...]):
    """A tuple with named items."""

    names: tuple[str, ...]

    def __new__(cls, parts: Sequence[Any], names: Sequence[str]) -> NamedTuple:
        self = super().__new__(cls, parts)
        self.names = tuple(names)
        return self

    def __getattr__(self, name: str) -> Any:
        if name in self.names:
            return self[self.names.index(name)]
        raise AttributeError(f"no field {name!r}; there are: {', '.join(self.names)}")


def flatten(tree: Tree, value: Any, path: str = "inputs") -> list[Any]:
    """Return the leaves of a value in the tree's order.

    Raises:
        InputError: the value has another structure; the message names the path of the difference.
    """
    leaves: list[Any] = []
    _flatten(tree, value, path, leaves)
    return leaves


def _flatten(tree: Tree, value: Any, path: str, leaves: list[Any]) -> None:
    if tree.kind == "leaf":
        leaves.append(value)
    elif tree.kind in ("dict", "record"):
        for key, child, part in zip(tree.keys, tree.children, _named_parts(tree, value, path), strict=True):
            _flatten(child, part, f"{path}[{key!r}]", leaves)
    else:
        if not isinstance(value, Sequence) or isinstance(value, str | bytes) or len(value) != len(tree.children):
            raise InputError(f"{path} must be a {tree.kind} of {len(tree.children)}, not {_summary(value)}")
        for i, (child, part) in enumerate(zip(tree.children, value, strict=True)):
            _flatten(child, part, f"{path}[{i}]", leaves)


def _named_parts(tree: Tree, value: Any, path: str) -> list[Any]:
    names = [str(k) for k in tree.keys]
    if tree.kind == "record" and not isinstance(value, Mapping):
        missing = [n for n in names if not hasattr(value, n)]
        if missing:
            raise InputError(f"{path} must have the fields {', '.join(names)}", where=f"missing {', '.join(missing)}")
        return [getattr(value, n) for n in names]
    if not isinstance(value, Mapping) or set(value) != set(tree.keys):
        raise InputError(f"{path} must be a dict with the keys {', '.join(names)}, not {_summary(value)}")
    return [value[k] for k in tree.keys]


def _summary(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"one with the keys {', '.join(map(str, value)) or '(none)'}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"


def unflatten(tree: Tree, leaves: Sequence[Any]) -> Any:
    """Return the value with these leaves; their number must be the tree's."""
    return leaves[0] if tree.kind == "leaf" else _unflatten(tree, iter(leaves))


def _unflatten(tree: Tree, leaves: Iterator[Any]) -> Any:
    if tree.kind == "leaf":
        return next(leaves)
    parts = [_unflatten(child, leaves) for child in tree.children]
    if tree.kind == "list":
        return parts
    if tree.kind == "dict":
        return dict(zip(tree.keys, parts, strict=True))
    if tree.kind == "record":
        return Record(zip(map(str, tree.keys), parts, strict=True))
    if tree.kind == "namedtuple":
        return NamedTuple(parts, [str(k) for k in tree.keys])
    return tuple(parts)
