"""Whole programs that outlast the process: what lowering made of exported programs, on disk.

An entry holds a program but for the blobs of its delegates, which lie in entries of their own (`partitioner/kept.py`);
it names these, with their checksums.
"""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from torch.export import ExportedProgram

from delegate.backends.guarded import GuardedBackend
from delegate.backends.isolated import IsolatedBackend
from delegate.backends.keys import plain
from delegate.backends.unasked import UnaskedBackend
from delegate.cache.environment import code_of, host_features, versions_of
from delegate.cache.store import Entry
from delegate.config import Placing
from delegate.edge.keys import NoKey, exported_key
from delegate.errors import DelegateError
from delegate.partitioner.cut import LoweredProgram
from delegate.partitioner.kept import KeptArtifacts
from delegate.partitioner.partitioner import CapabilityPartitioner
from delegate.partitioner.saved import SavedPlan
from delegate.placement.lock import Lock
from delegate.plain_data import count, text, texts
from delegate.program.decode import decode
from delegate.program.encode import encode
from delegate.program.model import Program
from delegate.program.segments import Directory, flat
from delegate.program.verifier import verify
from delegate.registry import Registry
from delegate.report import Report
from delegate.selection import Selection

logger = logging.getLogger(__name__)

FORMAT = 1  # of what an entry holds
_MAY_FAIL = (GuardedBackend, UnaskedBackend)  # their faults are no errors


class Made(NamedTuple):
    """What lowering makes.

    Args:
        program: with its report.
        plan: where its nodes run.
        told: what it warned of, for the user to hear again.
    """

    program: Program
    plan: SavedPlan
    told: tuple[str, ...]

    def measured_earlier(self, report: Report) -> Made:
        """The same, whose report says that what was measured is known from earlier."""
        placements = tuple(replace(p, spent=0.0) for p in report.placements)
        said = replace(report, placements=placements)
        return self._replace(program=self.program._replace(report=said.to_json()))


class KeptPrograms:
    """Programs by all that they depend on.

    Args:
        artifacts: what backends made of partitions, and the store of both.
        selection: the backends, with all that was said of how they are used.
        registry: whose kernel libraries count.
    """

    def __init__(self, artifacts: KeptArtifacts, selection: Selection, registry: Registry) -> None:
        self._artifacts, self._selection, self._registry = artifacts, selection, registry

    def key(
        self,
        exported: Mapping[str, ExportedProgram],
        plan: SavedPlan | None,
        lock: Lock | None = None,
        placing: Placing | None = None,
    ) -> str | None:
        """What the program is kept under; None where something takes part whose result may differ another time.

        Such are partitioners and kernels of the caller's own, operators of others, backends that keep nothing or run in
        processes of their own, quantization, and bounds on accuracy.

        Args:
            exported: the methods.
            plan, lock: that are kept.
            placing: how places were measured here on the methods' example inputs; None where they were not.
        """
        if lock is not None and lock.quantization is not None:
            return None
        locked = None if lock is None else lock.to_yaml()
        places = None if plan is None else plan.to_json()
        try:
            measured = None if placing is None else _measured(placing, exported)
            parts = (FORMAT, self._request(), exported_key(exported), places, locked, measured)
        except NoKey:
            return None
        return hashlib.sha256(repr(parts).encode(errors="surrogatepass")).hexdigest()

    def find(self, key: str) -> Made | None:
        """What is kept under a key, if all of it is still there."""
        made = self._artifacts.store.read(key, self._made)
        if made is not None:
            logger.info("the program is taken from the compile cache")
        return made

    def _made(self, entry: Entry) -> Made:
        """The program of an entry; raises an error if any of it is missing or makes no sense."""
        tables, *own = entry.parts
        program, _ = decode(tables)
        places = entry.about["segments"]
        program = program._replace(segments=tuple(self._segments(places, iter(own))))
        for spec in program.delegates:
            made = self._artifacts.store.get(places[spec.segment][0])
            if made is None or dict(spec.compile_specs) != made.about["compile_specs"]:
                raise ValueError(f"the specs of {spec.name} are not those of its artifact")
        verify(program)
        Report.from_json(program.report)
        return Made(program, SavedPlan.from_json(text(entry.about, "plan")), texts(entry.about, "told"))

    def keep(self, key: str, made: Made, lowered: Sequence[LoweredProgram]) -> None:
        """Have this found under a key, where all of its delegates' blobs are kept and no backend has failed."""
        if any(isinstance(b, _MAY_FAIL) and b.has_failed for b in self._selection.backends.values()):
            return
        program = made.program
        results = {name: d.result for part in lowered for name, d in part.delegates.items()}
        segments: list[Any] = [None] * len(program.segments)
        for spec in program.delegates:
            place = self._artifacts.place_of(results[spec.name])
            if place is None:
                return
            for number, segment in enumerate((spec.segment, *spec.data)):
                segments[segment] = [place.key, number, place.digests[number]]
        own = [flat(s) for s, place in zip(program.segments, segments, strict=True) if place is None]
        try:
            tables = encode(program, Directory())
        except DelegateError:  # no file can hold it
            return
        about = {"segments": segments, "plan": made.plan.to_json(), "told": made.told}
        self._artifacts.store.put(key, about, [tables, *own])

    def _segments(self, places: Sequence[Any], own: Any) -> list[memoryview]:
        """The bulk bytes of a program, its own and those of artifacts; raises LookupError where one is not there."""
        keys = {place[0] for place in places if place is not None}
        entries = {key: self._artifacts.store.get(key) for key in keys}
        found = []
        for place in places:
            if place is None:
                found.append(next(own))
                continue
            key, number, digest = place
            count({"part": number}, "part")
            entry = entries[key]
            if entry is None or entry.digests[number] != digest:
                raise LookupError(key)
            found.append(entry.parts[number])
        return found

    def _request(self) -> tuple[Any, ...]:
        """All but the model: backends and what they depend on, rules, policies, kernels, this version, torch."""
        chosen = self._selection
        if chosen.quantization is not None or chosen.verify is not None:
            raise NoKey
        if any(isinstance(backend, IsolatedBackend) for backend in chosen.backends.values()):
            raise NoKey
        backends = []
        for partitioner in chosen.partitioners:
            identity = self._artifacts.identity(partitioner.backend)
            if identity is None or type(partitioner) is not CapabilityPartitioner:
                raise NoKey
            backends.append((partitioner.backend, identity))
        kernels = self._registry.kernels.identity(chosen.kernels)
        if kernels is None:
            raise NoKey
        asked = (repr(chosen.rules), chosen.on_portable, chosen.notes, plain(chosen.fallback), chosen.keeps)
        ours = (sys.version, code_of("delegate"), versions_of("delegate"), host_features())
        return (backends, asked, kernels, ours, _torch())


def _measured(placing: Placing, exported: Mapping[str, ExportedProgram]) -> tuple[Any, ...]:
    """What a choice by measuring depends on beside the request; raises NoKey where results have a say in it."""
    if placing.accuracy is not None:
        raise NoKey
    leaves = [
        (leaf.dtype, leaf.shape) if isinstance(leaf, torch.Tensor) else leaf
        for ep in exported.values()
        for leaf in pytree.tree_leaves(ep.example_inputs)
    ]
    return (repr(placing), repr(leaves))


def _torch() -> tuple[str, ...]:
    """Settings of torch that change what it decomposes and computes."""
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
