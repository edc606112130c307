"""IsolatedBackend: the AOT part of a backend in a separate process, so that a crash or a hang there is a refusal.

Two settings use it. With `isolate: compile`, the separate process answers everything, and this process never creates
the AOT part. With `isolate: auto`, the separate process is first used for each structure that is new to the backend.
Its outcome is recorded: the structure was safe, or the process ended. This process compiles a safe structure from then
on, which is faster. A structure at which the process ended is refused at once.

A structure is the operators, arguments, shapes and dtypes of a region, without the content of its constants.
`compiler_process` has the processes themselves.
"""

from __future__ import annotations

import hashlib
import logging
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from torch._ops import OpOverload
from torch.fx import Graph, Node

from delegate.backends import compiler_process
from delegate.backends.aot import Claim, PreprocessResult, Region, RegionFailed, RegionGivenUp
from delegate.backends.compiler_process import AotPart, CannotIsolate, Replies
from delegate.backends.region import one_node_region
from delegate.backends.state import BackendState
from delegate.backends.transfer import MAKE
from delegate.cache.runtime.store import Entry, Store
from delegate.edge.control_flow import is_control_flow
from delegate.edge.node import is_compute
from delegate.errors import BackendBroken, BackendError, DelegateError
from delegate.field_checks import amount, mapping, text
from delegate.plugins import AUTHOR
from delegate.probing.process import ended
from delegate.verdict import Reason, Verdict, no

logger = logging.getLogger(__name__)

FORMAT = 3  # of the entries that hold outcomes
_DIGITS = 2  # of a structure's digest: those that begin alike share an entry, so there are 256 of a backend
_MOST = 80  # outcomes of an entry; the first ones go
_MOST_ENDS = 3  # processes that may end during the support checks of one graph, before the rest of it is refused
_BY_OTHERS = tuple(ended(-signal.Signals[name]) for name in ("SIGKILL", "SIGTERM", "SIGINT") if hasattr(signal, name))
_AGAIN = "in an earlier lowering; run `delegate cache clear` to try again"

Key = tuple[Node, str]  # a node, and its text in the graph at the query


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


SAFE = Outcome()


class Outcomes:
    """Structures that the library of a backend has checked or compiled in a separate process, with the outcomes.

    They last as long as this process. `write` adds the new ones to the cache, if there is one, once in a lowering.
    There they are spread over entries of bounded size, so its time does not depend on how many are recorded already.

    Args:
        identity: all that outcomes depend on besides the structure; None if that is unknown, and nothing is recorded.
        store: the cache; None if there is none.
    """

    _RECORDED: dict[tuple[str, str], dict[str, Outcome]] = {}  # noqa: RUF012 - of this process: folder, key -> outcomes

    def __init__(self, identity: Callable[[], str | None], store: Store | None) -> None:
        self._identity, self._store = identity, store
        self._entries: dict[str, dict[str, Outcome]] = {}  # by key, after they were read
        self._unwritten: dict[str, dict[str, Outcome]] = {}  # by key

    def get(self, structure: str, limit: float) -> Outcome | None:
        """Return the outcome at a structure; None if it is unknown, or may be another one with these seconds."""
        key = self._key(structure)
        found = None if key is None else self._known(key).get(structure)
        return found if found is not None and found.holds_within(limit) else None

    def put(self, outcomes: Mapping[str, Outcome]) -> None:
        """Record outcomes, except those that the library may not have caused, such as a lack of memory."""
        for structure, outcome in outcomes.items():
            if outcome.ending not in _BY_OTHERS and (key := self._key(structure)) is not None:
                self._known(key)[structure] = outcome
                self._unwritten.setdefault(key, {})[structure] = outcome

    def write(self) -> None:
        """Write the new outcomes to the cache."""
        for key, added in self._unwritten.items():
            known = self._known(key)
            known |= self._read(key) | added  # other processes write, too
            for structure in list(known)[:-_MOST]:
                del known[structure]
            if self._store is not None:
                self._store.put(key, {"outcomes": known}, [])
        self._unwritten.clear()

    def _key(self, structure: str) -> str | None:
        """Return the key of the entry that has a structure; None if nothing can be recorded."""
        try:
            identity = self._identity()
        except DelegateError:  # who uses the identity for more reports it
            return None
        if identity is None:
            return None
        return hashlib.sha256(repr(("outcomes", FORMAT, identity, structure[:_DIGITS])).encode()).hexdigest()

    def _known(self, key: str) -> dict[str, Outcome]:
        if key not in self._entries:
            folder = "" if self._store is None else str(self._store.folder)
            self._entries[key] = self._RECORDED.setdefault((folder, key), {})
            self._entries[key] |= self._read(key)
        return self._entries[key]

    def _read(self, key: str) -> dict[str, Outcome]:
        return {} if self._store is None else self._store.read(key, _outcomes_of) or {}


class IsolatedBackend:
    """The AOT part of a backend in a separate process, which is started again if it has ended.

    Args:
        name: of the backend.
        path: of the class of its AOT part, "module:Class".
        options: as JSON.
        limit: seconds for the support checks of a graph, and for each region.
        outcomes: of the structures that were tried. This process answers for those that were safe. None: the separate
            process answers everything.

    Attributes:
        path: the argument.
        has_failed: true if the separate process has ended at a support check of a new structure, now or earlier.
    """

    def __init__(self, name: str, path: str, options: str, limit: float, outcomes: Outcomes | None = None) -> None:
        self.path, self.has_failed = path, False
        self._name, self._options, self._limit, self._outcomes = name, options, limit, outcomes
        self._part: AotPart | CannotIsolate | None = None
        self._verdicts: dict[Key, Any] = {}
        self._claims: dict[Key, Any] = {}
        self._regions: dict[Key, Region] = {}  # of nodes that this process is to check
        self._new: set[str] = set()  # structures of nodes that were unknown before this lowering
        self._not_sent: set[Graph] = set()  # graphs that the separate process cannot get

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
        part = AotPart.of(self._name, self.path, self._options)
        replies = compiler_process.query(part, MAKE, None, ("",), self._limit)
        if replies.ending:
            what = f"the AOT part of backend {self._name!r} {replies.ending} when it was created"
            raise BackendBroken(what, where=self.path.replace(":", "."), remedy=AUTHOR)
        attributes: tuple[frozenset[str], int | None] = _value(replies.items[0])
        self._part = part
        return attributes

    def check(self, node: Node) -> Verdict | Region:
        """Return the verdict on a node, or the node's region if this process is to check it.

        Raises:
            DelegateError: the AOT part failed.
            CannotIsolate: the separate process has to answer everything, and cannot get the graph.
        """
        key = _key(node)
        if key not in self._verdicts:
            if self._outcomes is None:
                self._check_all(nodes_of(node.graph, node))
            elif (answer := self._check_new(node, key, self._outcomes)) is not None:
                return answer
        verdict: Verdict = _value(self._verdicts[key])
        return verdict

    def claims(self, node: Node) -> tuple[Claim, ...]:
        """Return the pattern matches around a node; the errors are those of `check`."""
        key = _key(node)
        if key not in self._claims:
            by_name = {n.name: n for n in node.graph.nodes}

            def read(rows: Any) -> tuple[Claim, ...]:
                return tuple(Claim(name, tuple(by_name[n] for n in nodes), verdict) for name, nodes, verdict in rows)

            self._answer(nodes_of(node.graph, node), self._claims, "claims", read, lambda why: ())
        claims: tuple[Claim, ...] = _value(self._claims[key])
        return claims

    def preprocess(self, region: Region) -> PreprocessResult | None:
        """Return the artifact of a region; None if this process is to compile it.

        Raises:
            RegionRefused: the AOT part rejects nodes.
            RegionGivenUp: it took too long.
            RegionFailed: it crashed, or rejects the region without naming nodes.
            DelegateError: it failed.
        """
        if self._outcomes is None:
            return _artifact(region, self._query("preprocess", region))
        name = digest(("compile", region.structure))
        outcome = self._outcomes.get(name, self._limit)
        if outcome is None:
            try:
                replies = self._query("preprocess", region)
            except CannotIsolate:
                return None
            if replies.is_made:
                self._outcomes.put({name: self._outcome(replies)})
            return _artifact(region, replies)
        if outcome.ending:
            _raise_ending(region, f"{outcome.ending} {_AGAIN}", is_late=outcome.limit > 0)
        return None

    def check_artifact(self, region: Region, artifact: PreprocessResult) -> None:
        """Raise an exception if a cached artifact of a region is impossible."""
        replies = self._query("check_artifact", (region, artifact))
        if replies.ending or not _value(replies.items[0]):
            raise ValueError(f"the artifact of {region.name} is invalid")

    def identity(self, state: BackendState) -> str | None:
        """Return the backend's identity, marked as isolated; None if its process ends at that."""
        replies = self._query("identity", (state.owner, state.availability))
        own = None if replies.ending else _value(replies.items[0])
        return None if own is None else f"isolated: {own}"

    def is_new(self, program: str) -> bool:
        """Return true if the program of a digest is lowered for the first time, so that its structures may be new."""
        if self._outcomes is None or self._outcomes.get(program, 0.0) is not None:
            return False
        self._outcomes.put({program: SAFE})
        return True

    def record(self) -> None:
        """Write the outcomes of this lowering to the cache."""
        if self._outcomes is not None:
            self._outcomes.write()

    def _check_new(self, node: Node, key: Key, outcomes: Outcomes) -> Verdict | Region | None:
        """Check a node in the separate process if it is new, with all others of its graph that are.

        Returns:
            None if the node was checked; the verdict if the process once ended at its structure; else its region.
        """
        region = self._regions.pop(key, None) or one_node_region(node)
        structure = _structure(node, region)
        outcome = self._known(structure, outcomes)
        if outcome is not None and not outcome.ending:
            return region
        if outcome is not None:
            self.has_failed = True
            return refuse(f"it {outcome.ending} when it was queried about it, {_AGAIN}")
        if node.graph in self._not_sent:
            return region
        new = {node: structure}
        for other in nodes_of(node.graph, node):
            other_key = _key(other)
            if other is node or other_key in self._verdicts or other_key in self._regions:
                continue
            region_of_other = one_node_region(other)
            name = _structure(other, region_of_other)
            if self._known(name, outcomes) is None:
                new[other] = name
            else:
                self._regions[other_key] = region_of_other
        try:
            replies = self._check_all(new)
        except CannotIsolate:
            self._not_sent.add(node.graph)
            return region
        found = {name: self._outcome(replies[n]) for n, name in new.items() if name and n in replies}
        outcomes.put(found)
        self.has_failed |= any(outcome.ending for outcome in found.values())
        self._new |= found.keys()
        return None

    def _known(self, structure: str, outcomes: Outcomes) -> Outcome | None:
        """Return the outcome at a structure in earlier lowerings; the verdicts of this one are in the process."""
        return None if not structure or structure in self._new else outcomes.get(structure, self._limit)

    def _outcome(self, replies: Replies) -> Outcome:
        return Outcome(replies.ending, 0.0 if replies.ending and not replies.is_late else self._limit)

    def _check_all(self, nodes: Iterable[Node]) -> dict[Node, Replies]:
        return self._answer(nodes, self._verdicts, "check", lambda verdict: verdict, refuse)

    def _answer(
        self,
        nodes: Iterable[Node],
        answers: dict[Key, Any],
        question: str,
        read: Callable[[Any], Any],
        refusal: Callable[[str], Any],
    ) -> dict[Node, Replies]:
        """Query nodes of one graph that have no answer; the answer at which the process ends is a refusal.

        Args:
            nodes: of the graph.
            answers: of earlier queries; updated.
            question: a key of `compiler_process.DECODERS`.
            read: turns a reply into an answer.
            refusal: returns the answer for a node at which the process ended, from the reason.

        Returns:
            The replies about each node, but not of the rest that is refused after several ends.
        """
        waiting = [n for n in nodes if _key(n) not in answers]
        found: dict[Node, Replies] = {}
        ends = 0
        while waiting:
            replies = self._query(question, waiting[0].graph, [n.name for n in waiting])
            for node, reply in zip(waiting, replies.items, strict=False):
                answers[_key(node)] = reply if isinstance(reply, Exception) else read(reply)
                found[node] = Replies([reply])
            waiting = waiting[len(replies.items) :]
            if waiting:
                ends += 1
                found[waiting[0]] = replies
                why = f"it {replies.ending} when it was queried about it"
                refused, waiting = (waiting, []) if ends == _MOST_ENDS else (waiting[:1], waiting[1:])
                answers.update((_key(n), refusal(why)) for n in refused)
        return found

    def _query(self, question: str, subject: Any, names: Sequence[str] = ("",)) -> Replies:
        """Query the separate process; raises CannotIsolate if there is none, or it cannot get the subject."""
        if self._part is None:
            try:
                self.make()
            except BackendError as error:
                logger.info("%s is not compiled in a separate process: %s", self._name, error)
                self._part = CannotIsolate(str(error))
        assert self._part is not None
        if isinstance(self._part, CannotIsolate):
            raise self._part
        return compiler_process.query(self._part, question, subject, names, self._limit)


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


def refuse(why: str) -> Verdict:
    """Return the verdict on a node at which a library ended."""
    return no(Reason.REFUSED, why)


def digest(value: object) -> str:
    """Return a digest of a value that is the same in every process."""
    return hashlib.sha256(repr(value).encode(errors="surrogatepass")).hexdigest()[:32]


def _structure(node: Node, region: Region) -> str:
    """Return a digest of a node's structure; empty if it has none."""
    return digest(("check", region.structure)) if isinstance(node.target, OpOverload) else ""


def _key(node: Node) -> Key:
    return node, str(node.format_node())


def _artifact(region: Region, replies: Replies) -> PreprocessResult:
    """Return the artifact in the replies about a region, or raise its refusal or error."""
    if replies.ending:
        _raise_ending(region, replies.ending, is_late=replies.is_late)
    result: PreprocessResult = _value(replies.items[0])
    return result


def _raise_ending(region: Region, ending: str, *, is_late: bool) -> NoReturn:
    """Raise the refusal of a region at which the process of a compiler ended."""
    if is_late:
        raise RegionGivenUp(dict.fromkeys((n.name for n in region.calls), f"its compiler {ending}"))
    raise RegionFailed(f"its compiler {ending}")


def _value(answer: Any) -> Any:
    """Return an answer, or raise it if it is an error."""
    if isinstance(answer, Exception):
        raise answer
    return answer


def _outcomes_of(entry: Entry) -> dict[str, Outcome]:
    """Return the outcomes of an entry of the cache; raises an exception if it makes no sense."""
    rows = mapping(entry.about, "outcomes")
    return {name: _outcome_of(row) for name, row in rows.items()}


def _outcome_of(row: object) -> Outcome:
    if not isinstance(row, list):
        raise TypeError("an outcome should be a list")
    given = dict(zip(Outcome._fields, row, strict=True))
    return Outcome(text(given, "ending"), amount(given, "limit"))
