"""What becomes of NaN in a library that loses it: a table of operators, an option, and what the report says.

A backend with such a library has a field `nan: Nan = "fast"` among its options. With `exact` it refuses the operators
of its table, so that others run them; with `fast` it takes them, and each partition that holds one says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Annotated, Literal

from pydantic import Field
from torch.fx import Node

from delegate.backends.region import Region
from delegate.edge.node import op_name, tensors
from delegate.verdict import Reason, Verdict, no

Nan = Annotated[
    Literal["exact", "fast"],
    Field(
        description="What loses NaN in the library (maxima, sorting, pools and others) is left to other backends "
        "(exact), or taken, and NaN may become a number (fast)."
    ),
]


def refused_for_nan(node: Node, losing: Set[str], nan: Nan) -> Verdict | None:
    """The refusal of a node whose NaN would be lost, where `exact` is asked."""
    if nan == "exact" and _loses(node, losing):
        return no(Reason.INACCURATE, "the library loses NaN there, and nan: exact is asked")
    return None


def notes_on_nan(region: Region, losing: Set[str]) -> Iterator[str]:
    """What the report says of a region that holds operators of the table."""
    found = sorted({op_name(n).split(".")[1] for n in region.calls if _loses(n, losing)})
    if found:
        yield f"nan: fast, may become a number in {', '.join(found)}"


def _loses(node: Node, losing: Set[str]) -> bool:
    """Whether an operator of the table reads floats here."""
    return op_name(node) in losing and any(t.dtype.is_floating_point for n in node.all_input_nodes for t in tensors(n))
