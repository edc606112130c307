"""Numbers that are computed from dynamic sizes: tables take them where an operator is told a size, and nowhere else.

A model of a vendor holds a scale or a bound as a constant: what it is at the sizes of the export would stay for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node

from delegate.edge.node import SYMBOLIC, arguments, overload
from delegate.edge.program import META_VALUE
from delegate.verdict import YES, Reason, Verdict, no


def known_numbers(node: Node) -> Verdict:
    """Numbers that are no sizes are known now."""
    target = overload(node)
    if target is None or not any(_is_symbolic(value) for value in _flat((*node.args, *node.kwargs.values()))):
        return YES
    sizes = _sizes(target)
    for name, argument in arguments(node).items():
        for value in _flat(argument):
            if _is_symbolic(value) and not (name in sizes and _is_integer(value)):
                return no(Reason.DYNAMIC_SHAPE, f"{name} is a number that is computed from the inputs' sizes")
    return YES


@cache
def _sizes(target: OpOverload[..., Any]) -> Set[str]:
    """The arguments that are sizes, by the operator's schema: its other integers take no symbolic number at all."""
    return frozenset(a.name for a in target._schema.arguments if "int" in str(a.real_type))


def _flat(argument: Any) -> Iterator[Any]:
    """An argument, or the elements of one that is a list."""
    if isinstance(argument, list | tuple):
        for item in argument:
            yield from _flat(item)
    else:
        yield argument


def _is_symbolic(argument: Any) -> bool:
    """A node that gives a symbolic number, or such a number, which regions hold."""
    return isinstance(argument.meta.get(META_VALUE) if isinstance(argument, Node) else argument, SYMBOLIC)


def _is_integer(argument: Any) -> bool:
    return isinstance(argument.meta[META_VALUE] if isinstance(argument, Node) else argument, torch.SymInt)
