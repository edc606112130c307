"""IsolatedBackend: the AOT part of a backend in a separate process, so that a crash or a hang there is a refusal.

Two settings use it. With `isolate: compile`, the separate process answers everything, and this process never creates
the AOT part. With `isolate: auto`, the separate process is first used for each structure that is new to the backend:
the operators, arguments, shapes and dtypes of a region, or of a graph for its support checks, without the content of
constants. This process answers for a safe structure from then on, which is faster. A region at which the process ended
is refused at once, and so is a graph of a plugin that the user did not name.

`compiler_process` has the processes themselves.
"""

from __future__ import annotations

import hashlib
import logging
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from torch.fx import Graph, Node

from delegate.backend import compiler_process
from delegate.backend.aot import Claim, PreprocessResult, Region, RegionCrashed, RegionGivenUp
from delegate.backend.compiler_process import AotPart, CannotIsolate, Replies
from delegate.backend.region import graph_structure
from delegate.backend.state import BackendState
from delegate.backend.transfer import MAKE
from delegate.cache.runtime.store import Entry, Store
from delegate.common.field_checks import amount, text
from delegate.edge.control_flow import is_control_flow
from delegate.edge.node import describe, is_compute
from delegate.errors import BackendBroken, BackendError, DelegateError, PartitionError
from delegate.plugins import AUTHOR
from delegate.processes.limits import seconds_for
from delegate.processes.process import describe_exit
from delegate.verdict import Reason, Verdict, no

logger = logging.getLogger(__name__)

FORMAT = 5  # of the entries that hold outcomes
_MAX_ENDS = 3  # processes that may end during the support checks of one graph, before the rest of it is refused
_BY_OTHERS = tuple(
    describe_exit(-signal.Signals[name]) for name in ("SIGKILL", "SIGTERM", "SIGINT") if hasattr(signal, name)
)
_AGAIN = "in an earlier lowering; run `delegate cache clear` to try again"

Key = tuple[Node, str]  # a node, and its text in the graph at the query
Support = tuple[Verdict, tuple[Claim, ...]]  # the verdict on a node, and the pattern matches around it


class Outcome(NamedTuple):
    """The end of a compiler's process at a structure.

    Args:
        ending: e.g. "was killed by SIGSEGV"; empty if it did not end.
        limit: the seconds that it had, whether it was done or ended after them; 0 if it ended by itself.
    """

    ending: str = ""
    limit: float = 0.0

    def holds_within(self, limit: float) -> bool:
        """Return true if the outcome would be the same with other seconds."""
        return self.limit <= limit if not self.ending else not 0 < self.limit < limit


class Outcomes:
    """Structures that the library of a backend has checked or compiled in a separate process, with the outcomes.

    They last as long as this process, and beyond it in the cache, if there is one.

    Args:
        identity: all that outcomes depend on besides the structure; None if that is unknown, and nothing is recorded.
        store: the cache; None if there is none.
    """

    _RECORDED: dict[tuple[str, str], Outcome] = {}  # noqa: RUF012 - of this process: folder, key -> outcome

    def __init__(self, identity: Callable[[], str | None], store: Store | None) -> None:
        self._identity, self._store = identity, store
        self._folder = "" if store is None else str(store.folder)
        self._keys: dict[str, str | None] = {}  # by structure

    def get(self, structure: str, limit: float) -> Outcome | None:
        """Return the outcome at a structure; None if it is unknown, or may be another one within these seconds."""
        key = self._key(structure)
        if key is None:
            return None
        outcome = self._RECORDED.get((self._folder, key))
        if outcome is None and self._store is not None:
            outcome = self._store.read(key, _read_outcome)
            if outcome is not None:
                self._RECORDED[self._folder, key] = outcome
        return outcome if outcome is not None and outcome.holds_within(limit) else None

    def put(self, structure: str, outcome: Outcome) -> None:
        """Record an outcome, unless the library may not have caused it: another process, or a lack of memory."""
        key = self._key(structure)
        if key is not None and outcome.ending not in _BY_OTHERS:
            self._RECORDED[self._folder, key] = outcome
            if self._store is not None:
                self._store.put(key, outcome._asdict(), [])

    def _key(self, structure: str) -> str | None:
        """Return the key of a structure's entry; None if nothing can be recorded."""
        if structure not in self._keys:
            try:
                identity = self._identity()
            except DelegateError:  # who uses the identity for more reports it
                identity = None
            key = None if identity is None else digest(("outcomes", FORMAT, identity, structure))
            self._keys[structure] = key
        return self._keys[structure]


class IsolatedBackend:
    """The AOT part of a backend in a separate process, which is started again if it has ended.

    Args:
        part: the AOT part.
        limit: seconds for the support checks of a graph, and for each region.
        outcomes: Outcomes of the graphs and regions that were tried. This process answers for the safe ones. None: the
            separate process answers everything.
        is_named: false for a plugin that the user did not name: the first end is the last one, and the rest is refused.

    Attributes:
        is_named: the argument.
        ending: how the separate process has ended at a graph or a region, now or earlier; empty if it has not.
    """

    def __init__(self, part: AotPart, limit: float, outcomes: Outcomes | None = None, *, is_named: bool = True) -> None:
        self.ending = ""
        self._given, self._limit, self._outcomes, self.is_named = part, limit, outcomes, is_named
        self._part: AotPart | CannotIsolate | None = None
        self._answers: dict[Key, Support | Exception] = {}
        self._structures: dict[Graph, str] = {}  # digests
        self._not_sent: set[Graph] = set()  # graphs that the separate process cannot get

    @property
    def path(self) -> str:
        """Return the path of the class, "module:Class"."""
        return self._given.path

    @property
    def answers_all(self) -> bool:
        """Return true if this process never creates the AOT part."""
        return self._outcomes is None

    def make(self) -> tuple[frozenset[str], int | None]:
        """Create the AOT part in the separate process; return its `preserve_ops` and `most_constants`.

        Raises:
            BackendBroken: it cannot be created, or crashes or hangs at that.
            CannotIsolate: this system has no such processes, or they cannot import the class.
        """
        part = self._given.with_number()
        replies = compiler_process.query(part, MAKE, None, ("",), self._limit)
        if replies.ending:
            what = f"the AOT part of backend {part.name!r} {replies.ending} when it was created"
            raise BackendBroken(what, where=self.path.replace(":", "."), remedy=AUTHOR)
        attributes: tuple[frozenset[str], int | None] = _value(replies.items[0])
        self._part = part
        return attributes

    def answer(self, node: Node) -> Support | None:
        """Return the verdict on a node, and the pattern matches around it; None if this process is to answer.

        Without an answer, the separate process is queried about all nodes of the graph, unless it answered safely about
        such a graph before.

        Raises:
            DelegateError: the AOT part failed.
            CannotIsolate: the separate process has to answer everything, and cannot get the graph.
        """
        key, graph, outcomes = _key(node), node.graph, self._outcomes
        if key not in self._answers:
            if graph in self._not_sent:
                return None
            earlier = None if outcomes is None else outcomes.get(self._structure(graph), self._limit)
            if earlier is not None and not earlier.ending:
                return None
            if earlier is not None and not self.is_named:
                self.ending = f"{earlier.ending} in a support check, {_AGAIN}"
                return no(Reason.REFUSED, self.ending), ()
            try:
                outcome = self._query_nodes([n for n in nodes_of(graph, node) if _key(n) not in self._answers])
            except CannotIsolate:
                if outcomes is None:
                    raise
                self._not_sent.add(graph)
                return None
            if outcomes is not None and outcome is not None:
                outcomes.put(self._structure(graph), outcome)
        support: Support = _value(self._answers[key])
        return support

    def forget(self, graph: Graph) -> None:
        """Forget the structure of a graph, which may have changed since the last query about it."""
        self._structures.pop(graph, None)

    def preprocess(self, region: Region) -> PreprocessResult | None:
        """Return the artifact of a region; None if this process is to compile it.

        Raises:
            RegionRefused: the AOT part rejects nodes.
            RegionGivenUp: it took too long.
            RegionFailed: it crashed, or rejects the region without naming nodes.
            DelegateError: it failed.
        """
        if self._outcomes is None:
            return self._artifact(region, self._query("preprocess", region))
        weights = 0 if self.is_named else sum(constant.nbytes for constant in region.constants.values())
        limit = self._limit + seconds_for(weights)
        name = digest(("compile", region.structure))
        outcome = self._outcomes.get(name, limit)
        if outcome is None:
            try:
                replies = self._query("preprocess", region, limit=limit)
            except CannotIsolate:
                return None
            if replies.is_made:
                self._outcomes.put(name, _outcome(replies, limit))
            return self._artifact(region, replies)
        if outcome.ending:
            self._raise_ending(region, outcome.ending, is_late=outcome.limit > 0, when=f" {_AGAIN}")
        return None

    def identity(self, state: BackendState) -> str | None:
        """Return the backend's identity, marked as isolated; None if its process ends at that."""
        replies = self._query("identity", (state.owner, state.availability))
        own = None if replies.ending else _value(replies.items[0])
        return None if own is None else f"isolated: {own}"

    def is_new(self, program: str) -> bool:
        """Return true if the program of a digest is lowered for the first time, so that its structures may be new."""
        if self._outcomes is None or self._outcomes.get(program, 0.0) is not None:
            return False
        self._outcomes.put(program, Outcome())
        return True

    def _query_nodes(self, nodes: Sequence[Node]) -> Outcome | None:
        """Query nodes of one graph, and add the answers.

        The answer at which the process ends is a refusal, and so are all further ones after several ends.

        Returns:
            The outcome of the graph, if all its answers are safe, or the end of the process drops the backend. None: it
            is not to be recorded.
        """
        waiting, by_name = list(nodes), {n.name: n for n in nodes[0].graph.nodes}
        ends = 0
        outcome: Outcome | None = Outcome("", self._limit)
        while waiting:
            replies = self._query("check", waiting[0].graph, [n.name for n in waiting])
            for node, reply in zip(waiting, replies.items, strict=False):
                self._answers[_key(node)] = reply if isinstance(reply, Exception) else self._read(node, reply, by_name)
                outcome = None if isinstance(reply, Exception) else outcome
            waiting = waiting[len(replies.items) :]
            if waiting:
                ends, outcome = ends + 1, None if self.is_named else _outcome(replies, self._limit)
                self.ending = f"{replies.ending} in a support check"
                refusal = no(Reason.REFUSED, f"it {replies.ending} when it was queried about it")
                is_last = ends == _MAX_ENDS or not self.is_named
                refused, waiting = (waiting, []) if is_last else (waiting[:1], waiting[1:])
                self._answers.update((_key(n), (refusal, ())) for n in refused)
        return outcome

    def _read(self, node: Node, reply: Any, by_name: Mapping[str, Node]) -> Support | Exception:
        """Return the answer in a reply about a node, whose claims have nodes by name."""
        verdict, rows = reply
        try:
            return verdict, tuple(Claim(name, tuple(by_name[n] for n in nodes), words) for name, nodes, words in rows)
        except KeyError as error:
            what = f"backend {self._given.name} claims {error}, which is not a node of the graph"
            return PartitionError(what, where=describe(node), remedy=AUTHOR)

    def _structure(self, graph: Graph) -> str:
        """Return a digest of the structure of a graph."""
        if graph not in self._structures:
            self._structures[graph] = digest(("check", graph_structure(graph)))
        return self._structures[graph]

    def _artifact(self, region: Region, replies: Replies) -> PreprocessResult:
        """Return the artifact in the replies about a region, or raise its refusal or error."""
        if replies.ending:
            self._raise_ending(region, replies.ending, is_late=replies.is_late)
        result: PreprocessResult = _value(replies.items[0])
        return result

    def _raise_ending(self, region: Region, ending: str, *, is_late: bool, when: str = "") -> NoReturn:
        """Raise the refusal of a region at which the process of a compiler ended."""
        self.ending = f"{ending} when it compiled a partition{when and ','}{when}"
        if is_late:
            raise RegionGivenUp(dict.fromkeys((n.name for n in region.calls), f"its compiler {ending}{when}"))
        raise RegionCrashed(f"its compiler {ending}{when}")

    def _query(self, question: str, subject: Any, names: Sequence[str] = ("",), limit: float | None = None) -> Replies:
        """Query the separate process; raises CannotIsolate if there is none, or it cannot get the subject."""
        if self._part is None:
            try:
                self.make()
            except BackendError as error:
                if not self.is_named and not isinstance(error, CannotIsolate):
                    raise
                logger.info("%s is not compiled in a separate process: %s", self._given.name, error)
                self._part = CannotIsolate(str(error))
        assert self._part is not None
        if isinstance(self._part, CannotIsolate):
            raise self._part
        return compiler_process.query(self._part, question, subject, names, limit or self._limit)


def warm_up(backends: Iterable[IsolatedBackend], graphs: Iterable[Graph]) -> None:
    """Start the separate process if a program is new to any backend, which may then need the process."""
    if backends := list(backends):
        operators = [[str(node.target) for node in graph.nodes] for graph in graphs]
        program = digest(("program", operators))
        if new := [b.path for b in backends if b.is_new(program)]:
            compiler_process.warm_up(new)


def nodes_of(graph: Graph, first: Node) -> Iterable[Node]:
    """Return the nodes of a graph that backends are queried about, a given one first."""
    nodes = (n for n in graph.nodes if is_compute(n) and not is_control_flow(n.target))
    return dict.fromkeys((first, *nodes))


def digest(value: object) -> str:
    """Return a digest of a value that is the same in every process."""
    return hashlib.sha256(repr(value).encode(errors="surrogatepass")).hexdigest()[:32]


def _outcome(replies: Replies, limit: float) -> Outcome:
    """Return the outcome that replies tell, within a limit in seconds."""
    return Outcome(replies.ending, 0.0 if replies.ending and not replies.is_late else limit)


def _key(node: Node) -> Key:
    return node, str(node.format_node())


def _value(answer: Any) -> Any:
    """Return an answer, or raise it if it is an error."""
    if isinstance(answer, Exception):
        raise answer
    return answer


def _read_outcome(entry: Entry) -> Outcome:
    """Return the outcome in a cache entry; raises an exception if it makes no sense."""
    return Outcome(text(entry.about, "ending"), amount(entry.about, "limit"))
