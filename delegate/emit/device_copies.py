"""The bytes that partitions on devices copy from and to the host in a call, and the tensors that stay on the device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from delegate.backends.aot import Region
from delegate.edge.node import nbytes
from delegate.partitioner.extraction import LoweredProgram
from delegate.program.blocks import walk
from delegate.program.lifetimes import reads
from delegate.program.model import COPY_ACROSS, DelegateCall, KernelCall, Method, Program, StorageKind
from delegate.program.stages import depends_on_data
from delegate.report import PartitionReport, Report


def with_device_copies(report: Report, program: Program, lowered: Iterable[LoweredProgram]) -> Report:
    """Add the copies of every partition on a device to the report; the first partition counts shared copies.

    Args:
        report: of the program.
        program: emitted.
        lowered: the methods of the program, for the tensors of partitions; dynamic sizes are those of the export.
    """
    if not program.spaces:
        return report
    regions = {name: d.region for part in lowered for name, d in part.delegates.items()}
    partitions, notes = {p.name: p for p in report.partitions}, list(report.notes)
    for method in program.methods:
        calls = list(walk(method.instructions))
        copies = [c for c in calls if isinstance(c, KernelCall) and program.operators[c.operator] == COPY_ACROSS]
        fetched = {i for c in copies for i in reads(c)}
        uploaded = {o for c in copies for o in c.outputs if _stays(method, o)}
        on_device = [c for c in calls if isinstance(c, DelegateCall) and program.delegates[c.delegate].space]
        for call in on_device:
            spec = program.delegates[call.delegate]
            stated = _with_copies(partitions[spec.name], method, call, regions[spec.name], fetched, uploaded)
            uploaded.difference_update(call.inputs)
            partitions[spec.name] = replace(stated, space=program.spaces[spec.space - 1].name)
        if len(on_device) > 1 and depends_on_data(method):
            notes.append(f"{method.name}: tensors between partitions pass through the host, for sizes depend on data")
    return replace(report, partitions=tuple(partitions.values()), notes=tuple(notes))


def _with_copies(
    partition: PartitionReport,
    method: Method,
    call: DelegateCall,
    region: Region,
    fetched: set[int],
    uploaded: set[int],
) -> PartitionReport:
    """Add the copies to one partition; `fetched` values are copied to the host, `uploaded` ones to the device."""
    inputs = list(zip(region.inputs, call.inputs, strict=True))
    outputs = list(zip(region.outputs, call.outputs, strict=True))
    return replace(
        partition,
        copied_in=sum(nbytes(n) for n, i in inputs if i in uploaded or not _stays(method, i)),
        copied_out=sum(nbytes(n) for n, i in outputs if i in fetched or not _stays(method, i)),
        stays=tuple(n.name for n, i in inputs + outputs if _stays(method, i)),
    )


def _stays(method: Method, index: int) -> bool:
    storage = method.values[index].storage
    return storage.kind is StorageKind.ARENA and storage.index > 0
