"""The report: the backend of each node, and the verdicts of the others. Plain data, as text and JSON, without torch."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from delegate.common.field_checks import Amount, build, fault, plain_json, require_format
from delegate.common.files import with_short_paths
from delegate.common.text_table import Table
from delegate.errors import ProgramError
from delegate.plugins import PORTABLE
from delegate.report.measured import Placement
from delegate.report.rows import (
    LayerAccuracy,
    MethodAccuracy,
    NodeReport,
    PartitionReport,
    by_method,
    decibels,
)
from delegate.verdict import Reason

if TYPE_CHECKING:
    from delegate.runtime.profile import Profile

_FORMAT = 1  # of the JSON

_SMALL = 0.01  # partitions with a smaller share of the operations have one common row if there are several
_LONGEST = 300  # characters of a refusal, which may hold sizes that are long expressions
_NAMED = 2  # nodes of a group that are listed with their source line
_VERIFY = "give your own data: to_backend(..., verify=inputs), or `delegate lower --verify FILE`"


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """The backends of all nodes of a program.

    Args:
        methods: names of the methods, in order.
        nodes: All methods' nodes, in the order of their graphs.
        partitions: All methods' partitions, in execution order.
        notes: Notes for people, e.g. patterns of the configuration that matched nothing.
        accuracy: The accuracy of whole methods on the inputs of `verify`.
        placements: the measured placements of methods.
        portable_shares: method -> the share of portable kernels in the time of its instructions, 0 to 1, in its last
            profile; only of profiled methods.
        layers: the errors of quantized layers in the order of the program; only of verified methods.
        estimates: method -> way -> the estimated seconds of a call, the chosen way first; only of methods that are
            placed by estimates. A way is a backend with kernels for the rest, "portable", or "mixed".
        fingerprints: method -> name of a weight, buffer or constant -> its checksum, dtype and shape; "" -> the
            checksum of the graph. Only of compiled programs.
        memory: the memory of a compiled program's methods, each a `MemoryPicture`. It follows from the program, so the
            JSON does not have it.
    """

    methods: tuple[str, ...] = ()
    nodes: tuple[NodeReport, ...] = ()
    partitions: tuple[PartitionReport, ...] = ()
    notes: tuple[str, ...] = ()
    accuracy: tuple[MethodAccuracy, ...] = ()
    placements: tuple[Placement, ...] = ()
    portable_shares: Mapping[str, Amount] = field(default_factory=dict)
    layers: tuple[LayerAccuracy, ...] = ()
    estimates: Mapping[str, Mapping[str, Amount]] = field(default_factory=dict)
    fingerprints: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    memory: tuple[Any, ...] = field(default=(), compare=False)

    @property
    def summary(self) -> str:
        """One line per method: partitions and operations by backend, and the portable nodes with their time."""
        return "\n".join(self.summaries().values())

    def summaries(self) -> dict[str, str]:
        """Return method -> its line of the summary."""
        nodes, partitions = by_method(self.nodes), by_method(self.partitions)
        return {name: self._summary(name, nodes.get(name, ()), partitions.get(name, ())) for name in self.methods}

    def __repr__(self) -> str:
        return f"<Report of {self.summary.replace(chr(10), ' | ')}>"

    def to_json(self) -> str:
        """Return the report as JSON, with the methods that were not verified; equal reports give equal texts."""
        data = {f.name: getattr(self, f.name) for f in fields(self) if f.compare}
        data["unverified"] = self.unverified
        plain = {"format": _FORMAT, **plain_json(data)}
        # Messages of libraries may name files of this machine, and others read the report.
        return with_short_paths(json.dumps(plain, separators=(",", ":"), ensure_ascii=False, allow_nan=False))

    def save_html(
        self,
        path: str | os.PathLike[str],
        name: str = "model",
        profile: Profile | None = None,
        diagnosis: Any = None,
    ) -> None:
        """Write the report as one HTML page that needs no server and no network; see docs/how-to/report.md.

        Args:
            path: Where the file is written.
            name: The model's name, for people.
            profile: the times of a `with program.profile()` block.
            diagnosis: the result of `program.debug(exported, inputs)`.

        Raises:
            DelegateError: the file cannot be written. An old file of that name is then unchanged.
        """
        from delegate.report.page import page, write  # most reports are not drawn

        write(page([self.page_data(name, profile, diagnosis)]), path)

    def page_data(self, name: str, profile: Profile | None = None, diagnosis: Any = None) -> dict[str, Any]:
        """Return the data of the report's page; it takes the arguments of `save_html`."""
        from delegate.report.page.data import report_data

        timings = profile.to_json() if profile else []
        found = None if diagnosis is None else json.loads(diagnosis.to_json())
        lines = [*self.summaries().values(), *self.evidence_lines()]
        return report_data(json.loads(self.to_json()), name, lines, self.memory, timings, found)

    def _repr_html_(self) -> str:
        """Return the page in a frame, for notebooks."""
        from delegate.report.page import frame, page

        return frame(page([self.page_data("model")]))

    @classmethod
    def from_json(cls, text: str, where: str = "") -> Report:
        """Return the report of a JSON text, from the file `where`.

        Raises:
            ProgramError: the text is not a report. Or it is empty, as in a program without debug info.
        """
        if not text:
            what = "the report cannot be read: the program has no debug info"
            remedy = "lower the model again, or use the file before `delegate strip`"
            raise ProgramError(what, where=where, remedy=remedy)
        try:
            data = json.loads(text)
            require_format(data, _FORMAT)
            report = build(cls, data)
            if twice := [name for name, count in Counter(report.methods).items() if count > 1]:
                raise ValueError(f"two methods have the name {twice[0]!r}")
            return report
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            remedy = "lower the model again"
            raise ProgramError(f"the report cannot be read, {fault(error)}", where=where, remedy=remedy) from error

    @property
    def unverified(self) -> tuple[str, ...]:
        """The methods whose results were never compared with torch's."""
        verified = {m.method for m in self.accuracy}
        return tuple(name for name in self.methods if name not in verified)

    def evidence_lines(self) -> list[str]:
        """Return a line per method whose accuracy is unknown, or known from weak evidence only."""
        if self.methods and not self.accuracy:
            return [f"not verified: no result was compared with torch; {_VERIFY}"]
        weaknesses = {m.method: m.inputs.weakness for m in self.accuracy if m.figures is not None}
        weak = [f"{name}: weak evidence, because {why}; {_VERIFY}" for name, why in weaknesses.items() if why]
        return weak + [f"{name}: not verified, no inputs were given for it" for name in self.unverified]

    def accuracy_lines(self) -> list[str]:
        """Return the figures of each method, of its layers and partitions, and the evidence; see `evidence_lines`."""
        lines = [*map(str, self.accuracy), *self.evidence_lines()]
        layers = by_method(self.layers)
        lines += [_layer_line(name, layers[name]) for name in self.methods if name in layers]
        verified = {m.method for m in self.accuracy}
        measured = [p for p in self.partitions if p.method in verified]
        return lines + [f"  {p.name}: {p.accuracy or 'not reached by the inputs'}" for p in measured]

    def placement_blocks(self) -> list[str | Table]:
        """Return the lines and tables on measured placements."""
        return [block for placement in self.placements for block in placement.blocks()]

    def __str__(self) -> str:
        return "\n".join(map(str, self.blocks()))

    def blocks(self) -> list[str | Table]:
        """Return the lines and tables of the text; an empty line separates its sections."""
        partitions: list[str | Table] = [*_copies(self.partitions)]
        if self.partitions:
            partitions.insert(0, _table(self.partitions))
        sections: list[Sequence[str | Table]] = [[self.summary], partitions, self.accuracy_lines()]
        nodes = by_method(self.nodes)
        sections += [self.placement_blocks(), *(_not_delegated(m, nodes.get(m, ())) for m in self.methods)]
        sections.append([f"note: {note}" for note in self.notes])
        return [block for section in sections if section for block in ("", *section)][1:]

    def nodes_table(self) -> Table:
        """Return a row for each node: its partition, or "portable", and the preferred backends that reject it."""
        header = ("node", "operator", "result", "runs on", "rejected by")
        rows = [(n.name, n.op, n.result, n.partition or n.backend, _rejections(n)) for n in self.nodes]
        if len(self.methods) == 1:
            return Table(header, tuple(rows))
        return Table(("method", *header), tuple((n.method, *row) for n, row in zip(self.nodes, rows, strict=True)))

    def _summary(self, method: str, nodes: Sequence[NodeReport], partitions: Sequence[PartitionReport]) -> str:
        counts, work = Counter(p.backend for p in partitions), dict[str, float]()
        for p in partitions:
            work[p.backend] = work.get(p.backend, 0.0) + p.work
        shares = [
            f"{_count(count, 'partition')} on {backend}, {_percent(work[backend])} of the operations"
            for backend, count in counts.items()
        ]
        left = [n for n in nodes if n.backend == PORTABLE]
        portable = f"{_count(len(left), 'node')} portable{self._portable_time(method, left)}"
        return f"{method}: {'; '.join([*(shares or ['no partitions']), portable])}"

    def _portable_time(self, method: str, left: Sequence[NodeReport]) -> str:
        """Return the share of portable nodes in the time of a method in words: as measured, else as estimated."""
        if (measured := self.portable_shares.get(method, 0.0)) or (left and method in self.portable_shares):
            return f", {_percent(measured)} of the time, measured"
        time = math.fsum(n.time for n in left)
        return f", about {_percent(time)} of the estimated time" if time else ""


def _layer_line(method: str, rows: Sequence[LayerAccuracy]) -> str:
    """Return the line on the quantized layers of a method."""
    worst = min(rows, key=lambda row: (math.isnan(row.added_db), row.added_db))
    noisiest = f"{worst.node} ({worst.place}, {decibels(worst.added_db)})"
    return f"{method}: {_count(len(rows), 'quantized layer')}, the noisiest: {noisiest}"


def _not_delegated(method: str, nodes: Sequence[NodeReport]) -> list[str]:
    """Describe the nodes of a method that each preferred backend refused, grouped by operator and reason."""
    refused: dict[str, list[NodeReport]] = {}
    for node in nodes:
        for backend in _find_passed_over(node):
            refused.setdefault(backend, []).append(node)
    return [line for backend, members in refused.items() for line in _refusals(backend, method, members)]


def _find_passed_over(node: NodeReport) -> Iterator[str]:
    """Yield the backends that refused a node and are preferred to the one that runs it."""
    for backend, verdict in node.verdicts.items():
        if backend == node.backend:
            return
        if not verdict:
            yield backend


def _refusals(backend: str, method: str, nodes: Sequence[NodeReport]) -> list[str]:
    groups: dict[tuple[str, Reason | None], list[NodeReport]] = {}
    for node in nodes:
        groups.setdefault((node.op, node.verdicts[backend].reason), []).append(node)
    ordered = sorted(groups.items(), key=lambda item: (-_work(item[1]), -len(item[1]), item[0][0]))
    lines = [f"{_count(len(nodes), 'node')} of {method} not on {backend}, most costly first:"]
    for (op, reason), members in ordered:
        verdicts = {_clip(str(n.verdicts[backend])) for n in members}
        why = verdicts.pop() if len(verdicts) == 1 else ""
        lines.append(f"  {op} ({len(members)}, {_percent(_work(members))} of the operations): {why or reason}")
        for node in members[:_NAMED]:
            own = "" if why else f": {_clip(str(node.verdicts[backend]))}"
            lines.append(f"    {node.name} -> {node.result}{' at ' + node.source if node.source else ''}{own}")
        if len(members) > _NAMED:
            lines.append(f"    and {len(members) - _NAMED} more")
    return lines


def _clip(text: str) -> str:
    """Shorten a text for people; the JSON has all of it."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _work(nodes: Iterable[NodeReport]) -> float:
    return sum(n.work for n in nodes)


def _rejections(node: NodeReport) -> str:
    """Return the backends that reject a node and are preferred to its own, each with its reason, e.g. "dsp (dtype)"."""
    return ", ".join(f"{backend} ({node.verdicts[backend].reason})" for backend in _find_passed_over(node))


def _table(partitions: Sequence[PartitionReport]) -> Table:
    """Return the table: a row per partition, and one for the small partitions of each backend."""
    small = [p for p in partitions if p.work < _SMALL]
    counts = Counter(p.backend for p in small)
    folded = {id(p) for p in small if counts[p.backend] > 1}
    rows = [
        _partition_row(p.name, [p], "; ".join((*p.notes, *_patterns(p)))) for p in partitions if id(p) not in folded
    ]
    members: dict[str, list[PartitionReport]] = {}
    for p in small:
        members.setdefault(p.backend, []).append(p)
    note = f"under {_SMALL:.0%} of the operations each"
    rows += [_partition_row(f"{len(own)} small ones", own, note) for own in members.values() if len(own) > 1]
    header: tuple[str, ...] = ("partition", "backend", "nodes", "operations", "in", "out", "estimate", "notes")
    if not any(p.seconds for p in partitions):
        header, *rows = ((*row[:6], *row[7:]) for row in (header, *rows))
    return Table(header, tuple(rows), numbers=frozenset(range(2, len(header) - 1)))


def _patterns(partition: PartitionReport) -> Iterator[str]:
    """Yield how often each pattern matches, with its name in quotes."""
    for name, count in Counter(pattern.name for pattern in partition.patterns).items():
        yield f"{count} of the pattern {name!r}"


def _partition_row(name: str, members: Sequence[PartitionReport], notes: str) -> tuple[str, ...]:
    """Return the cells of one partition, or the sums of several."""
    nodes, work = sum(len(p.nodes) for p in members), sum(p.work for p in members)
    bytes_in, bytes_out = sum(p.bytes_in for p in members), sum(p.bytes_out for p in members)
    sizes, seconds = (_bytes(bytes_in), _bytes(bytes_out)), sum(p.seconds for p in members)
    return name, members[0].backend, str(nodes), _percent(work), *sizes, f"{seconds * 1e3:.3g} ms", notes


def _copies(partitions: Iterable[PartitionReport]) -> Iterator[str]:
    """Yield a line per partition on a device about the copies between host and device in a call."""
    for p in partitions:
        if p.space:
            stays = f"; {', '.join(p.stays)} {'stays' if len(p.stays) == 1 else 'stay'} there" if p.stays else ""
            copied = f"{_bytes(p.copied_in)} from the host, {_bytes(p.copied_out)} to it"
            yield f"{p.name} in {p.space} memory: {copied}{stays}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _percent(share: float) -> str:
    """Format a share; less than all is never rounded up to 100%, and more than nothing is never rounded down to 0%."""
    percent = 100 * share
    if 0 < percent < 1:
        return "<1%"
    return f"{min(percent, 99.9):.1f}%" if 99 < percent < 100 - 1e-6 else f"{percent:.0f}%"


def _bytes(number: int) -> str:
    size = float(number)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
