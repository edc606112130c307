"""Events of lowering, loading and running, which listeners receive.

`start` and `duration` are nanoseconds: of `time.perf_counter_ns` for lowering, and of the platform's clock for loading
and running.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

Kind = Literal["kernel", "partition", "copy", "control flow"]  # of an instruction; a copy is between devices


@dataclass(frozen=True, slots=True)
class StageRun:
    """A stage of lowering, which follows the events of its parts.

    Args:
        name: "lower" for all of it; "export to edge", "emit", "verify", or "program from the cache".
        method: the name of the method; empty if the stage has all methods.
    """

    name: str
    method: str
    start: int
    duration: int


@dataclass(frozen=True, slots=True)
class PassRun:
    """A pass over the graph of a method.

    Args:
        method: the name of the method.
        name: the name of the pass.
        before, after: the numbers of nodes.
    """

    method: str
    name: str
    before: int
    after: int
    start: int
    duration: int


@dataclass(frozen=True, slots=True)
class SupportChecked:
    """The support checks of a backend for all nodes of a graph, including its pattern matches.

    Args:
        method: the name of the method.
        backend: the name of the backend.
        nodes: the number of checked nodes.
        supported: the number of nodes that the backend supports.
    """

    method: str
    backend: str
    nodes: int
    supported: int
    start: int
    duration: int


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan of a method, of which the last one before the compilations is the plan that is compiled.

    Args:
        method: the name of the method.
        nodes: backend, or "portable" -> its number of nodes.
        partitions: backend -> its number of partitions.
    """

    method: str
    nodes: Mapping[str, int]
    partitions: Mapping[str, int]
    start: int
    duration: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """The compilation of a region, which is a partition or a part of it.

    Args:
        backend: the name of the backend.
        partition: the name of the region.
        nodes: the number of its nodes.
        bytes: the size of the artifact with its data; 0 if there is none.
        is_cached: True for a result from the compile cache.
        refusal: the library's reason, if the library rejects the region.
    """

    backend: str
    partition: str
    nodes: int
    bytes: int
    is_cached: bool
    refusal: str
    start: int
    duration: int


@dataclass(frozen=True, slots=True)
class DelegateOpened:
    """The creation of a delegate from an artifact.

    Args:
        backend: the name of the backend.
        partition: the name of the partition.
        bytes: the size of the artifact with its data.
    """

    backend: str
    partition: str
    bytes: int
    start: int
    duration: int


@dataclass(frozen=True, slots=True)
class ProgramLoaded:
    """The load of a program, with the creation of its delegates.

    Args:
        methods: the names of the methods.
        bytes: the size of its constants and artifacts.
        arenas: bytes of the planned memory of all methods; 0 if that depends on sizes.
    """

    methods: tuple[str, ...]
    bytes: int
    arenas: int
    start: int
    duration: int


@dataclass(frozen=True, slots=True)
class BoundInstruction:
    """An instruction of a method, bound for one combination of sizes.

    Args:
        id: unique in the program, and the same for all sizes.
        method: the name of the method.
        name: the name of its first result.
        what: its operator, partition, or kind of control flow.
        kind: The instruction's kind.
        backend: the backend of a partition; else empty.
        source: the user's own line; empty if unknown.
        module: path of the user's module; empty if unknown. A partition has the path that its nodes share.
        reads, writes: its values, as the values whose memory they use; unique in the method.
        input_bytes, output_bytes: the sizes of these values.
        library: the kernel library of a kernel; else empty.
    """

    id: str
    method: str
    name: str
    what: str
    kind: Kind = "kernel"
    backend: str = ""
    source: str = ""
    module: str = ""
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    input_bytes: int = 0
    output_bytes: int = 0
    library: str = ""


class InstructionRun(NamedTuple):
    """A completed run of an instruction, in which the time of control flow includes its blocks.

    It is a named tuple, which Python creates three times as fast as a frozen dataclass.

    Args:
        instruction: the instruction.
        thread: the identifier of the thread, from `threading.get_ident`.
        context: the number of the context in this process.
        is_warm_up: True for the first run after the instruction was bound: it touches new memory and fills caches.
    """

    instruction: BoundInstruction
    start: int
    duration: int
    thread: int
    context: int
    is_warm_up: bool


@dataclass(frozen=True, slots=True)
class MethodRun:
    """A completed run of a method on checked inputs; it follows the events of its instructions.

    Args:
        method: the name of the method.
        thread: the identifier of the thread, from `threading.get_ident`.
        context: the number of the context in this process.
    """

    method: str
    start: int
    duration: int
    thread: int
    context: int


@dataclass(frozen=True, slots=True)
class OperatorRun:
    """A run of a vendor library's operator, inside a partition.

    Libraries that report times alone have operators that follow each other from the start of the partition.

    Args:
        backend: the name of the backend.
        partition: the name of the partition.
        name: the library's name of the node; may be empty.
        what: the library's name of the operator.
    """

    backend: str
    partition: str
    name: str
    what: str
    start: int
    duration: int


Event = (
    StageRun
    | PassRun
    | SupportChecked
    | Planned
    | Compiled
    | DelegateOpened
    | ProgramLoaded
    | InstructionRun
    | MethodRun
    | OperatorRun
)
