"""Numbers that depend on the inputs: what they are in the export is not what they are in a call.

A model of a vendor holds a scale or a bound as a constant, so that tables take symbolic numbers where an operator is
told a size, and nowhere else. No backend may go by what a dynamic size is in the export, which torch takes for a fact.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node
from torch.fx.experimental import symbolic_shapes

from delegate.edge.build import leaves
from delegate.edge.node import SYMBOLIC, arguments, overload, symbolic_numbers
from delegate.edge.program import META_VALUE
from delegate.verdict import YES, Reason, Verdict, no

SizeDecided = symbolic_shapes._ShapeEnvGuardError
_NOTHING_OPEN = nullcontext()
_LOGGER = logging.getLogger(symbolic_shapes.__name__)


def sizes_open(nodes: Iterable[Node]) -> AbstractContextManager[None]:
    """With it, a comparison of dynamic sizes of these nodes, or a plain number made of one, raises SizeDecided."""
    for node in nodes:
        for number in symbolic_numbers(node.meta.get(META_VALUE)):
            return _open(number.node.shape_env)
    return _NOTHING_OPEN


@contextmanager
def _open(environment: symbolic_shapes.ShapeEnv) -> Iterator[None]:
    _LOGGER.addFilter(_says_more)
    try:
        with environment.error_on_new_guards():
            yield
    finally:
        _LOGGER.removeFilter(_says_more)


def _says_more(record: logging.LogRecord) -> bool:
    """Torch logs each SizeDecided, which verdicts tell."""
    return not str(record.msg).startswith("failed during evaluate_expr")


def decided_by(backend: str, error: SizeDecided) -> str:
    """Return what a backend asked of sizes, in torch's words at the end, e.g. "s77 > 4 == True"."""
    return f"{backend} goes by sizes of the export alone: {str(error).rpartition(': ')[2]}"


def known_numbers(node: Node) -> Verdict:
    """Numbers that are no sizes are known now."""
    target = overload(node)
    given = map(_value, leaves([*node.args, *node.kwargs.values()]))
    if target is None or not any(isinstance(value, SYMBOLIC) for value in given):
        return YES
    sizes = _sizes(target)
    for name, argument in arguments(node).items():
        for value in map(_value, leaves(argument)):
            if isinstance(value, SYMBOLIC) and not (name in sizes and isinstance(value, torch.SymInt)):
                return no(Reason.DYNAMIC_SHAPE, f"{name} is a number that is computed from the inputs' sizes")
    return YES


@cache
def _sizes(target: OpOverload[..., Any]) -> Set[str]:
    """The arguments that are sizes, by the operator's schema: its other integers take no symbolic number at all."""
    return frozenset(a.name for a in target._schema.arguments if "int" in str(a.real_type))


def _value(argument: Any) -> Any:
    """Return what a node gives; anything else as it is: regions hold symbolic numbers themselves."""
    return argument.meta.get(META_VALUE) if isinstance(argument, Node) else argument
