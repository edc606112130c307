"""Writes to a part of a large state: kernels run them in the memory of the state, and a backend copies all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.fx import Node

from delegate.edge.node import nbytes, op_name
from delegate.edge.program import EdgeProgram
from delegate.verdict import Reason, Verdict, no

# Operators that return their first argument with another content in a part of it; each has a kernel that runs in place.
PARTIAL_WRITES = frozenset(
    f"aten.{name}"
    for name in (
        "index_put.default", "_unsafe_index_put.default", "index_copy.default", "index_add.default",
        "index_fill.int_Scalar", "index_fill.int_Tensor", "scatter.src", "scatter.value", "scatter_add.default",
        "slice_scatter.default", "select_scatter.default", "diagonal_scatter.default", "as_strided_scatter.default",
    )
)  # fmt: skip
LARGE = 1 << 18  # bytes: two copies of a smaller state take less time than another partition


def writes_of_large_states(program: EdgeProgram, has_kernel: Callable[[Node], bool]) -> dict[Node, Verdict]:
    """Return the nodes that write a part of a large state, with the reason why no backend should run them.

    Args:
        program: the graph of one method.
        has_kernel: returns if a kernel runs a node without decomposition.
    """
    if not program.mutated:
        return {}
    placeholders = {name: placeholder for placeholder, name in program.states.items()}
    results: Any = program.graph.output_node().args[0]
    first = len(results) - len(program.mutated) - len(program.written)
    verdicts: dict[Node, Verdict] = {}
    for state, value in zip(program.mutated, results[first:], strict=False):
        writes = list(_writes(value))
        start = writes[-1].args[0] if writes else None
        if isinstance(start, Node) and start.name == placeholders[state] and all(map(has_kernel, writes)):
            what = f"it writes a part of state '{state}': a kernel does this in place, but a backend copies all of it"
            verdicts.update(dict.fromkeys(writes, no(Reason.SLOWER, what)))
    return verdicts


def _writes(value: object) -> Iterator[Node]:
    """Yield the partial writes from a value back to what they all write to."""
    while isinstance(value, Node) and op_name(value) in PARTIAL_WRITES and nbytes(value) >= LARGE:
        yield value
        value = value.args[0]
