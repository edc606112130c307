"""NaN in a library that loses it: an option, and its notes and refusals, the same for every backend.

A backend with such a library has a field `nan: Nan` among its options, and a predicate of the nodes that lose NaN. With
`exact` it refuses these nodes, so that other backends run them, or lowers them to more operators that keep NaN. With
`fast` it accepts them, and the report names them in each partition.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Set
from typing import Annotated, Literal

from pydantic import Field
from torch.fx import Node

from delegate.backends.region import Region
from delegate.edge.node import op_name, tensors
from delegate.verdict import YES, Reason, Verdict, no

Loses = Callable[[Node], bool]

Nan = Annotated[
    Literal["exact", "fast"],
    Field(
        description="exact: operators in which the library loses NaN keep it by more work, or are left to other "
        "backends. fast: NaN may become a number there, and the report names them."
    ),
]


def keeps_nan(node: Node, loses: Loses, nan: Nan) -> Verdict:
    """Refuse a node that loses NaN if the option is `exact`."""
    if nan == "exact" and loses(node):
        return no(Reason.INACCURATE, "the library loses NaN there, and nan: exact is asked")
    return YES


def nan_notes(region: Region, loses: Loses) -> Iterator[str]:
    """Yield the note of a region whose nodes lose NaN."""
    return note_of(op_name(n) for n in region.calls if n.target is not operator.getitem and loses(n))


def note_of(operators: Iterable[str]) -> Iterator[str]:
    """Yield the note of operators that lose NaN; nothing if there are none."""
    if names := sorted({name.split(".")[1] for name in operators}):
        yield f"nan: fast, may become a number in {', '.join(names)}"


def floats_of(operators: Set[str]) -> Loses:
    """Return the predicate of nodes of these operators that read floats."""
    return lambda node: op_name(node) in operators and reads_floats(node)


def reads_floats(node: Node) -> bool:
    """Return true for an operator that reads a tensor of floats."""
    return node.target is not operator.getitem and any(
        t.dtype.is_floating_point for n in node.all_input_nodes for t in tensors(n)
    )
