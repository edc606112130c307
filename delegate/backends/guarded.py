"""Backends that may fail: by a crash of their library, or though nobody named them.

A structure that is new to a library that may crash is compiled in a separate process first. A backend that was selected
automatically reports its first fault as a warning, and other backends run the nodes of its failed regions.
"""

from __future__ import annotations

import hashlib
import logging
import signal
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple

from torch._ops import OpOverload
from torch.fx import Graph, Node

from delegate.backends import compiler_process
from delegate.backends.aot import PreprocessResult, Region, RegionFailed, RegionGivenUp, RegionRefused
from delegate.backends.checked import CheckedBackend
from delegate.backends.compiler_process import CannotIsolate, Replies
from delegate.backends.isolated import IsolatedBackend, nodes_of, raise_ending, refuse, result_of
from delegate.backends.keys import structure
from delegate.backends.region import one_node_region
from delegate.backends.state import BackendState
from delegate.cache.runtime.store import Entry, Store
from delegate.errors import BackendError, DelegateError
from delegate.field_checks import amount, mapping, text
from delegate.option_rules import Rule
from delegate.probing.process import ended
from delegate.verdict import Verdict

logger = logging.getLogger(__name__)

FORMAT = 2  # of the entries that hold outcomes
_DIGITS = 2  # of a structure's digest: those that begin alike share an entry, so there are 256 of a backend
_MOST = 80  # outcomes of an entry; the first ones go
_BY_OTHERS = tuple(ended(-signal.Signals[name]) for name in ("SIGKILL", "SIGTERM", "SIGINT") if hasattr(signal, name))
_AGAIN = "in an earlier lowering; `delegate cache clear` has it tried again"


class Outcome(NamedTuple):
    """The end of a compiler's process at a structure.

    Args:
        ending: e.g. "was killed by SIGSEGV"; empty if it did not end.
        limit: seconds after which it was ended; 0 if it ended by itself.
    """

    ending: str = ""
    limit: float = 0.0


SAFE = Outcome()


class Outcomes:
    """Structures that the library of a backend has checked or compiled in a separate process, with the outcomes.

    They last as long as this process, and in the cache if there is one. There they are spread over entries of bounded
    size. So recording an outcome costs the same however many there are, and a lowering is linear in its partitions:
    with 20,000 recorded outcomes, 500 new ones take 6 s, and 180 s if all were in one entry.

    Args:
        identity: all that outcomes depend on besides the structure; None if that is unknown, and nothing is recorded.
        store: the cache; None if there is none.
    """

    _RECORDED: dict[tuple[str, str], dict[str, Outcome]] = {}  # noqa: RUF012 - of this process: folder, key -> outcomes

    def __init__(self, identity: Callable[[], str | None], store: Store | None) -> None:
        self._identity, self._store = identity, store
        self._entries: dict[str, dict[str, Outcome]] = {}  # by key, after they were read

    def get(self, structure: str, limit: float) -> Outcome | None:
        """Return the outcome at a structure; None if it is unknown, or was late under a lower limit in seconds."""
        key = self._key(structure)
        found = None if key is None else self._known(key).get(structure)
        return None if found is None or 0 < found.limit < limit else found

    def put(self, outcomes: dict[str, Outcome]) -> None:
        """Record outcomes, except those that the library may not have caused, such as a lack of memory."""
        lasting = {name: outcome for name, outcome in outcomes.items() if outcome.ending not in _BY_OTHERS}
        by_key: dict[str, dict[str, Outcome]] = {}
        for name, outcome in lasting.items():
            if (key := self._key(name)) is not None:
                by_key.setdefault(key, {})[name] = outcome
        for key, added in by_key.items():
            known = self._known(key)
            known |= self._read(key) | added  # other processes write, too
            for name in list(known)[:-_MOST]:
                del known[name]
            if self._store is not None:
                self._store.put(key, {"outcomes": known}, [])

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


class GuardedBackend:
    """An AOT part that may crash: it runs in this process, except for structures that are new to it.

    A structure is the operators, arguments, shapes and dtypes of a region, without the content of its constants. The
    first time that it is compiled, and checked if checks use the library, this is done in a separate process. If the
    process ends at that, the backend refuses the structure from then on.

    Args:
        backend: the AOT part in this process.
        path: the path of its class, "module:Class".
        isolate: creates the AOT part in a separate process.
        outcomes: the recorded outcomes at structures.
        limit: seconds for the support checks of a graph, and for each region.

    Attributes:
        path: the argument.
        has_failed: true if the separate process has ended at a support check.
        claims, preserve_ops, most_constants, option_rules, identity, check_artifact: the AOT part's own.
    """

    def __init__(
        self,
        backend: CheckedBackend,
        path: str,
        isolate: Callable[[], IsolatedBackend],
        outcomes: Outcomes,
        limit: float,
    ) -> None:
        self.path, self._backend, self._isolate, self._outcomes, self._limit = path, backend, isolate, outcomes, limit
        self.claims, self.check_artifact = backend.claims, backend.check_artifact
        self.preserve_ops, self.most_constants = backend.preserve_ops, backend.most_constants
        self.option_rules, self.identity = backend.option_rules, backend.identity
        self.has_failed = False
        self._isolated: IsolatedBackend | CannotIsolate | None = None
        self._new: set[str] = set()  # structures of nodes that were unknown before this lowering

    def check(self, node: Node) -> Verdict:
        """Return the backend's verdict; raises DelegateError for a fault."""
        if not self._backend.check_uses_library:
            return self._backend.check(node)
        outcome = self._known(_structure_of(node))
        if outcome is None:
            try:
                return self._check_isolated(node)
            except CannotIsolate:
                return self._backend.check(node)
        if outcome.ending:
            self.has_failed = True
            return refuse(f"it {outcome.ending} when it was asked about it, {_AGAIN}")
        return self._backend.check(node)

    def preprocess(self, region: Region) -> PreprocessResult:
        """Return the compiled region; raises as `IsolatedBackend.preprocess` does."""
        name = _digest(("compile", _form(region)))
        outcome = self._outcomes.get(name, self._limit)
        if outcome is None:
            try:
                replies = self._separate().compile(region)
            except CannotIsolate:
                return self._backend.preprocess(region)
            if replies.is_made:
                self._outcomes.put({name: self._outcome(replies)})
            return result_of(region, replies)
        if outcome.ending:
            raise_ending(region, f"{outcome.ending} {_AGAIN}", is_late=outcome.limit > 0)
        return self._backend.preprocess(region)

    def is_new(self, program: str) -> bool:
        """Return true if the program of a digest is lowered here for the first time."""
        if self._outcomes.get(program, 0.0) is not None:
            return False
        self._outcomes.put({program: SAFE})
        return True

    def _check_isolated(self, node: Node) -> Verdict:
        """Check a node in the separate process, with all others of its graph that are new."""
        isolated = self._separate()
        if not isolated.has_checked(node):
            structures = {n: _structure_of(n) for n in nodes_of(node.graph, node)}
            replies = isolated.check_all([n for n, name in structures.items() if self._known(name) is None])
            found = {name: self._outcome(replies[n]) for n, name in structures.items() if name and n in replies}
            self._outcomes.put(found)
            self.has_failed |= any(outcome.ending for outcome in found.values())
            self._new |= found.keys()
        return isolated.check(node)

    def _known(self, name: str) -> Outcome | None:
        """Return the outcome at a structure in earlier lowerings; the verdicts of this one are in the process."""
        return None if not name or name in self._new else self._outcomes.get(name, self._limit)

    def _outcome(self, replies: Replies) -> Outcome:
        return Outcome(replies.ending, self._limit if replies.is_late else 0.0)

    def _separate(self) -> IsolatedBackend:
        """Return the AOT part in the separate process; raises CannotIsolate if that is not possible."""
        if self._isolated is None:
            try:
                self._isolated = self._isolate()
            except BackendError as error:
                logger.info("it is not compiled in a separate process: %s", error)
                self._isolated = CannotIsolate(str(error))
        if isinstance(self._isolated, CannotIsolate):
            raise self._isolated
        return self._isolated


def warm_up(backends: Sequence[GuardedBackend], graphs: Iterable[Graph]) -> None:
    """Start the separate process if a program is new to any backend, which may then need the process."""
    if backends:
        operators = [[str(node.target) for node in graph.nodes] for graph in graphs]
        program = _digest(("program", operators))
        if new := [b.path for b in backends if b.is_new(program)]:
            compiler_process.warm_up(new)


def _structure_of(node: Node) -> str:
    """Return the structure of a node as text; empty if it has none, as control flow."""
    return _digest(("check", _form(one_node_region(node)))) if isinstance(node.target, OpOverload) else ""


def _form(region: Region) -> Hashable:
    """Return the structure of a region, whatever the content of its constants and the names of its nodes."""
    return structure(region, lambda constant: (constant.dtype, tuple(constant.shape)), names=False)


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode(errors="surrogatepass")).hexdigest()[:32]


def _outcomes_of(entry: Entry) -> dict[str, Outcome]:
    """Return the outcomes of an entry of the cache; raises an exception if it makes no sense."""
    rows = mapping(entry.about, "outcomes")
    return {name: _outcome_of(row) for name, row in rows.items()}


def _outcome_of(row: object) -> Outcome:
    if not isinstance(row, list):
        raise TypeError("an outcome should be a list")
    given = dict(zip(Outcome._fields, row, strict=True))
    return Outcome(text(given, "ending"), amount(given, "limit"))


class AutoSelectedBackend:
    """A checked AOT part that is used because it is installed, not because the user named it.

    Args:
        backend: the checked AOT part.
        tell: warns of a fault.
        foreign: true if the backend is a plugin of another author.

    Attributes:
        backend: the argument.
        check, claims, preserve_ops, most_constants: those of the backend.
    """

    def __init__(
        self, backend: CheckedBackend | GuardedBackend, tell: Callable[[DelegateError], None], *, foreign: bool
    ) -> None:
        self.check, self.claims = backend.check, backend.claims
        self.preserve_ops, self.most_constants = backend.preserve_ops, backend.most_constants
        self.backend, self._tell = backend, tell
        self.foreign, self._has_failed = foreign, False

    @property
    def has_failed(self) -> bool:
        """Return true if there was any fault."""
        return self._has_failed or (isinstance(self.backend, GuardedBackend) and self.backend.has_failed)

    def on_fault(self, fault: DelegateError) -> None:
        """Record a fault in the answers of the backend, and warn of it; see `Capability`."""
        self._has_failed = True
        self._tell(fault)

    def option_rules(self) -> dict[str, Rule]:
        """Return the accepted values of each option."""
        return self.backend.option_rules()

    def identity(self, state: BackendState) -> str | None:
        """Return the identity of the backend; None after a fault, so that no result is cached."""
        try:
            return self.backend.identity(state)
        except DelegateError as fault:
            self.on_fault(fault)
            return None

    def check_artifact(self, region: Region, artifact: PreprocessResult) -> None:
        """Raise an exception if a cached artifact of a region is impossible."""
        self.backend.check_artifact(region, artifact)

    def preprocess(self, region: Region) -> PreprocessResult:
        """Return the compiled region. After a fault, all nodes of the region are refused."""
        try:
            return self.backend.preprocess(region)
        except (RegionRefused, RegionFailed):
            raise
        except DelegateError as fault:
            self.on_fault(fault)
            raise RegionGivenUp({node.name: fault.what for node in region.calls}) from fault
