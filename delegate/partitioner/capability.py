"""Capability: the support checks and limits of one backend, for the planner."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from torch.fx import Node

from delegate.backends.aot import Claim
from delegate.backends.checked import answered
from delegate.errors import DelegateError
from delegate.partitioner.decomposition_policy import DecompositionPolicy
from delegate.verdict import Reason, Verdict, no

Check = Callable[[Node], Verdict]
Claims = Callable[[Node], Sequence[Claim]]


@dataclass(frozen=True)
class Capability:
    """The support checks and limits of one backend.

    Args:
        check: returns the verdict on one node; see `Backend.check`.
        preserve_ops: the compound operators to preserve for the backend.
        claims: returns the pattern matches around one node; None for a backend without patterns.
        most_constants: most elements of constants in one partition; None for no limit.
        on_fault: called with a failure of a check, which then counts as a refusal; None raises the failure.
    """

    check: Check
    preserve_ops: Set[str] = frozenset()
    claims: Claims | None = None
    most_constants: int | None = None
    on_fault: Callable[[DelegateError], None] | None = None

    @cached_property
    def policy(self) -> DecompositionPolicy:
        """Return the decomposition policy. All plans share it, so each kind of operator is decomposed once."""
        return DecompositionPolicy(self.preserve_ops)

    def query(self, backend: str, node: Node) -> Verdict:
        """Return the verdict on one node; raises DelegateError if the check fails and `on_fault` is None."""
        try:
            return answered(backend, self.check, node)
        except DelegateError as fault:
            self.report(fault)
            return no(Reason.REFUSED, fault.what)

    def report(self, fault: DelegateError) -> None:
        """Pass a failure to `on_fault`; raise it if that is None."""
        if self.on_fault is None:
            raise fault
        self.on_fault(fault)
