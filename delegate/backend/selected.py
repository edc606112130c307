"""SelectedBackend: the AOT part of a backend in one lowering, as the planner and the compiler use it.

The planner calls `SelectedBackend.check`, and that calls `Backend.check`; in between, faults of a plugin become errors
that name it, and a separate process answers for a library that may crash.
"""

from __future__ import annotations

import logging
import re
import reprlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property, lru_cache
from typing import cast

import torch
from pydantic.errors import PydanticInvalidForJsonSchema
from torch.fx import Graph, Node
from torch.fx.experimental import symbolic_shapes

from delegate.backend.aot import (
    Backend,
    Claim,
    Options,
    PreprocessResult,
    Region,
    RegionFailed,
    RegionGivenUp,
    RegionRefused,
    Reproduction,
    plain,
)
from delegate.backend.decomposition import DecompositionPolicy
from delegate.backend.deviations import Deviation
from delegate.backend.isolated import IsolatedBackend, Support
from delegate.backend.region import SIZE_DECIDED
from delegate.backend.state import BackendState
from delegate.cache.runtime.environment import code_of, files_of, versions_of
from delegate.edge.control_flow import is_control_flow
from delegate.edge.node import describe, symbolic_numbers
from delegate.edge.program import META_VALUE
from delegate.edge.torch_private import WITHOUT_LIBRARIES
from delegate.errors import BackendBroken, BackendFailed, DelegateError, LoweringError, PartitionError
from delegate.plugins import AUTHOR, IN_PROCESS, OWN, one_line
from delegate.runtime.option_rules import Rule, rule_of_schema
from delegate.verdict import Reason, Verdict, no

_NOTHING_OPEN = nullcontext()
_LOGGER = logging.getLogger(symbolic_shapes.__name__)


class SelectedBackend:
    """The AOT part of a backend in one lowering, wherever it runs.

    It returns the answers of the AOT part, with these differences:

    - An exception or a wrong answer becomes an error that names the backend.
    - An answer that depends on a dynamic size is a refusal.
    - It compiles a copy of each region, which it may rewrite.

    The first error of a backend that the user did not name drops it: from then on it refuses all nodes. A plugin that
    the user did not name is also dropped by the first end of its separate process.

    Args:
        name: the name of the backend.
        part: the class of the AOT part.
        options: the checked options.
        isolated: the AOT part in a separate process, which answers first; None if this process answers everything.
        on_drop: called with the error that drops a backend that the user did not name. None: the user named it, and
            errors are raised.

    Attributes:
        preserve_ops, most_constants: the values of the AOT part.
        has_claims: true if the AOT part matches patterns.
        is_isolated: true if the AOT part runs in a separate process only.
        isolated: the argument.
        dropped: the error that dropped it; None if it is in use.

    Raises:
        BackendBroken: the AOT part cannot be created, or has invalid attributes.
        CannotIsolate: the separate process has to answer everything, and cannot.
    """

    def __init__(
        self,
        name: str,
        part: type[Backend],
        options: Options,
        isolated: IsolatedBackend | None = None,
        on_drop: Callable[[DelegateError], None] | None = None,
    ) -> None:
        self.name, self.isolated = name, isolated
        self._class, self._on_drop = part, on_drop
        self.dropped: DelegateError | None = None
        self.has_claims = part.claims is not Backend.claims
        self.preserve_ops: frozenset[str]
        self.most_constants: int | None
        self._part: Backend  # absent if the separate process answers everything
        self.is_isolated = isolated is not None and isolated.answers_all
        self._isolates_checks = self.is_isolated
        if isolated is not None and self.is_isolated:  # its library is not used here
            self.preserve_ops, self.most_constants = isolated.make()
            return
        try:
            self._part = created = part(options)
            self.preserve_ops = _names(created.preserve_ops)
            self.most_constants = created.most_constants
            self._isolates_checks = isolated is not None and (created.check_uses_library or self.is_unnamed_plugin)
        except DelegateError:
            raise
        except (Exception, SystemExit) as error:
            what = f"the AOT part of backend {name!r} fails when it is created: {one_line(error)}"
            raise BackendBroken(what, where=f"{part.__module__}.{part.__qualname__}", remedy=AUTHOR) from error

    @property
    def deviations(self) -> Sequence[Deviation]:
        """The differences of the library from torch."""
        return self._class.deviations

    @property
    def is_unnamed_plugin(self) -> bool:
        """Return true if it is a plugin that the user did not name."""
        return self.isolated is not None and not self.isolated.is_named

    @property
    def has_failed(self) -> bool:
        """Return true if it was dropped, or its separate process has ended."""
        return self.dropped is not None or (self.isolated is not None and bool(self.isolated.ending))

    @property
    def rounds_float32(self) -> bool:
        """Return true if float32 is computed at lower precision, or a separate process alone knows."""
        return self.is_isolated or self._part.float32_precision is not torch.float32

    def reproduction(self, artifact: PreprocessResult) -> Reproduction | None:
        """Return the AOT part's way to run an artifact without this project; None if it has none, or fails."""
        if self.is_isolated:
            return None
        try:
            return self._part.reproduction(artifact)
        except (Exception, SystemExit) as error:  # a plugin may raise anything
            logging.getLogger(__name__).info("backend %s has no reproduction: %s", self.name, one_line(error))
            return None

    @cached_property
    def policy(self) -> DecompositionPolicy:
        """The decomposition policy, which all plans share, so each kind of operator is decomposed once."""
        return DecompositionPolicy(self.preserve_ops)

    def check(self, node: Node) -> Verdict:
        """Return the verdict on a node; a refusal if it depends on a dynamic size, or is control flow.

        Raises:
            PartitionError: the AOT part raised another exception, or returned another object.
            DelegateError: the AOT part raised it.
        """
        if is_control_flow(node.target):
            return no(Reason.OPERATOR, f"{self.name} does not run control flow")
        if self.dropped is not None:
            return no(Reason.REFUSED, self.dropped.what)
        try:
            with sizes_open((node, *node.all_input_nodes)):
                support = self._answer_elsewhere(node)
                verdict = self._part.check(node) if support is None else support[0]
            if isinstance(verdict, Verdict):
                return verdict
            what = f"the support check of backend {self.name} returned {reprlib.repr(verdict)}"
            remedy = f"it should return a delegate.verdict.Verdict: {AUTHOR}"
            raise PartitionError(what, where=describe(node), remedy=remedy)
        except SIZE_DECIDED as decided:
            return no(Reason.DYNAMIC_SHAPE, condition_of(self.name, decided))
        except (Exception, SystemExit) as error:  # a plugin may raise anything
            fault = self._report(error, f"the support check of backend {self.name} failed", node)
            return no(Reason.REFUSED, fault.what)

    def claims(self, node: Node) -> tuple[Claim, ...]:
        """Return the pattern matches around a node; none if they depend on a dynamic size.

        It raises the errors of `check`.
        """
        if self.dropped is not None:
            return ()
        try:
            with sizes_open((node, *node.all_input_nodes)):
                support = self._answer_elsewhere(node)
                return self._claims(node) if support is None else support[1]
        except SIZE_DECIDED:
            return ()  # the support check has this reason for the node itself
        except (Exception, SystemExit) as error:
            self._report(error, f"the claims of backend {self.name} failed", node)
            return ()

    def forget(self, graph: Graph) -> None:
        """Forget earlier questions about a graph, which may have changed since."""
        if self.isolated is not None:
            self.isolated.forget(graph)

    def preprocess(self, region: Region) -> PreprocessResult:
        """Return the artifact of a region, or reject all nodes if that drops a backend that the user did not name.

        Raises:
            RegionRefused: the AOT part rejects nodes of the region.
            RegionGivenUp: the separate process took too long.
            RegionFailed: the AOT part rejects the region without naming nodes, or its process crashed.
            DelegateError: the AOT part failed.
        """
        if self.dropped is None:
            try:
                result = None if self.isolated is None else self.isolated.preprocess(region)
                return self._compile(region) if result is None else result
            except (RegionFailed, RegionRefused):
                if self.isolated is None or self.isolated.is_named or not self.isolated.ending:
                    raise
                self._drop(_end_error(self.isolated, self.name))
            except DelegateError as fault:
                self._drop(fault)
        assert self.dropped is not None
        raise RegionGivenUp({node.name: self.dropped.what for node in region.calls}) from self.dropped

    def check_artifact(self, region: Region, artifact: PreprocessResult) -> None:
        """Raise an exception if a cached artifact of a region is impossible."""
        if not self.is_isolated:  # the runtime part checks it in any case
            self._part.check_artifact(region, artifact)

    def option_rules(self) -> dict[str, Rule]:
        """Return the accepted values of those options whose model states plain ones; for loads."""
        return _option_rules(self._class.Options)

    def identity(self, state: BackendState) -> str | None:
        """Return everything that results of the AOT part depend on besides their graphs, as text.

        Every cache and every memory of outcomes identifies a backend by this text alone. Instances of a backend with
        equal options share it. It is None if results are not cached.

        Args:
            state: the state of the backend on this machine.

        Raises:
            BackendBroken: `cache_key` of the AOT part fails, of a backend that was named.
        """
        try:
            if self.isolated is not None and self.is_isolated:
                return self.isolated.identity(state)
            return self._identity(self._part, state)
        except DelegateError as fault:
            self._drop(fault)
            return None

    def _answer_elsewhere(self, node: Node) -> Support | None:
        """Return the answer of the separate process about a node; None if this process is to answer."""
        if self.isolated is None or not self._isolates_checks:
            return None
        answer = self.isolated.answer(node)
        if self.isolated.ending and not self.isolated.is_named:
            raise _end_error(self.isolated, self.name)
        return answer

    def _claims(self, node: Node) -> tuple[Claim, ...]:
        """Return the pattern matches of the AOT part in this process."""
        matches = tuple(cast("Iterable[Claim]", self._part.claims(node)))
        for claim in matches:
            _require_claim(claim, node, self.name)
        return matches

    def _compile(self, region: Region) -> PreprocessResult:
        """Compile a copy of a region in this process; it raises the errors of `preprocess`."""
        region = region.copy()
        place = f"{region.name} of {self.name}"
        try:
            with sizes_open(region.graph.nodes):
                result = self._part.preprocess(region)
        except RegionFailed:
            raise
        except SIZE_DECIDED as decided:
            raise RegionFailed(condition_of(self.name, decided)) from decided
        except RegionRefused as refusal:
            if any(node.name in refusal.reasons for node in region.graph.nodes if node.op == "call_function"):
                raise
            what = f"backend {self.name} refused a partition, but no node of it: {refusal}"
            raise LoweringError(what, where=place, remedy=AUTHOR) from refusal
        except DelegateError as error:
            raise error if _names_it(region.name, error.where) else error.at(f"partition {place}") from error
        except (Exception, SystemExit) as error:  # a plugin may raise anything
            what = f"backend {self.name} failed to compile a partition: {one_line(error)}"
            raise LoweringError(what, where=region.name, remedy=AUTHOR) from error
        if not isinstance(result, PreprocessResult):
            what = f"backend {self.name} compiled a partition to a {type(result).__name__}, not a PreprocessResult"
            raise LoweringError(what, where=region.name, remedy=AUTHOR)
        return result

    def _identity(self, part: Backend, state: BackendState) -> str | None:
        packages = {c.__module__.partition(".")[0] for c in self._class.__mro__}
        required = {line.partition(" ")[0] for line in versions_of(state.owner)}
        packages |= {name for name in required & sys.modules.keys() if name.startswith("delegate_")}
        code = [code_of(package) for package in sorted(packages - sys.stdlib_module_names)]
        if state.owner != OWN:
            code.append(files_of(state.owner))
        if None in code or state.owner == IN_PROCESS:  # its code may change while its name stays
            return None
        try:
            own = part.cache_key()
            if own is not None and not isinstance(own, str):
                raise TypeError(f"it returns a {type(own).__name__}, not text or None")
        except (Exception, SystemExit) as error:
            what = f"the AOT part of backend {self.name!r} fails in cache_key: {one_line(error)}"
            raise BackendBroken(what, remedy=AUTHOR) from error
        if own is None:
            return None
        found = state.availability
        here = None if found is None else (sorted(found.versions.items()), found.devices)
        versions = (sys.version, versions_of("delegate"), versions_of(state.owner))
        compiler = (self._class.name, self._class.__module__, self._class.__qualname__, plain(part.options))
        return repr((compiler, code, versions, here, own))

    def _report(self, error: BaseException, what: str, node: Node) -> DelegateError:
        """Report an exception of the AOT part about a node, as an error of this project; see `_drop`."""
        if isinstance(error, DelegateError):
            fault = error
        else:
            fault = PartitionError(f"{what} with {one_line(error)}", where=describe(node), remedy=AUTHOR)
            fault.__cause__ = error
        self._drop(fault)
        return fault

    def _drop(self, fault: DelegateError) -> None:
        """Drop the backend because of an error; raise the error if the user named the backend."""
        if self._on_drop is None:
            raise fault
        self.dropped = fault
        self._on_drop(fault)


@lru_cache(64)
def _option_rules(options: type[Options]) -> dict[str, Rule]:
    """Return the rules of a model of options; pydantic takes a tenth of a small lowering to write its schema."""
    try:
        schema = options.model_json_schema()
    except PydanticInvalidForJsonSchema:  # a type of its own
        return {}
    rules = {name: rule_of_schema(of_option) for name, of_option in schema.get("properties", {}).items()}
    return {name: rule for name, rule in rules.items() if rule is not None}


def _end_error(isolated: IsolatedBackend, name: str) -> BackendFailed:
    """Return the error of a backend whose separate process has ended."""
    what = f"the separate process of backend {name} {isolated.ending}"
    return BackendFailed(
        what, remedy=f"name it, which gives it more time and costs it only the nodes at fault; {AUTHOR}"
    )


def sizes_open(nodes: Iterable[Node]) -> AbstractContextManager[None]:
    """Return a context in which comparisons of dynamic sizes of these nodes raise an exception of SIZE_DECIDED.

    A plain number that is computed from such a size raises it as well. Torch itself compares no batch size to choose a
    library for a convolution, if a backend has it compute the results of a region again.
    """
    for node in nodes:
        for number in symbolic_numbers(node.meta.get(META_VALUE)):
            return _open(number.node.shape_env)
    return _NOTHING_OPEN


@contextmanager
def _open(environment: symbolic_shapes.ShapeEnv) -> Iterator[None]:
    _LOGGER.addFilter(_says_more)
    try:
        with environment.error_on_new_guards(), WITHOUT_LIBRARIES:
            yield
    finally:
        _LOGGER.removeFilter(_says_more)


def _says_more(record: logging.LogRecord) -> bool:
    """Return false for torch's record of a SIZE_DECIDED exception, which verdicts report."""
    return not str(record.msg).startswith("failed during evaluate_expr")


def condition_of(backend: str, error: RuntimeError) -> str:
    """Return the condition on sizes that a backend evaluated, in torch's words, e.g. "s77 > 4 == True", "Eq(u0, 1)"."""
    if isinstance(error, symbolic_shapes.GuardOnDataDependentSymNode):
        return f"{backend} decides by a size that depends on data: {error.cond}"
    condition = str(error).splitlines()[0].rpartition(": ")[2]  # torch adds the node that it executes
    return f"{backend} decides by the sizes of the export: {condition}"


def _require_claim(claim: object, node: Node, backend: str) -> None:
    """Raise PartitionError unless a backend's answer about a node is a claim of it and of others in its graph."""
    if isinstance(claim, Claim) and node in claim.nodes and all(n.graph is node.graph for n in claim.nodes):
        return
    remedy = f"return delegate.backend.aot.Claims of nodes of the graph, including the queried node: {AUTHOR}"
    raise PartitionError(f"backend {backend} claims {reprlib.repr(claim)}", where=describe(node), remedy=remedy)


def _names_it(name: str, where: str) -> bool:
    """Return true if a place names a partition already: "gpu_1", and not "gpu_10"."""
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", where) is not None


def _names(operators: Iterable[str]) -> frozenset[str]:
    if isinstance(operators, str) or not all(isinstance(op, str) for op in operators):
        raise TypeError("preserve_ops should be a set of names of operators")
    return frozenset(operators)
