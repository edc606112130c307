"""The lockfile: the backend of each node of a program and the measured costs, as YAML for readable diffs."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml
from torch.export import ExportedProgram

from delegate.common.field_checks import build, fault, mapping, plain_json, require_format
from delegate.common.files import read_text, write_text
from delegate.config.source import parse
from delegate.edge.graphs import describe_graph
from delegate.errors import ConfigError, PartitionError
from delegate.partitioner.plan import Plan
from delegate.partitioner.saved import SavedPlan
from delegate.report.measured import UNITS, Placement

FORMAT = 1
_MOST_BYTES = 2**22  # about ten thousand nodes, which take about ten seconds to read
AGAIN = "measure again, and lock that: `delegate lower --measure --lock FILE`"


@dataclass(frozen=True, slots=True)
class Lock:
    """The content of a lockfile.

    Args:
        model: method -> fingerprint of its structure: operators, sizes and dtypes, without weight values.
        machine: description of the machine that measured.
        versions: Library name -> its version.
        plan: the backend of each node.
        options: Backend name -> its options of `delegate.load`.
        quantization: method -> the configuration section of its quantization, for the quantized candidates.
        configured: the section `quantization` of the configuration, with rules for the layers that bounds keep in
            float; None if it has none, or measurements choose the scheme.
        measured: method -> its measurements.
        where: the origin of the lock, for messages.
    """

    model: Mapping[str, str]
    machine: str
    versions: Mapping[str, str]
    plan: SavedPlan
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    quantization: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    configured: Mapping[str, Any] | None = None
    measured: Mapping[str, Placement] = field(default_factory=dict)
    where: str = field(default="the program", compare=False)

    def to_yaml(self) -> str:
        """Return YAML with sorted keys and one item per line, so equal locks have the same text."""
        data = {name: getattr(self, name) for name in _keys()}
        data |= {"format": FORMAT, "plan": json.loads(self.plan.to_json())}
        return yaml.safe_dump(plain_json(data), sort_keys=True, allow_unicode=True, width=math.inf)

    @classmethod
    def from_yaml(cls, text: str, where: str = "") -> Lock:
        """Return the lock of a YAML text; raises PartitionError for other text. `where` is for the message."""
        try:
            data = mapping({"a lock": parse(text, where).data}, "a lock")
            return replace(cls.from_data(data), where=where)
        except ConfigError as error:
            what = f"the lockfile cannot be read, {error.what}"
            raise PartitionError(what, where=error.where, remedy=error.remedy or AGAIN) from error
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            what = f"the lockfile cannot be read, {fault(error)}"
            raise PartitionError(what, where=where, remedy=AGAIN) from error

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Lock:
        """Return the lock of parsed data; raises KeyError, TypeError or ValueError for other data."""
        require_format(data, FORMAT)
        if unknown := sorted(data.keys() - {"format", *_keys()}):
            raise ValueError(f"{unknown[0]!r} is not a key of a lock")
        lock = build(cls, data)
        for name, placement in lock.measured.items():
            if name != placement.method or name not in lock.model:
                raise ValueError(f"the measurement {name!r} is of an unknown method, or of another one")
        if unknown := sorted(lock.quantization.keys() - lock.model.keys()):
            raise ValueError(f"the quantization of {unknown[0]!r} is of an unknown method")
        return lock

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file; raises PartitionError if it cannot be written.

        Other people read lockfiles, so absolute paths of calibration data become relative to the folder of the file;
        data elsewhere has its name alone.
        """
        folder = Path(path).absolute().parent
        quantization = {name: _with_short_paths(section, folder) for name, section in self.quantization.items()}
        configured = None if self.configured is None else _with_short_paths(self.configured, folder)
        lock = replace(self, quantization=quantization, configured=configured)
        write_text(path, lock.to_yaml(), "the lockfile")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Lock:
        """Read a file; raises PartitionError if it has no lock."""
        return cls.from_yaml(read_text(path, "the lockfile", AGAIN, _MOST_BYTES), str(path))

    def require_model(self, exported: Mapping[str, ExportedProgram]) -> None:
        """Raise PartitionError if it is the lock of another model. Other weights are allowed."""
        fingerprints = fingerprint_methods(exported)
        for name in sorted({*self.model, *fingerprints}):
            if self.model.get(name) != fingerprints.get(name):
                both = name in self.model and name in fingerprints
                what = f"method {name!r} differs" if both else f"only one of them has a method {name!r}"
                raise PartitionError(f"the lock is of another model: {what}", where=self.where, remedy=AGAIN)

    def require_backends(self, backends: Collection[str]) -> None:
        """Raise PartitionError if a backend of the lock is not among these, or has options but no node."""
        for name in sorted(self.options.keys() - {*self.plan.backends}):
            what = f"the lock has options of {name!r}, but runs no node on it"
            raise PartitionError(what, where=self.where, remedy=f"remove them, or {AGAIN}")
        for name in self.plan.backends:
            if name not in backends:
                what = f"the lock runs nodes on {name!r}, which is not among the backends"
                raise PartitionError(what, where=self.where, remedy=f"name it too, or {AGAIN}")

    def require_applied(self, plans: Sequence[Plan]) -> None:
        """Raise PartitionError if the plans move a node of the lock, or split a partition."""
        self.plan.require_applied(plans, self.where, AGAIN)
        partition_of = {(p.graph, node): p.name for p in SavedPlan.of(plans).partitions for node in p.nodes}
        for partition in self.plan.partitions:
            parts = {partition_of[partition.graph, node] for node in partition.nodes}
            if len(parts) > 1:
                what = f"partition {partition.name!r} of {partition.graph} would be split into {len(parts)} partitions"
                what = f"the lock cannot be applied: {what}, because nodes between its nodes run elsewhere"
                raise PartitionError(what, where=self.where, remedy=AGAIN)

    def notes(self, here: Lock) -> tuple[str, ...]:
        """Return the differences between the machine of the measurement and this one, for the report."""
        other = list(_changes("", self.versions, here.versions))
        notes = [f"locked: measured with other versions: {'; '.join(other)}"] if other else []
        if self.machine != here.machine:
            notes.append(f"locked: measured on another machine: {self.machine}")
        return tuple(notes)

    def differences(self, other: Lock) -> Iterator[str]:
        """Yield the differences to another lock, one line each: the model, moved nodes, costs."""
        for name in sorted({*self.model, *other.model}):
            if self.model.get(name) != other.model.get(name):
                yield f"method {name}: another model"
        if self.machine != other.machine:
            yield f"machine: {self.machine} -> {other.machine}"
        yield from _changes("version of ", self.versions, other.versions)
        yield from _changes("options of ", self.options, other.options)
        for ours, theirs in ((self.quantization, other.quantization), (self.configured, other.configured)):
            if ours != theirs:
                yield f"quantization: {ours} -> {theirs}"
        moved = self.plan.differences(other.plan)
        yield from moved
        if not moved:
            return
        for name in sorted(self.measured.keys() & other.measured.keys()):
            yield from _costs(self.measured[name], other.measured[name])


def _keys() -> list[str]:
    """Return the keys of a lockfile besides its format."""
    return [key.name for key in fields(Lock) if key.compare]


def _with_short_paths(section: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """Return a section `quantization` without the folders above a folder in the paths of its calibration data."""

    def short(source: str) -> str:
        path = Path(source)
        if not path.is_absolute():
            return source
        return str(path.relative_to(folder)) if path.is_relative_to(folder) else path.name

    return {**section, "calibration": map_sources(short, section.get("calibration"))}


def map_sources(change: Callable[[str], str], data: Any) -> Any:
    """Return the sources of calibration data, changed: one, one for each method, or None."""
    if isinstance(data, Mapping):
        return {name: change(source) for name, source in data.items()}
    return change(data) if isinstance(data, str) else data


def fingerprint_methods(exported: Mapping[str, ExportedProgram]) -> dict[str, str]:
    """Return a digest of each method's structure: nodes, sizes and dtypes, also in control flow."""
    return {name: hashlib.sha256(describe_graph(ep.graph_module)).hexdigest()[:16] for name, ep in exported.items()}


def _changes(what: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted({*ours, *theirs}):
        if ours.get(name) != theirs.get(name):
            yield f"{what}{name}: {ours.get(name, 'none')} -> {theirs.get(name, 'none')}"


def _costs(ours: Placement, theirs: Placement) -> Iterator[str]:
    """Yield the cost of a method."""
    first, second = (next((p.cost for p in one.plans if p.name == one.chosen), None) for one in (ours, theirs))
    if first and second and ours.objective == theirs.objective:
        unit = UNITS[ours.objective]
        by = f"{second / first:.3f} times the {ours.objective} in {unit}, as measured by each lockfile"
        yield f"{ours.method}: {ours.chosen} -> {theirs.chosen}: {by}"
