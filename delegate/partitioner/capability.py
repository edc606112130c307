"""Capability: what one backend can do, as the planner asks it."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from torch.fx import Node

from delegate.backends.aot import Claim
from delegate.partitioner.forms import Forms
from delegate.verdict import Verdict

Check = Callable[[Node], Verdict]
Claims = Callable[[Node], Sequence[Claim]]


@dataclass(frozen=True)
class Capability:
    """What one backend can do.

    Args:
        check: its verdict on one node; see `Backend.check`.
        preserve_ops: the compound operators that it wants whole.
        claims: its patterns around one node; None where it has none.
        most_constants: elements of constants that one partition may hold; None for any number.
    """

    check: Check
    preserve_ops: Set[str] = frozenset()
    claims: Claims | None = None
    most_constants: int | None = None

    @cached_property
    def forms(self) -> Forms:
        """The form in which it wants operators. One for all plans: each kind of operator is taken apart once."""
        return Forms(self.preserve_ops)
