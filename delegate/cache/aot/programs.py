"""A cache on disk of the programs that lowering makes of exported programs.

An entry holds a program without the blobs of its delegates. It names the entries of these blobs and their checksums;
see `cache/aot/artifacts.py`.
"""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch.export import ExportedProgram

from delegate.backends.aot import plain
from delegate.cache.aot.artifacts import ArtifactCache
from delegate.cache.runtime.environment import code_of, host_features, versions_of
from delegate.cache.runtime.store import Entry
from delegate.edge.keys import NotCacheable, exported_key
from delegate.errors import DelegateError
from delegate.field_checks import count, text, texts
from delegate.partitioner.extraction import LoweredProgram
from delegate.partitioner.partitioner import CapabilityPartitioner
from delegate.partitioner.saved import SavedPlan
from delegate.program.debug_info import DebugInfo
from delegate.program.decode import decode, decode_debug_info
from delegate.program.encode import encode, encode_debug_info
from delegate.program.model import Program
from delegate.program.segments import Directory, flat
from delegate.program.verifier import verify
from delegate.registry import Registry
from delegate.report import Report
from delegate.selection import Selection

logger = logging.getLogger(__name__)

FORMAT = 2  # of an entry


class CompilationResult(NamedTuple):
    """The result of lowering.

    Args:
        program: the program, with its report.
        plan: the backend of each node.
        warnings: the warnings of lowering, which every use of the entry repeats.
    """

    program: Program
    plan: SavedPlan
    warnings: tuple[str, ...]

    def as_cached(self, report: Report) -> CompilationResult:
        """Return the result for the cache: its report marks measured placements as earlier ones."""
        placements = tuple(replace(p, spent=0.0) for p in report.placements)
        cached_report = replace(report, placements=placements)
        return self._replace(program=self.program._replace(report=cached_report.to_json()))


class ProgramCache:
    """A cache of programs, keyed by everything that they depend on.

    Args:
        artifacts: the cache of artifacts, and the store of both.
        selection: the backends, with the settings of the request.
        registry: the registry of kernel libraries.
    """

    def __init__(self, artifacts: ArtifactCache, selection: Selection, registry: Registry) -> None:
        self._artifacts, self._selection, self._registry = artifacts, selection, registry

    def key(
        self, exported: Mapping[str, ExportedProgram], strategy_key: Callable[[Mapping[str, ExportedProgram]], Hashable]
    ) -> str | None:
        """Return the key of a program; None if its lowering may have another result the next time.

        That holds for custom partitioners, kernels and operators, and for backends that are not cached or run in
        separate processes. It also holds for quantization and for bounds on accuracy.

        Args:
            exported: the methods.
            strategy_key: returns the dependencies on the placement strategy; raises NotCacheable if there are others.
        """
        try:
            parts = (FORMAT, self._request(), exported_key(exported), strategy_key(exported))
        except NotCacheable:
            return None
        return hashlib.sha256(repr(parts).encode(errors="surrogatepass")).hexdigest()

    def get(self, key: str) -> CompilationResult | None:
        """Return the result of a key; None if any part of it is missing."""
        result = self._artifacts.store.read(key, self._decode)
        if result is not None:
            logger.info("the program is taken from the compile cache")
        return result

    def _decode(self, entry: Entry) -> CompilationResult:
        """Decode an entry; raises an error if any part of it is missing or invalid."""
        tables, debug_info, *own = entry.parts
        program = decode_debug_info(debug_info).added_to(decode(tables)[0])
        places = entry.about["segments"]
        program = program._replace(segments=tuple(self._segments(places, iter(own))))
        for spec in program.delegates:
            artifact = self._artifacts.store.get(places[spec.segment][0])
            if artifact is None or dict(spec.compile_specs) != artifact.about["compile_specs"]:
                raise ValueError(f"the specs of {spec.name} are not those of its artifact")
        verify(program)
        Report.from_json(program.report)
        return CompilationResult(
            program, SavedPlan.from_json(text(entry.about, "plan")), texts(entry.about, "warnings")
        )

    def put(self, key: str, result: CompilationResult, lowered: Sequence[LoweredProgram]) -> None:
        """Store a result under a key, if all its artifacts are cached and no backend has failed."""
        if any(b.has_failed for b in self._selection.backends.values()):
            return
        program = result.program
        results = {name: d.result for part in lowered for name, d in part.delegates.items()}
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
        """Return the segments of a program, its own and those of artifacts; raises LookupError if one is missing."""
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

    def _request(self) -> tuple[Any, ...]:
        """Return all parts of the key but the model: backends, rules, policies, kernels, versions, torch's settings."""
        selection = self._selection
        if selection.quantization is not None or selection.verify is not None:
            raise NotCacheable
        if any(backend.is_isolated for backend in selection.backends.values()):
            raise NotCacheable
        backends = []
        for partitioner in selection.partitioners:
            identity = self._artifacts.identity(partitioner.backend)
            if identity is None or type(partitioner) is not CapabilityPartitioner:
                raise NotCacheable
            backends.append((partitioner.backend, identity))
        kernels = self._registry.kernels.identity(selection.kernels)
        if kernels is None:
            raise NotCacheable
        settings = (
            repr(selection.rules),
            selection.on_portable,
            selection.notes,
            plain(selection.fallback),
            selection.keeps,
        )
        versions = (sys.version, code_of("delegate"), versions_of("delegate"), host_features())
        return (backends, settings, kernels, versions, _torch())


def _torch() -> tuple[str, ...]:
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
