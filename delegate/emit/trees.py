"""torch's pytree specs as trees that need no torch."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from delegate.program.model import Tree

_LEAF = Tree("leaf")


def tree_of(spec: Any) -> Tree:
    """Return the tree of a torch TreeSpec; a registered class becomes a "record" of its named fields."""
    if spec.is_leaf():
        return _LEAF
    children = tuple(map(tree_of, spec.children()))
    if spec.type in (dict, OrderedDict):
        return Tree("dict", tuple(k if isinstance(k, int) else str(k) for k in spec.context), children)
    if spec.type in (tuple, list):
        return Tree(spec.type.__name__, (), children)
    if isinstance(spec.context, type) and hasattr(spec.context, "_fields"):
        return Tree("namedtuple", tuple(spec.context._fields), children, _full_name(spec.context))
    fields = getattr(spec.type, "__match_args__", ())
    if issubclass(spec.type, tuple) and len(fields) == len(children) > 0:  # of torch.return_types
        return Tree("namedtuple", tuple(fields), children, _full_name(spec.type))
    names = _field_names(spec.context, len(children))
    return Tree("record" if names else "tuple", names, children, _full_name(spec.type))


def _field_names(context: Any, count: int) -> tuple[str, ...]:
    """Return the field names in the context of a flattened class: the context itself, or its first element."""
    for names in (context, context[0] if isinstance(context, tuple | list) and context else None):
        if isinstance(names, tuple | list) and len(names) == count and all(isinstance(n, str) for n in names):
            return tuple(names)
    return ()


def _full_name(kind: Any) -> str:
    return f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', kind)}".lstrip(".")
