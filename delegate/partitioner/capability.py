"""Capability: what one backend can do, as the planner asks it."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from torch.fx import Node

from delegate.backends.aot import Claim
from delegate.backends.checked import answered
from delegate.errors import DelegateError
from delegate.partitioner.forms import Forms
from delegate.verdict import Reason, Verdict, no

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
        on_fault: told of a fault of the backend, which then refuses the node; None: a fault is an error.
    """

    check: Check
    preserve_ops: Set[str] = frozenset()
    claims: Claims | None = None
    most_constants: int | None = None
    on_fault: Callable[[DelegateError], None] | None = None

    @cached_property
    def forms(self) -> Forms:
        """The form in which it wants operators. One for all plans: each kind of operator is taken apart once."""
        return Forms(self.preserve_ops)

    def ask(self, backend: str, node: Node) -> Verdict:
        """The verdict on one node; raises DelegateError for a fault that is an error."""
        try:
            return answered(backend, self.check, node)
        except DelegateError as fault:
            self.tell(fault)
            return no(Reason.REFUSED, fault.what)

    def tell(self, fault: DelegateError) -> None:
        """Tell of a fault, or raise it."""
        if self.on_fault is None:
            raise fault
        self.on_fault(fault)
