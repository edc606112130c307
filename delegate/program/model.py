"""The model of a compiled program: frozen data, without behaviour.

`emit` makes it, `program.file` saves and loads it, `program.verifier` checks it, `runtime` runs it.
Everything refers to everything else by index, so that a damaged file is caught by bounds checks.

Most classes are NamedTuples: Python makes them several times faster than dataclasses, and making classes is a good part
of loading a small program. `Ref` is a dataclass, as a tuple among arguments is a list; `Storage`, as tuples have an
`index` of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from delegate.program.dtypes import DType
from delegate.program.expr import Dim, Expr

FORMAT_VERSION = 5
COPY_ACROSS = "aten.clone.default"  # between the memory of a device and the host's, in either direction
UNBOUNDED_BELOW = -(2**63)  # the minimum of a symbol that has none


class StorageKind(Enum):
    """Where the memory of a value is; the value is its stable code in program files."""

    ARENA = 0  # planned: `offset` bytes into the arena of memory space `index`; offset -1: planned per shape
    CONSTANT = 1  # constant number `index` of the program; read-only
    STATE = 2  # state number `index` of the program: a mutable buffer that lives between calls
    INPUT = 3  # the caller's array for input number `index`, used where it lies; read-only but for `written_input`
    OUTPUT = 4  # a new array for output number `index`, made for every call and given to the caller
    ALIAS = 5  # a view of value `index`: the instruction that makes it costs nothing at run time


@dataclass(frozen=True, slots=True)
class Storage:
    """The memory of a value; see `StorageKind` for the meaning of `index` and `offset` (bytes)."""

    kind: StorageKind
    index: int = 0
    offset: int = 0


class Value(NamedTuple):
    """A tensor of a method.

    Args:
        name: the node that makes it, for people.
        dtype: element type.
        shape: sizes; an `Expr` where it depends on the inputs' shapes or on data.
        storage: where its memory is.
    """

    name: str
    dtype: DType
    shape: tuple[Dim, ...]
    storage: Storage

    @property
    def is_static(self) -> bool:
        """Whether all its sizes are known ahead of time."""
        return all(isinstance(d, int) for d in self.shape)


@dataclass(frozen=True, slots=True)
class Ref:
    """An argument that is a tensor: the index of a value of the method."""

    index: int


# An argument of an instruction. A tuple is a list of arguments. An Expr is a number, known when the method is called.
Arg = Ref | Expr | DType | int | float | complex | bool | str | None | tuple["Arg", ...]


class KernelCall(NamedTuple):
    """Run the kernel of an operator.

    Args:
        operator: index into `Program.operators`.
        args: all arguments in the order of the operator's schema, keyword-only ones and defaults included.
        outputs: values that it makes.
        source: index into `Method.sources`, or -1.
    """

    operator: int
    args: tuple[Arg, ...]
    outputs: tuple[int, ...]
    source: int = -1


class DelegateCall(NamedTuple):
    """Give values to a delegate and take its results: index into `Program.delegates`, values in, values out."""

    delegate: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class Structure(Enum):
    """The kinds of control flow; the value is the stable code in program files."""

    IF = 0  # operands: predicate, then what both blocks take; blocks: then, else
    WHILE = 1  # operands: carried values, then captured ones; blocks: condition, body
    SCAN = (
        2  # operands: carried values, then sequences, then captured ones; block: body. Outputs: carried, then stacked
    )
    MAP = 3  # operands: sequences, then captured values; block: body. Outputs: stacked
    PARALLEL = 4  # no operands; blocks: branches that may run at the same time. Outputs: those of all blocks


class Block(NamedTuple):
    """A body of control flow; its values stand in the method's one table. Branches of PARALLEL take no inputs."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    instructions: tuple[Instruction, ...]


class StructuredCall(NamedTuple):
    """Control flow: runs its blocks as `kind` says.

    Args:
        kind: which control flow.
        operands: values that go in, in the order that `Structure` says.
        carried: how many of them one turn gives to the next.
        blocks: the bodies.
        outputs: values that come out.
        sequences: how many operands are taken apart along dimension 0, a turn for each part.
    """

    kind: Structure
    operands: tuple[int, ...]
    carried: int
    blocks: tuple[Block, ...]
    outputs: tuple[int, ...]
    sequences: int = 0


Instruction = KernelCall | DelegateCall | StructuredCall


class Symbol(NamedTuple):
    """A symbolic number of a method: a size, a number that the caller gives, or an element of a tensor.

    Args:
        name: for people, e.g. "s0" or the Dim's name "batch".
        minimum, maximum: the range of integers that is allowed, inclusive; maximum None: unbounded.
        input, dim: it is the size of that dimension of that input; dim -1: it is the input, which is a number.
            Input -1: known only from data.
        value, dim: where input is -1, it is the size of that dimension of that value; dim -1: the value's one element.
    """

    name: str
    minimum: int
    maximum: int | None
    input: int = -1
    dim: int = -1
    value: int = -1


class Input(NamedTuple):
    """One leaf of the caller's arguments.

    Args:
        name: its path for people, e.g. "x" or "batch['ids']".
        value: the tensor value that it fills, or -1 for a number that is a symbol, or that the export made a constant.
        literal: what it must be where value is -1 and no symbol is this input.
    """

    name: str
    value: int
    literal: int | float | bool | str | None = None


class Tree(NamedTuple):
    """How leaves make up nested containers, without torch.

    Args:
        kind: "leaf", "tuple", "list", "dict", "namedtuple" or "record" (a dataclass or model output: named fields).
        keys: the keys of a dict (str or int) or the names of fields; empty for the others.
        children: the parts, in order.
        type: the full name of the class that torch knows, for people.
    """

    kind: str
    keys: tuple[str | int, ...] = ()
    children: tuple[Tree, ...] = ()
    type: str = ""


class Method(NamedTuple):
    """One entry point of a program.

    Args:
        name: e.g. "forward".
        inputs: the leaves of the caller's arguments in order.
        outputs: the leaves of the result in order: a Ref, a literal, or an Expr (a number).
        in_tree: tuple(args tuple, kwargs dict) over the inputs.
        out_tree: over the outputs.
        values: all tensors.
        instructions: in the order of execution.
        symbols: the symbolic sizes that Expr.value counts.
        arenas: bytes of each memory space, the host's first; -1 where it depends on the shapes and is planned per
            shape. Spaces that it does not use may be left out at the end.
        sources: the user's own source lines, for messages.
        guards: what the export assumed of the symbols beyond their ranges, each a truth value.
    """

    name: str
    inputs: tuple[Input, ...]
    outputs: tuple[Arg, ...]
    in_tree: Tree
    out_tree: Tree
    values: tuple[Value, ...]
    instructions: tuple[Instruction, ...]
    symbols: tuple[Symbol, ...] = ()
    arenas: tuple[int, ...] = (0,)
    sources: tuple[str, ...] = ()
    guards: tuple[Expr, ...] = ()


class Constant(NamedTuple):
    """A read-only tensor: its bytes are row-major (C order) in segment `segment`; several may share one."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    segment: int


class State(NamedTuple):
    """A mutable buffer shared by the methods; it starts with the bytes of segment `segment`."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    segment: int


class MemorySpace(NamedTuple):
    """Memory of a device: tensors that pass between partitions of it lie there, and come and go by `COPY_ACROSS` alone.

    Values of one offset share a block of it; blocks have nothing else in common.

    Args:
        backend: whose runtime half gives memory in it.
        name: that the backend knows it by, e.g. "webgpu".
    """

    backend: str
    name: str


class DelegateSpec(NamedTuple):
    """One lowered partition.

    Args:
        name: e.g. "xnnpack_0".
        backend: the backend whose runtime half takes it.
        segment: the segment that holds its blob.
        compile_specs: what the backend's AOT half tells its runtime half; plain JSON values.
        fallback: index into `Program.fallbacks` of the same computation in kernels, or -1.
        space: the memory space that its inputs and outputs may lie in besides the host's; 0: none.
        data: the segments of what it has besides its blob, such as weights, which others may have too.
    """

    name: str
    backend: str
    segment: int
    compile_specs: Mapping[str, Any]
    fallback: int = -1
    space: int = 0
    data: tuple[int, ...] = ()


class Program(NamedTuple):
    """A compiled program.

    Args:
        methods: what can be called.
        operators: names of the operators that instructions count.
        constants, states, delegates: what methods share.
        segments: the bulk bytes (64-byte aligned and mapped when loaded from a file).
        report: the partition report as JSON.
        fallbacks: partitions in kernels, for when a delegate fails; they take and give what the delegate does.
        on_fallback: what happens when a fallback is used: "allow", "warn" or "error".
        spaces: memory of devices: memory space n is `spaces[n - 1]`. Space 0, and one beyond these, is the host's.
        version: of the format.
    """

    methods: tuple[Method, ...]
    operators: tuple[str, ...]
    constants: tuple[Constant, ...]
    states: tuple[State, ...]
    delegates: tuple[DelegateSpec, ...]
    segments: tuple[memoryview | bytes, ...]
    report: str = ""
    fallbacks: tuple[Method, ...] = ()
    on_fallback: str = "warn"
    spaces: tuple[MemorySpace, ...] = ()
    version: int = FORMAT_VERSION
