"""The model of a compiled program: frozen data without behaviour, and the limits of a program file.

`emit` makes it, `program.file` saves and loads it, `program.verifier` checks it, `runtime` runs it. All references are
indices, so that bounds checks find a damaged file.

Most classes are NamedTuples: Python creates them several times faster than dataclasses, and class creation is a large
part of loading a small program. `Ref` is a dataclass, because a tuple among arguments is a list. So is `Storage`,
because tuples have their own `index`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from delegate.errors import ProgramError
from delegate.program.dtypes import DType
from delegate.program.expr import Dim, Expr, Symbol

FORMAT_VERSION = 6
COPY_ACROSS = "aten.clone.default"  # between the memory of a device and the host's, in either direction

# The limits of a program file. Saving and loading reject a larger one before they spend time or memory on it.
# docs/reference/file-format.md lists them with their reasons.
MAX_DEPTH = 64  # nesting of expressions, of lists in arguments, of blocks, and of trees
MAX_EXPR_NODES = 4096  # nodes of one expression, counted as often as they occur
MAX_ALL_EXPR_NODES = 1 << 19  # nodes of all expressions of a file, counted so
MAX_SYMBOLS = 4096  # of a method
MAX_RANK = 64  # dimensions of a tensor, as NumPy has it
MAX_TENSOR_BYTES = 1 << 62  # of a tensor, with every size 0 counted as 1: sums of a few stay within 64 bits
MAX_NAME = 1 << 10  # bytes of a name, in UTF-8
MAX_TEXT = 1 << 16  # bytes of a source line, and of a text among arguments
MAX_SPECS = 1 << 22  # bytes of the compile specs of all delegates, as JSON; also of the rules of load options
MAX_SPEC_PARTS = 1 << 18  # commas and brackets in them


def check_name(text: str | bytes, most: int = MAX_NAME) -> None:
    """Raise ProgramError for a text of more than `most` bytes of UTF-8."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(data) > most:
        shown = data[:40].decode(errors="replace")
        raise ProgramError(f"a name or text of {len(data)} bytes is longer than {most}", where=f"{shown!r}...")


class StorageKind(Enum):
    """The kind of memory that holds a value; the enum value is its stable code in program files."""

    ARENA = 0  # planned: `offset` bytes into the arena of memory space `index`; offset -1: planned per shape
    CONSTANT = 1  # constant number `index` of the program; read-only
    STATE = 2  # state number `index` of the program: a mutable buffer that lives between calls
    INPUT = 3  # the caller's array for input number `index`, not copied; read-only but for `written_input`
    OUTPUT = 4  # a new array for output number `index`, allocated in every call for the caller
    ALIAS = 5  # a view of value `index`: its instruction costs nothing at run time


@dataclass(frozen=True, slots=True)
class Storage:
    """The memory of a value; see `StorageKind` for the meaning of `index` and `offset` (bytes)."""

    kind: StorageKind
    index: int = 0
    offset: int = 0


class Value(NamedTuple):
    """A tensor of a method.

    Args:
        name: The name of the node that produces the value, for people.
        dtype: element type.
        shape: sizes; an `Expr` where it depends on the inputs' shapes or on data.
        storage: its memory.
    """

    name: str
    dtype: DType
    shape: tuple[Dim, ...]
    storage: Storage

    @property
    def is_static(self) -> bool:
        """Return True if all sizes are known ahead of time."""
        return all(isinstance(d, int) for d in self.shape)


@dataclass(frozen=True, slots=True)
class Ref:
    """An argument that is a tensor: the index of a value in the method."""

    index: int


# An argument of an instruction. A tuple is a list of arguments. An Expr is a number, known when the method is called.
Arg = Ref | Expr | DType | int | float | complex | bool | str | None | tuple["Arg", ...]


class KernelCall(NamedTuple):
    """Run the kernel of an operator.

    Args:
        operator: index into `Program.operators`.
        args: all arguments in the order of the operator's schema, keyword-only ones and defaults included.
        outputs: the values that it computes.
        source: index into `Method.sources`, or -1.
    """

    operator: int
    args: tuple[Arg, ...]
    outputs: tuple[int, ...]
    source: int = -1


class DelegateCall(NamedTuple):
    """A call of a delegate: index into `Program.delegates`, input values, output values."""

    delegate: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class Structure(Enum):
    """The kinds of control flow; the value is the stable code in program files."""

    IF = 0  # operands: predicate, then the inputs of both blocks; blocks: then, else
    WHILE = 1  # operands: carried values, then captured ones; blocks: condition, body
    SCAN = (
        2  # operands: carried values, then sequences, then captured ones; block: body. Outputs: carried, then stacked
    )
    MAP = 3  # operands: sequences, then captured values; block: body. Outputs: stacked
    # 4 was PARALLEL, branches that ran at the same time; `decode` refuses it


class Block(NamedTuple):
    """A body of control flow; its values stand in the method's one table."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    instructions: tuple[Instruction, ...]


class StructuredCall(NamedTuple):
    """Control flow: runs its blocks according to `kind`.

    Args:
        kind: The kind of control flow.
        operands: input values in the order of `Structure`.
        carried: the number of operands that one iteration passes to the next.
        blocks: the bodies.
        outputs: output values.
        sequences: the number of operands that are split along dimension 0, with one iteration per part.
    """

    kind: Structure
    operands: tuple[int, ...]
    carried: int
    blocks: tuple[Block, ...]
    outputs: tuple[int, ...]
    sequences: int = 0


Instruction = KernelCall | DelegateCall | StructuredCall


class Input(NamedTuple):
    """One leaf of the caller's arguments.

    Args:
        name: its path for people, e.g. "x" or "batch['ids']".
        value: the tensor value that it fills, or -1 for a number that is a symbol or was constant at export.
        literal: the required value, if value is -1 and no symbol is this input.
    """

    name: str
    value: int
    literal: int | float | bool | str | None = None


class Tree(NamedTuple):
    """The nesting of leaves in containers, without torch.

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


class MethodDefinition(NamedTuple):
    """One entry point of a program.

    Args:
        name: e.g. "forward".
        inputs: the leaves of the caller's arguments in order.
        outputs: the leaves of the result in order: a Ref, a literal, or an Expr (a number).
        in_tree: tuple(args tuple, kwargs dict) over the inputs.
        out_tree: over the outputs.
        values: all tensors.
        instructions: Instructions in the order of execution.
        symbols: the symbolic sizes; Expr.value is an index into them.
        arenas: bytes of each memory space, the host's first; -1 if the size depends on shapes and is planned per
            shape, and unused spaces at the end may be omitted.
        sources: the user's own source lines, for messages.
        guards: assumptions of the export about the symbols beyond their ranges, each a boolean.
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
    """Memory of a device for tensors between its partitions, which tensors enter and leave by `COPY_ACROSS` alone.

    Values with one offset share a block of it, and blocks are independent of each other.

    Args:
        backend: whose runtime part allocates memory in it.
        name: the backend's name for it, e.g. "webgpu".
    """

    backend: str
    name: str


class DelegateSpec(NamedTuple):
    """One lowered partition.

    Args:
        name: e.g. "xnnpack_0".
        backend: whose runtime part runs it.
        segment: the segment that holds its blob.
        compile_specs: passed from the backend's AOT part to its runtime part; plain JSON values.
        fallback: index into `Program.fallbacks` of the same computation in kernels, or -1.
        space: the memory space that its inputs and outputs may lie in besides the host's; 0: none.
        data: segments besides its blob, such as weights, which others may share.
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
        methods: the entry points.
        operators: names of the operators; instructions hold indices into them.
        constants, states, delegates: shared by the methods.
        segments: the bulk bytes (64-byte aligned and mapped when loaded from a file).
        report: the partition report as JSON; empty if it was stripped.
        fallbacks: partitions in kernels, for a delegate that fails, with the same inputs and outputs.
        on_fallback: the reaction when a fallback is used: "allow", "warn" or "error".
        spaces: memory of devices: memory space n is `spaces[n - 1]`. Space 0, and one beyond these, is the host's.
        load_rules: the accepted values of load options as JSON, for `option_rules.rules_of_json`; may be empty.
    """

    methods: tuple[MethodDefinition, ...]
    operators: tuple[str, ...]
    constants: tuple[Constant, ...]
    states: tuple[State, ...]
    delegates: tuple[DelegateSpec, ...]
    segments: tuple[memoryview | bytes, ...]
    report: str = ""
    fallbacks: tuple[MethodDefinition, ...] = ()
    on_fallback: str = "warn"
    spaces: tuple[MemorySpace, ...] = ()
    load_rules: str = ""
