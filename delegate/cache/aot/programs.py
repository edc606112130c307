"""A cache on disk of the programs that lowering makes of exported programs.

An entry holds a program without the blobs of its delegates. It names the entries of these blobs and their checksums;
see `cache/aot/artifacts.py`.
"""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

import torch

from delegate.accuracy.bounds import Verify
from delegate.backend.aot import plain
from delegate.backend.selected import SelectedBackend
from delegate.cache.aot.artifacts import ArtifactCache
from delegate.cache.runtime.environment import code_of, host_features, versions_of
from delegate.cache.runtime.store import Entry
from delegate.common.field_checks import count, text, texts
from delegate.edge.exported import warn_of_training
from delegate.edge.keys import NotCacheable, key_of_exported
from delegate.errors import DelegateError
from delegate.events import stage
from delegate.partitioner.extraction import LoweredProgram
from delegate.partitioner.partitioner import CapabilityPartitioner, Partitioner
from delegate.partitioner.saved import SavedPlan
from delegate.placement.strategy import Strategy
from delegate.program.decode import decode, decode_debug_info
from delegate.program.encode import encode, encode_debug_info
from delegate.program.instructions import DebugInfo
from delegate.program.model import Program
from delegate.program.segments import Directory, flat
from delegate.program.verifier import verify
from delegate.report import Report
from delegate.request import LoweringRequest

logger = logging.getLogger(__name__)

FORMAT = 2  # of an entry


class CompilationResult(NamedTuple):
    """The result of lowering.

    Args:
        program: the program, with its report.
        report: the report, with this lowering's measurements.
        plan: the backend of each node.
        warnings: the warnings of lowering, which every use of a cached result repeats.
        repetition: the strategy that places the nodes as in this program.
        lowered: the methods with their artifacts; empty for a cached result.
        is_cacheable: False if another lowering of this request may have another result.
    """

    program: Program
    report: Report
    plan: SavedPlan
    warnings: tuple[str, ...]
    repetition: Strategy
    lowered: Sequence[LoweredProgram] = ()
    is_cacheable: bool = True


def get_or_lower(
    request: LoweringRequest, artifacts: ArtifactCache | None, lower: Callable[[], CompilationResult]
) -> CompilationResult:
    """Return the cached result of a request; without one, lower it, and store the result if it is cacheable.

    Args:
        request: the request.
        artifacts: the cache of artifacts, and the store of both; None if caches are off.
        lower: lowers the request.
    """
    key = None if artifacts is None else request_key(request, artifacts)
    if artifacts is None or key is None:
        return lower()
    programs = ProgramCache(artifacts)
    cached = programs.get(key)
    if cached is not None:
        logger.info("the program is taken from the compile cache")
        with stage("program from the cache"):
            for name, ep in request.sources.items():
                warn_of_training(ep.graph, name)
        return cached
    result = lower()
    if result.is_cacheable and not any(backend.has_failed for backend in request.selection.backends.values()):
        programs.put(key, result)
    return result


class ProgramCache:
    """The cache of programs on disk.

    Args:
        artifacts: the cache of artifacts, and the store of both.
    """

    def __init__(self, artifacts: ArtifactCache) -> None:
        self._artifacts = artifacts

    def get(self, key: str) -> CompilationResult | None:
        """Return the result of a key; None if any part of it is missing."""
        return self._artifacts.store.read(key, self._decode)

    def _decode(self, entry: Entry) -> CompilationResult:
        """Decode an entry; raises an error if any part of it is missing or invalid."""
        tables, debug_info, *own = entry.parts
        program = decode_debug_info(debug_info).add_to(decode(tables)[0])
        places = entry.about["segments"]
        program = program._replace(segments=tuple(self._segments(places, iter(own))))
        for spec in program.delegates:
            artifact = self._artifacts.store.get(places[spec.segment][0])
            if artifact is None or dict(spec.compile_specs) != artifact.about["compile_specs"]:
                raise ValueError(f"the specs of {spec.name} are not those of its artifact")
        verify(program)
        plan = SavedPlan.from_json(text(entry.about, "plan"))
        report, warnings = Report.from_json(program.report), texts(entry.about, "warnings")
        return CompilationResult(program, report, plan, warnings, Strategy(plan))

    def put(self, key: str, result: CompilationResult) -> None:
        """Store a result, if all its artifacts are cached."""
        # A later lowering spends no time on measurements that it takes from here.
        report = replace(result.report, placements=tuple(replace(p, spent=0.0) for p in result.report.placements))
        program = result.program._replace(report=report.to_json())
        results = {name: d.result for part in result.lowered for name, d in part.delegates.items()}
        segments: list[Any] = [None] * len(program.segments)
        for spec in program.delegates:
            location = self._artifacts.location_of(results[spec.name])
            if location is None:
                return
            for number, segment in enumerate((spec.segment, *spec.data)):
                segments[segment] = [location.key, number, location.digests[number]]
        own = [flat(s) for s, location in zip(program.segments, segments, strict=True) if location is None]
        try:
            parts = encode(program, Directory()), encode_debug_info(DebugInfo.of(program))
        except DelegateError:  # no file can hold it
            return
        about = {"segments": segments, "plan": result.plan.to_json(), "warnings": result.warnings}
        self._artifacts.store.put(key, about, [*parts, *own])

    def _segments(self, places: Sequence[Any], own: Any) -> list[memoryview]:
        """Return the segments of a program and of its artifacts; raises LookupError if one is missing."""
        keys = {location[0] for location in places if location is not None}
        entries = {key: self._artifacts.store.get(key) for key in keys}
        segments = []
        for location in places:
            if location is None:
                segments.append(next(own))
                continue
            key, number, digest = location
            count({"part": number}, "part")
            entry = entries[key]
            if entry is None or entry.digests[number] != digest:
                raise LookupError(key)
            segments.append(entry.parts[number])
        return segments


def request_key(request: LoweringRequest, artifacts: ArtifactCache) -> str | None:
    """Return the key of the program of a request; None if lowering it again may have another result.

    That holds for custom partitioners, kernels and operators, for backends that are not cached or run in separate
    processes, and for quantization and accuracy checks. The key has every field of the request and of its selection,
    by value. The exceptions are listed here, so a new field counts unless somebody writes down why it does not.
    """

    def backend_identities(backends: Mapping[str, SelectedBackend]) -> Any:
        identities = {name: artifacts.identity(name) for name in backends}
        if None in identities.values() or any(backend.is_isolated for backend in backends.values()):
            raise NotCacheable
        return tuple(identities.items())  # their order is the order of preference

    def kernel_identity(kernels: Any) -> Any:
        identity = request.registry.kernels.identity(kernels)
        if identity is None:
            raise NotCacheable
        return identity

    def strategy_key(strategy: Strategy) -> Any:
        if not strategy.is_cacheable:
            raise NotCacheable
        return strategy.cache_key(request.sources)

    def selection_key(selection: Any) -> Any:
        special = {
            "partitioners": _partitioner_key,
            "backends": backend_identities,
            "kernels": kernel_identity,
            "quantization": _require_none,
            "verify": _require_none,
            "cache": None,  # where programs are stored does not change them
        }
        return field_keys(selection, special)

    special = {
        "sources": key_of_exported,
        "check": _require_no_check,
        "strategy": strategy_key,
        "selection": selection_key,
        "registry": None,  # its backends and kernel libraries are in the key of the selection
        "cache": None,
        "progress": None,
        "decomposed": None,  # follows from the model
    }
    versions = (sys.version, code_of("delegate"), versions_of("delegate"), host_features())
    try:
        parts = (FORMAT, field_keys(request, special), versions, _torch_settings())
    except NotCacheable:
        return None
    return hashlib.sha256(repr(parts).encode(errors="surrogatepass")).hexdigest()


def field_keys(record: Any, special: Mapping[str, Callable[[Any], Any] | None]) -> tuple[Any, ...]:
    """Return the name and the value of each field of a dataclass.

    Args:
        record: the dataclass.
        special: field -> what returns its part of the key; None for fields that do not count.
    """
    readers = {field.name: special.get(field.name, plain) for field in fields(record)}
    return tuple((name, read(getattr(record, name))) for name, read in readers.items() if read is not None)


def _partitioner_key(partitioners: Sequence[Partitioner]) -> Any:
    if any(type(partitioner) is not CapabilityPartitioner for partitioner in partitioners):
        raise NotCacheable
    return plain([vars(partitioner) for partitioner in partitioners])


def _require_none(section: object) -> None:
    if section is not None:
        raise NotCacheable


def _require_no_check(check: Verify) -> None:
    if any(getattr(check, field.name) is not field.default for field in fields(check)):
        raise NotCacheable


def _torch_settings() -> tuple[str, ...]:
    """Return the settings of torch that change its decompositions and results."""
    return tuple(
        map(
            str,
            (
                torch.get_default_dtype(),
                torch.get_default_device(),
                torch.get_float32_matmul_precision(),
                torch.are_deterministic_algorithms_enabled(),
                torch.is_autocast_enabled("cpu"),
                torch.is_inference_mode_enabled(),
            ),
        )
    )
