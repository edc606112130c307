"""A backend whose AOT part runs in a process of its own: nodes at which it crashes or hangs are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from torch.fx import Graph, Node

from delegate.backends.aot import Backend, Claim, PreprocessResult, Region, RegionFailed, RegionGivenUp
from delegate.backends.checked import rules_of
from delegate.backends.compiler_process import AotPart, Replies, query
from delegate.backends.state import BackendState
from delegate.backends.transfer import MAKE
from delegate.edge.node import is_compute
from delegate.errors import BackendBroken
from delegate.option_rules import Rule
from delegate.plugins import AUTHOR
from delegate.verdict import Reason, Verdict, no

_MOST_ENDS = 3  # processes that may end during the support checks of one graph, before the rest of it is refused

Answers = dict[tuple[Node, str], Any]  # a node, and its form in the graph when it was checked


class IsolatedBackend:
    """The AOT part of a backend in a process of its own, which is started again if it has ended.

    This process never makes the AOT part, so that its library is not used here.

    Args:
        name: of the backend.
        backend_class: its class.
        path: of the class, "module:Class".
        options: as JSON.
        limit: seconds for the support checks of a graph, and for each region.

    Attributes:
        check, claims, preserve_ops, most_constants: as of `CheckedBackend`.

    Raises:
        BackendBroken: it cannot be made, or crashes or hangs while it is made.
        CannotIsolate: this system has no such processes, or they cannot import the class.
    """

    def __init__(self, name: str, backend_class: type[Backend], path: str, options: str, limit: float) -> None:
        self._class, self._limit = backend_class, limit
        self._part = AotPart.of(name, path, options)
        self._verdicts: Answers = {}
        self._claimed: Answers = {}
        replies = self._query(MAKE)
        if replies.ending:
            what = f"the AOT part of backend {name!r} {replies.ending} when it was made"
            raise BackendBroken(what, where=f"{backend_class.__module__}.{backend_class.__qualname__}", remedy=AUTHOR)
        self.preserve_ops: frozenset[str]
        self.most_constants: int | None
        self.preserve_ops, self.most_constants = value_of(replies.items[0])
        self.claims = None if backend_class.claims is Backend.claims else self._claims

    def check(self, node: Node) -> Verdict:
        """Return the backend's verdict; raises DelegateError for a fault."""
        if _key(node) not in self._verdicts:
            self.check_all(nodes_of(node.graph, node))
        verdict: Verdict = value_of(self._verdicts[_key(node)])
        return verdict

    def has_checked(self, node: Node) -> bool:
        """Return whether the verdict on a node is ready."""
        return _key(node) in self._verdicts

    def check_all(self, nodes: Iterable[Node]) -> dict[Node, Replies]:
        """Have verdicts of nodes of one graph ready; return the replies about each that was checked now."""
        return self._answer(nodes, self._verdicts, "check", refuse)

    def option_rules(self) -> dict[str, Rule]:
        """Return the values that each of its options accepts."""
        return rules_of(self._class)

    def identity(self, state: BackendState) -> str | None:
        """Return the backend's identity, marked as isolated; None if its process ends at that."""
        replies = self._query("identity", (state.owner, state.availability))
        own = None if replies.ending else value_of(replies.items[0])
        return None if own is None else f"isolated: {own}"

    def preprocess(self, region: Region) -> PreprocessResult:
        """Return the compiled region.

        Raises:
            RegionRefused: it refuses nodes.
            RegionGivenUp: it took too long.
            RegionFailed: it crashed, or failed and does not say why.
            DelegateError: it failed.
        """
        return result_of(region, self.compile(region))

    def compile(self, region: Region) -> Replies:
        """Return the replies about a region."""
        return self._query("preprocess", region)

    def check_artifact(self, region: Region, artifact: PreprocessResult) -> None:
        """Raise an exception if a cached artifact of a region is impossible."""
        replies = self._query("check_artifact", (region, artifact))
        if replies.ending or not value_of(replies.items[0]):
            raise ValueError(f"the artifact of {region.name} is impossible")

    def _claims(self, node: Node) -> Sequence[Claim]:
        if _key(node) not in self._claimed:
            self._answer(nodes_of(node.graph, node), self._claimed, "claims", lambda why: [])
        by_name = {n.name: n for n in node.graph.nodes}
        found = value_of(self._claimed[_key(node)])
        return [Claim(name, tuple(by_name[n] for n in nodes), verdict) for name, nodes, verdict in found]

    def _answer(
        self, nodes: Iterable[Node], known: Answers, question: str, unanswered: Callable[[str], Any]
    ) -> dict[Node, Replies]:
        """Query nodes of one graph; a node at which the process ends gets the reason as its answer.

        Returns the replies about each node, but not of the rest that is refused after several ends.
        """
        waiting = [n for n in nodes if _key(n) not in known]
        found: dict[Node, Replies] = {}
        ends = 0
        while waiting:
            replies = self._query(question, waiting[0].graph, [n.name for n in waiting])
            known.update((_key(n), answer) for n, answer in zip(waiting, replies.items, strict=False))
            found.update((n, Replies([answer])) for n, answer in zip(waiting, replies.items, strict=False))
            waiting = waiting[len(replies.items) :]
            if waiting:
                ends += 1
                found[waiting[0]] = replies
                why = f"it {replies.ending} when it was asked about it"
                refused, waiting = (waiting, []) if ends == _MOST_ENDS else (waiting[:1], waiting[1:])
                known.update((_key(n), unanswered(why)) for n in refused)
        return found

    def _query(self, question: str, subject: Any = None, names: Sequence[str] = ("",)) -> Replies:
        return query(self._part, question, subject, names, self._limit)


def result_of(region: Region, replies: Replies) -> PreprocessResult:
    """Return the compiled region of the replies about it, or raise its refusal or error."""
    if replies.ending:
        raise_ending(region, replies.ending, is_late=replies.is_late)
    result: PreprocessResult = value_of(replies.items[0])
    return result


def raise_ending(region: Region, ending: str, *, is_late: bool) -> NoReturn:
    """Raise the refusal of a region at which the process of a compiler ended."""
    if is_late:
        raise RegionGivenUp(dict.fromkeys((n.name for n in region.calls), f"its compiler {ending}"))
    raise RegionFailed(f"its compiler {ending}")


def nodes_of(graph: Graph, first: Node) -> Iterable[Node]:
    """Return the nodes of a graph that compute, a given one first."""
    return dict.fromkeys((first, *(n for n in graph.nodes if is_compute(n))))


def _key(node: Node) -> tuple[Node, str]:
    return node, str(node.format_node())


def refuse(why: str) -> Verdict:
    """Return the verdict on a node at which a library ended."""
    return no(Reason.REFUSED, why)


def value_of(answer: Any) -> Any:
    """Return an answer, or raise it if it is an error."""
    if isinstance(answer, Exception):
        raise answer
    return answer
