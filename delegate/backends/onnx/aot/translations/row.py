"""A row of the translations, and the checks that rows of several families share."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from delegate.backends.lowering import Check, Lowering
from delegate.edge.node import arguments, is_static, tensors
from delegate.verdict import YES, Reason, Verdict, no

BOOL = frozenset({torch.bool})
INDICES = frozenset({torch.int64, torch.int32})
FLOATS = frozenset({torch.float32, torch.float16})


@dataclass(frozen=True, slots=True)
class Translation:
    """A translation of an operator: every ONNX operator that the exporter may use for it.

    A provider that runs all of these ONNX operators runs the operator.

    Args:
        onnx: names from the providers' tables, e.g. "Pad", "Pad(edge)".
        also: further dtypes of its tensors, which these ONNX operators need not support, such as a mask's.
        between: ONNX operators on intermediate values; their dtypes do not limit those of its own tensors.
        translate: function that adds the ONNX nodes, in place of the exporter's own; see `own.py`.
    """

    onnx: tuple[str, ...]
    also: frozenset[torch.dtype] = frozenset()
    between: tuple[str, ...] = ()
    translate: Callable[..., Any] | None = None

    @property
    def needs(self) -> Set[str]:
        """Return all the ONNX operators."""
        return {*self.onnx, *self.between}


Row = Lowering[Translation]


def row(
    op: str,
    onnx: tuple[str, ...],
    check: Check,
    keep: bool = False,
    *,
    also: frozenset[torch.dtype] = frozenset(),
    between: tuple[str, ...] = (),
    translate: Callable[..., Any] | None = None,
) -> Row:
    """Return a row for any provider; see `Lowering` and `Translation`. The check accepts nodes that it translates."""
    return Lowering(op, check, Translation(onnx, also, between, translate), keep)


def floating(node: Node) -> Verdict:
    """The result is floating point."""
    if all(t.dtype.is_floating_point for t in tensors(node)):
        return YES
    return no(Reason.DTYPE, "torch divides and rounds integers otherwise than ONNX")


def floating_inputs(node: Node) -> Verdict:
    """The operands are floating point."""
    for source in node.all_input_nodes:
        if not all(t.dtype.is_floating_point for t in tensors(source)):
            return no(Reason.DTYPE, f"{source.name} is not floating point")
    return YES


def same_dtypes(node: Node) -> Verdict:
    """All operands have one dtype.

    The exporter casts what torch promotes by rules of its own; only equal dtypes are sure.
    """
    dtypes = {t.dtype for source in node.all_input_nodes for t in tensors(source)}
    if len(dtypes) <= 1:
        return YES
    names = ", ".join(sorted(str(d).removeprefix("torch.") for d in dtypes))
    return no(Reason.DTYPE, f"the operands have different dtypes: {names}")


def promoted(node: Node) -> Verdict:
    """A number among the operands does not change the dtype."""
    dtype = tensors(node)[0].dtype
    for source in node.all_input_nodes:
        if any(t.dtype is not dtype for t in tensors(source)):
            return no(Reason.DTYPE, f"{source.name} becomes {str(dtype).removeprefix('torch.')}")
    return YES


def numbers(node: Node) -> Verdict:
    """The operands are numbers, not truth values."""
    for source in node.all_input_nodes:
        if any(t.dtype is torch.bool for t in tensors(source)):
            return no(Reason.DTYPE, f"{source.name} is bool")
    return YES


def truths(node: Node) -> Verdict:
    """The operands are truth values."""
    for source in node.all_input_nodes:
        if any(t.dtype is not torch.bool for t in tensors(source)):
            return no(Reason.DTYPE, f"{source.name} is not bool")
    return YES


def static(node: Node) -> Verdict:
    """All sizes are known before it runs."""
    for other in (node, *node.all_input_nodes):
        if not is_static(other):
            return no(Reason.DYNAMIC_SHAPE, f"{other.name} has sizes that depend on the inputs")
    return YES


def plain(**required: object) -> Check:
    """Return a check that arguments have these values."""

    def check(node: Node) -> Verdict:
        args = arguments(node)
        for name, value in required.items():
            if args[name] != value:
                return no(Reason.ATTRIBUTE, f"{name}={args[name]}")
        return YES

    check.__doc__ = ", ".join(f"{name}={value}" for name, value in required.items()) + "."
    return check
