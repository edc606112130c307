"""A checked AOT part: exceptions and wrong answers of a plugin become errors that name it.

A plugin must not change its arguments: graphs that others read later, and the model's own weights. Otherwise it would
silently change the results of others, including those of the user's own model.
"""

from __future__ import annotations

import logging
import re
import reprlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import sympy
import torch
from pydantic.errors import PydanticInvalidForJsonSchema
from torch.fx import Graph, Node
from torch.fx.experimental import symbolic_shapes

from delegate.backends.aot import Backend, Claim, Options, PreprocessResult, Region, RegionFailed, RegionRefused
from delegate.backends.keys import plain
from delegate.backends.state import IN_PROCESS, BackendState
from delegate.cache.runtime.environment import code_of, files_of, versions_of
from delegate.edge.node import describe, symbolic_numbers
from delegate.edge.program import META_VALUE
from delegate.errors import BackendBroken, DelegateError, LoweringError, PartitionError
from delegate.option_rules import Rule
from delegate.plugins import AUTHOR, OWN, one_line
from delegate.verdict import Reason, Verdict, no

_SAMPLED = 3  # places along each dimension of a weight that are compared: a weight is rescaled or turned as a whole


class _Seen(NamedTuple):
    """All fields of a node. Arguments and metadata are flat, with the items of containers and the sizes of tensors."""

    name: tuple[str]
    op: tuple[str]
    target: tuple[Any]
    args: tuple[Any, ...]
    kwargs: tuple[Any, ...]
    users: tuple[Node, ...]
    meta: tuple[Any, ...]


class MutationGuard:
    """A record of a graph and its weights, which reports later changes.

    Args:
        graph: the graph; the record holds its nodes with names, arguments, users and metadata.
        weights: the weights; the record holds some elements of each.
    """

    def __init__(self, graph: Graph, weights: Mapping[Node, torch.Tensor] | None = None) -> None:
        self._graph, self._weights = graph, weights or {}
        self._nodes = _nodes(graph)
        self._elements = {node: _sample(weight) for node, weight in self._weights.items()}

    def change(self) -> str:
        """Return a description of the change since the record; empty if there is none."""
        for node, elements in self._elements.items():
            if not torch.equal(elements, _sample(self._weights[node])):
                return f"wrote to the weight {node.name}, which is the model's own"
        now = _nodes(self._graph)
        if list(now) != list(self._nodes):
            return "added, removed or moved nodes of a graph that others read too"
        for node, seen in now.items():
            before = self._nodes[node]
            for field, old, new in zip(_Seen._fields, before, seen, strict=True):
                if len(old) != len(new) or any(map(_differs, old, new)):
                    return f"changed the node {before.name[0]} of a graph that others read too: its {field}"
        return ""


def _nodes(graph: Graph) -> dict[Node, _Seen]:
    return {n: _seen(n) for n in graph.nodes}


def _seen(node: Node) -> _Seen:
    args, kwargs, meta = (tuple(_flat(value)) for value in (node.args, node.kwargs, node.meta))
    return _Seen((node.name,), (node.op,), (node.target,), args, kwargs, tuple(node.users), meta)


def _flat(value: Any) -> Iterator[Any]:
    """Yield the leaves of nested containers, their kinds and lengths, and the sizes and dtypes of tensors."""
    if isinstance(value, dict):
        yield from (dict, *value)
        value = value.values()
    else:
        yield from (type(value), len(value))
    for item in value:
        if isinstance(item, dict | list | tuple):
            yield from _flat(item)
            continue
        yield item
        if isinstance(item, torch.Tensor):
            yield item.dtype
            yield from (size if isinstance(size, int) else size.node.expr for size in item.shape)


def _differs(old: Any, new: Any) -> bool:
    """Return true if two objects differ. Plain data may be created again, so its values are compared."""
    return old is not new and not (isinstance(old, str | int | sympy.Expr) and type(old) is type(new) and old == new)


def _sample(weight: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a few elements, so that NaN is equal to NaN."""
    steps = tuple(slice(None, None, max(1, size // _SAMPLED)) for size in weight.shape)
    return weight.detach()[steps].clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


SizeDecided = symbolic_shapes._ShapeEnvGuardError
_NOTHING_OPEN = nullcontext()
_LOGGER = logging.getLogger(symbolic_shapes.__name__)


def sizes_open(nodes: Iterable[Node]) -> AbstractContextManager[None]:
    """Return a context in which comparisons of dynamic sizes of these nodes raise SizeDecided.

    A plain number that is computed from such a size raises it as well.
    """
    for node in nodes:
        for number in symbolic_numbers(node.meta.get(META_VALUE)):
            return _open(number.node.shape_env)
    return _NOTHING_OPEN


@contextmanager
def _open(environment: symbolic_shapes.ShapeEnv) -> Iterator[None]:
    _LOGGER.addFilter(_says_more)
    try:
        with environment.error_on_new_guards():
            yield
    finally:
        _LOGGER.removeFilter(_says_more)


def _says_more(record: logging.LogRecord) -> bool:
    """Return false for torch's record of a SizeDecided, which verdicts report."""
    return not str(record.msg).startswith("failed during evaluate_expr")


def decided_by(backend: str, error: SizeDecided) -> str:
    """Return the condition on sizes that a backend evaluated, which ends in torch's words, e.g. "s77 > 4 == True"."""
    return f"{backend} goes by sizes of the export alone: {str(error).rpartition(': ')[2]}"


def answered(backend: str, check: Callable[[Node], Verdict], node: Node) -> Verdict:
    """Return the verdict of a backend's check on a node; a refusal if the check depends on a dynamic size.

    Raises:
        PartitionError: the check raised another exception, or returned another object.
        DelegateError: the check raised it.
    """
    try:
        with sizes_open((node, *node.all_input_nodes)):
            verdict = check(node)
    except DelegateError:
        raise
    except SizeDecided as decided:
        return no(Reason.DYNAMIC_SHAPE, decided_by(backend, decided))
    except (Exception, SystemExit) as error:  # a plugin may raise anything
        what = f"the support check of backend {backend} failed with {one_line(error)}"
        raise PartitionError(what, where=describe(node), remedy=AUTHOR) from error
    if not isinstance(verdict, Verdict):
        what = f"the support check of backend {backend} answered {reprlib.repr(verdict)}"
        remedy = f"it should answer with a delegate.verdict.Verdict: {AUTHOR}"
        raise PartitionError(what, where=describe(node), remedy=remedy)
    return verdict


def claimed(backend: str, claims: Callable[[Node], Sequence[Claim]], node: Node) -> tuple[Claim, ...]:
    """Return the claims of a backend around a node. The errors are those of `answered`."""
    try:
        with sizes_open((node, *node.all_input_nodes)):
            made = tuple(claims(node))
    except DelegateError:
        raise
    except SizeDecided:
        return ()  # its check says so of the node itself
    except (Exception, SystemExit) as error:
        what = f"the claims of backend {backend} failed with {one_line(error)}"
        raise PartitionError(what, where=describe(node), remedy=AUTHOR) from error
    for claim in made:
        if not (isinstance(claim, Claim) and node in claim.nodes and all(n.graph is node.graph for n in claim.nodes)):
            what = f"backend {backend} claims {reprlib.repr(claim)}"
            remedy = f"give delegate.backends.aot.Claims of nodes of the graph, the asked one among them: {AUTHOR}"
            raise PartitionError(what, where=describe(node), remedy=remedy)
    return made


class CheckedBackend:
    """The AOT part of a backend, created with its options.

    Args:
        name: the name of the backend.
        part: the class of the AOT part.
        options: the checked options.

    Attributes:
        check, preserve_ops, most_constants: those of the AOT part; `answered` guards the verdicts.
        claims: that of the AOT part, which `claimed` guards; None if it has no patterns.

    Raises:
        BackendBroken: the AOT part cannot be created, or has invalid attributes.
    """

    def __init__(self, name: str, part: type[Backend], options: Options) -> None:
        self._name = name
        self.claims: Callable[[Node], Sequence[Claim]] | None
        try:
            self._part = part(options)
            self.preserve_ops = _names(self._part.preserve_ops)
            self.check = self._part.check
            self.most_constants = self._part.most_constants
            self.check_uses_library = self._part.check_uses_library
            self.claims = None if type(self._part).claims is Backend.claims else self._part.claims
        except DelegateError:
            raise
        except (Exception, SystemExit) as error:
            what = f"the AOT part of backend {name!r} fails when it is made: {one_line(error)}"
            raise BackendBroken(what, where=f"{part.__module__}.{part.__qualname__}", remedy=AUTHOR) from error

    def option_rules(self) -> dict[str, Rule]:
        """Return the accepted values of each option."""
        return rules_of(type(self._part))

    def identity(self, state: BackendState) -> str | None:
        """Return the inputs of this backend's blobs besides their regions, as text; None if blobs are not cached.

        Args:
            state: the state of the backend on this machine.

        Raises:
            BackendBroken: `cache_key` of the AOT part fails.
        """
        packages = {c.__module__.partition(".")[0] for c in type(self._part).__mro__}
        code = [code_of(package) for package in sorted(packages - sys.stdlib_module_names)]
        if state.owner != OWN:
            code.append(files_of(state.owner))
        if None in code or state.owner == IN_PROCESS:  # its code may change while its name stays
            return None
        try:
            own = self._part.cache_key()
            if own is not None and not isinstance(own, str):
                raise TypeError(f"it gives a {type(own).__name__}, not text or None")
        except (Exception, SystemExit) as error:
            what = f"the AOT part of backend {self._name!r} fails in cache_key: {one_line(error)}"
            raise BackendBroken(what, remedy=AUTHOR) from error
        if own is None:
            return None
        found = state.availability
        here = None if found is None else (sorted(found.versions.items()), found.devices)
        versions = (sys.version, versions_of("delegate"), versions_of(state.owner))
        return repr((plain(self._part.options), code, versions, here, own))

    def preprocess(self, region: Region) -> PreprocessResult:
        """Return the part's result of compiling a region.

        Raises:
            RegionRefused: the AOT part refuses nodes of the region.
            RegionFailed: the AOT part refuses the region without naming nodes.
            DelegateError: the AOT part failed.
        """
        place = f"{region.name} of {self._name}"
        given = MutationGuard(region.graph, region.constants)
        try:
            with sizes_open(region.graph.nodes):
                result = self._part.preprocess(region)
        except RegionFailed:
            raise
        except SizeDecided as decided:
            raise RegionFailed(decided_by(self._name, decided)) from decided
        except RegionRefused as refusal:
            if any(node.name in refusal.reasons for node in region.graph.nodes if node.op == "call_function"):
                raise
            what = f"backend {self._name} refused a partition, but no node of it: {refusal}"
            raise LoweringError(what, where=place, remedy=AUTHOR) from refusal
        except DelegateError as error:
            raise error if _names_it(region.name, error.where) else error.at(f"partition {place}") from error
        except (Exception, SystemExit) as error:  # a plugin may raise anything
            what = f"backend {self._name} failed to compile a partition: {one_line(error)}"
            raise LoweringError(what, where=region.name, remedy=AUTHOR) from error
        if not isinstance(result, PreprocessResult):
            what = f"backend {self._name} compiled a partition to a {type(result).__name__}, not a PreprocessResult"
            raise LoweringError(what, where=region.name, remedy=AUTHOR)
        if change := given.change():
            remedy = f"it should work on region.copy() and on copies of weights; load the model anew: {AUTHOR}"
            raise LoweringError(f"backend {self._name} {change}", where=region.name, remedy=remedy)
        return result

    def check_artifact(self, region: Region, artifact: PreprocessResult) -> None:
        """Raise an exception if a cached artifact of a region is impossible."""
        self._part.check_artifact(region, artifact)


def rules_of(part: type[Backend]) -> dict[str, Rule]:
    """Return the accepted values of those options of an AOT part whose model states plain ones; for loads."""
    try:
        schema = part.Options.model_json_schema()
    except PydanticInvalidForJsonSchema:  # a type of its own
        return {}
    found = {name: Rule.of_schema(of_option) for name, of_option in schema.get("properties", {}).items()}
    return {name: rule for name, rule in found.items() if rule is not None}


def _names_it(name: str, where: str) -> bool:
    """Return true if a place names a partition already: "gpu_1", and not "gpu_10"."""
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", where) is not None


def _names(operators: Iterable[str]) -> frozenset[str]:
    if isinstance(operators, str) or not all(isinstance(op, str) for op in operators):
        raise TypeError("preserve_ops should be a set of names of operators")
    return frozenset(operators)
