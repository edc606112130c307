"""The answer of a support check: yes, or no with a reason."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from delegate.common.field_checks import expect


class Reason(StrEnum):
    """The reason of a backend not to run a node."""

    OPERATOR = "unsupported operator"
    DTYPE = "unsupported dtype"
    RANK = "unsupported rank"
    SIZE = "too large"
    LAYOUT = "unsupported layout"
    ATTRIBUTE = "unsupported attribute"
    NON_CONSTANT = "non-constant weight"
    DYNAMIC_SHAPE = "dynamic shape"
    EXCLUDED = "excluded by configuration"
    PINNED = "pinned elsewhere"
    TOO_SMALL = "partition too small"
    CYCLE = "would form a cycle"
    REFUSED = "refused by the library"
    UNAVAILABLE = "device absent"
    BORDER = "view at the border"
    SLOWER = "slower"
    INACCURATE = "inaccurate"


_REASONS = frozenset({Reason, type(None)})


@dataclass(frozen=True, slots=True)
class Verdict:
    """A backend's answer to the support check of a node.

    Args:
        reason: None for yes.
        message: a sentence about this node, e.g. "groups=3 does not divide 8 channels".
        remedy: a change that would make the answer yes, if known.
        tag: A mark on a yes: nodes with different tags never share a partition; most backends leave it empty.
        in_parts: A mark on a yes: it runs the operators that this one is made of. The planner sets it, not the backend.
    """

    reason: Reason | None = None
    message: str = ""
    remedy: str = ""
    tag: str = ""
    in_parts: bool = False

    def __post_init__(self) -> None:
        texts = type(self.message) is type(self.remedy) is type(self.tag) is str
        if texts and type(self.reason) in _REASONS and self.in_parts is False:
            return  # graphs of 100,000 nodes have as many verdicts
        expect(self, "reason", self.reason is None or isinstance(self.reason, Reason), "a Reason, or None for yes")
        for field in ("message", "remedy", "tag"):
            expect(self, field, isinstance(getattr(self, field), str), "text")
        expect(self, "in_parts", isinstance(self.in_parts, bool), "True or False")

    def __bool__(self) -> bool:
        return self.reason is None

    def __str__(self) -> str:
        if self.reason is None:
            return "yes, decomposed" if self.in_parts else "yes"
        text = ": ".join(part for part in (str(self.reason), self.message) if part)
        text += f"; remedy: {self.remedy}" if self.remedy else ""
        return " ".join(text.split())  # a library's message may have many lines


YES = Verdict()


def no(reason: Reason, message: str = "", remedy: str = "") -> Verdict:
    """Return a refusal."""
    return Verdict(reason, message, remedy)
