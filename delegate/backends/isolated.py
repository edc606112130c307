"""A backend whose AOT half runs in forks of this process: where it crashes or hangs, it refuses nodes for that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch.fx import Graph, Node

from delegate.backends.aot import (
    Backend,
    Claim,
    Options,
    PreprocessResult,
    Region,
    RegionFailed,
    RegionGivenUp,
    RegionRefused,
)
from delegate.backends.checked import CheckedBackend, answered, claimed, rules_of
from delegate.backends.forked import Said, in_fork
from delegate.backends.state import BackendState
from delegate.edge.node import is_compute
from delegate.errors import BackendBroken, DelegateError
from delegate.option_rules import Rule
from delegate.plugins import AUTHOR
from delegate.verdict import Reason, Verdict, no

_MOST_ENDS = 3  # processes that may end amid the questions about one graph, before it gets no more

Answers = dict[tuple[Node, str], Any]  # a node, and how it stood in its graph when it was asked about


class IsolatedBackend:
    """The AOT half of a backend, made anew in a fork for every graph that it is asked about, and every region.

    This process never makes it, so that its library is not loaded here.

    Args:
        name: of the backend.
        half: its class.
        options: checked.
        limit: seconds for each fork.

    Attributes:
        check, claims, preserve_ops, most_constants: as of `CheckedBackend`.

    Raises:
        BackendBroken: it cannot be made, or says nonsense of itself, or crashes or hangs at that.
        BackendUnavailable: this system has no fork.
    """

    def __init__(self, name: str, half: type[Backend], options: Options, limit: float) -> None:
        self._name, self._half, self._options, self._limit = name, half, options, limit
        self._verdicts: Answers = {}
        self._claimed: Answers = {}
        said = self._ask(lambda backend: (backend.preserve_ops, backend.most_constants))
        if said.ending:
            what = f"the AOT half of backend {name!r} {said.ending} when it was made"
            raise BackendBroken(what, where=f"{half.__module__}.{half.__qualname__}", remedy=AUTHOR)
        self.preserve_ops: frozenset[str]
        self.most_constants: int | None
        self.preserve_ops, self.most_constants = _value(said.items[0])
        self.claims = None if half.claims is Backend.claims else self._claims

    def check(self, node: Node) -> Verdict:
        """The backend's verdict; raises DelegateError for a fault."""
        if _key(node) not in self._verdicts:
            self._answer(node, self._verdicts, lambda backend, n: answered(self._name, backend.check, n), _refusal)
        verdict: Verdict = _value(self._verdicts[_key(node)])
        return verdict

    def option_rules(self) -> dict[str, Rule]:
        """The values that each of its options accepts."""
        return rules_of(self._half)

    def identity(self, state: BackendState) -> str | None:
        """As the backend's own, and that its compiler has a process of its own; not kept where that ends early."""
        said = self._ask(lambda backend: backend.identity(state))
        own = None if said.ending else _value(said.items[0])
        return None if own is None else f"isolated: {own}"

    def preprocess(self, region: Region) -> PreprocessResult:
        """What the backend makes of a region.

        Raises:
            RegionRefused: it turns down nodes.
            RegionGivenUp: it took too long.
            RegionFailed: it crashed, or failed and does not say why.
            DelegateError: it failed.
        """
        said = self._ask(lambda backend: backend.preprocess(region))
        if said.late:
            raise RegionGivenUp(dict.fromkeys((n.name for n in region.calls), f"its compiler {said.ending}"))
        if said.ending:
            raise RegionFailed(f"its compiler {said.ending}")
        result: PreprocessResult = _value(said.items[0])
        return result

    def _claims(self, node: Node) -> Sequence[Claim]:
        def names(backend: CheckedBackend, n: Node) -> list[tuple[str, list[str], Verdict]]:
            assert backend.claims is not None
            found = claimed(self._name, backend.claims, n)
            return [(c.name, [m.name for m in c.nodes], c.verdict) for c in found]

        if _key(node) not in self._claimed:
            self._answer(node, self._claimed, names, lambda why: [])
        by_name = {n.name: n for n in node.graph.nodes}
        found = _value(self._claimed[_key(node)])
        return [Claim(name, tuple(by_name[n] for n in nodes), verdict) for name, nodes, verdict in found]

    def _answer(
        self,
        node: Node,
        known: Answers,
        ask: Callable[[CheckedBackend, Node], Any],
        unanswered: Callable[[str], Any],
    ) -> None:
        """Ask about a node and all others of its graph; of one at which the process ends, say why."""
        waiting = [n for n in _asked_about(node.graph, node) if _key(n) not in known]
        ends = 0
        while waiting:
            said = self._ask(*(_bound(ask, n) for n in waiting))
            known.update((_key(n), answer) for n, answer in zip(waiting, said.items, strict=False))
            waiting = waiting[len(said.items) :]
            if waiting:
                ends += 1
                why = f"it {said.ending} when it was asked about it"
                refused, waiting = (waiting, []) if ends == _MOST_ENDS else (waiting[:1], waiting[1:])
                known.update((_key(n), (unanswered(why), None)) for n in refused)

    def _ask(self, *questions: Callable[[CheckedBackend], Any]) -> Said:
        """Put questions to the backend in a fork; each answer is a value, or an error."""

        def work(say: Callable[[Any], None]) -> None:
            try:
                backend = CheckedBackend(self._name, self._half, self._options)
            except DelegateError as error:
                for _ in questions:
                    say((None, error))
                return
            for question in questions:
                try:
                    say((question(backend), None))
                except (DelegateError, RegionRefused, RegionFailed) as error:
                    say((None, _plain(error)))

        return in_fork(work, self._limit)


def _asked_about(graph: Graph, node: Node) -> Iterable[Node]:
    return dict.fromkeys((node, *(n for n in graph.nodes if is_compute(n))))


def _bound(ask: Callable[[CheckedBackend, Node], Any], node: Node) -> Callable[[CheckedBackend], Any]:
    return lambda backend: ask(backend, node)


def _key(node: Node) -> tuple[Node, str]:
    return node, str(node.format_node())


def _refusal(why: str) -> Verdict:
    return no(Reason.REFUSED, why)


def _plain(error: Exception) -> Any:
    """An error as what it takes to make it again: exceptions with arguments of their own do not pickle."""
    match error:
        case RegionRefused():
            return RegionRefused, error.reasons
        case RegionFailed():
            return RegionFailed, error.reason
        case _:
            return error


def _value(answer: tuple[Any, Any]) -> Any:
    """The value of an answer, or its error raised."""
    value, error = answer
    if isinstance(error, tuple):
        kind, given = error
        raise kind(given)
    if error is not None:
        raise error
    return value
