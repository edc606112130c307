"""Checks of a method's instructions: their order, and the values that each may read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Set

from delegate.program.blocks import block_bases
from delegate.program.checks import Checker
from delegate.program.expr import Expr
from delegate.program.model import (
    COPY_ACROSS,
    Arg,
    Block,
    DelegateCall,
    Instruction,
    KernelCall,
    Method,
    Program,
    Ref,
    Storage,
    StorageKind,
    Structure,
    StructuredCall,
)
from delegate.program.written_inputs import written_input

_BLOCKS = {Structure.IF: 2, Structure.WHILE: 2, Structure.SCAN: 1, Structure.MAP: 1}
_READ_ONLY = {StorageKind.INPUT, StorageKind.CONSTANT}  # but for `written_input`
_INITIAL = {StorageKind.INPUT, StorageKind.CONSTANT, StorageKind.STATE}  # available before the first instruction
_LEAST_BRANCHES = 2


class _Branch:
    """The memory that a branch of PARALLEL reads, and the older memory that it writes, by storage kind and index."""

    def __init__(self) -> None:
        self.read: set[tuple[StorageKind, int]] = set()
        self.written: set[tuple[StorageKind, int]] = set()


class FlowChecker(Checker):
    """Checks of the instructions of a method with valid declarations.

    Args:
        program, method: the owner of the instructions.
        is_fallback: true if the method replaces a delegate.
        outputs: the numbers of the outputs whose memory a value uses.
    """

    def __init__(self, program: Program, method: Method, *, is_fallback: bool, outputs: Set[int]) -> None:
        super().__init__(program, method)
        self._is_fallback, self._outputs = is_fallback, outputs
        self._readable = [v.storage.kind in _INITIAL for v in method.values]
        self._defined = list(self._readable)
        self._owner = list(range(len(method.values)))  # the value that owns the memory
        self._branch: _Branch | None = None  # the current one

    def verify(self) -> None:
        """Raise ProgramError if an instruction is invalid."""
        self._instructions(self.method.instructions, "instruction")
        self.where = f"{self.name}, outputs"
        self._args(self.method.outputs)
        self._check_outputs()
        for index, value in enumerate(self.method.values):
            if not self._defined[index]:
                self.where = f"{self.name}, value %{index} {value.name!r}"
                self.fail("no instruction makes it")

    def _check_outputs(self) -> None:
        """Check that the value in an output's memory is that output, or that the output is a view of it."""
        for number in self._outputs:
            ref = self.method.outputs[number]
            index = self._owner[ref.index] if isinstance(ref, Ref) else -1
            storage = self.method.values[index].storage if index >= 0 else None
            if storage is None or (storage.kind, storage.index) != (StorageKind.OUTPUT, number):
                self.fail(f"output {number} does not lie in the memory that is made for it")

    def _instructions(self, instructions: Iterable[Instruction], path: str) -> None:
        for index, call in enumerate(instructions):
            self.where = f"{self.name}, {path} {index}"
            if isinstance(call, KernelCall):
                self._kernel_call(call)
            elif isinstance(call, DelegateCall):
                self._delegate_call(call)
            else:
                self._structured_call(call, f"{path} {index}")

    def _kernel_call(self, call: KernelCall) -> None:
        self.index(call.operator, self.program.operators, "operator")
        if call.source != -1:
            self.index(call.source, self.method.sources, "source")
        across = self.program.operators[call.operator] == COPY_ACROSS
        uploads = across and any(self._on_device(o) for o in call.outputs)
        fetch_count = int(across and not uploads)
        self._args(call.args[:fetch_count], None)
        self._args(call.args[fetch_count:])
        if (number := written_input(self.program, self.method, call)) is not None:
            self._write(Storage(StorageKind.INPUT, number))
            return
        self._check_aliases(call)
        self._make(call.outputs, aliases=True, space=None if uploads else 0)

    def _write(self, storage: Storage) -> None:
        """Record that an instruction writes memory that existed before."""
        if self._branch is not None:
            self._branch.written.add((storage.kind, storage.index))

    def _check_aliases(self, call: KernelCall) -> None:
        """Check that a kernel returns views of its first argument alone. Lifetimes depend on it."""
        for index in call.outputs:
            self.index(index, self.method.values, "value")
            storage = self.method.values[index].storage
            if storage.kind is StorageKind.ALIAS and call.args[:1] != (Ref(storage.index),):
                self.fail(f"%{index} {self.method.values[index].name!r} is an alias of no first argument")

    def _on_device(self, index: int) -> bool:
        self.index(index, self.method.values, "value")
        storage = self.method.values[index].storage
        return storage.kind is StorageKind.ARENA and storage.index > 0

    def _delegate_call(self, call: DelegateCall) -> None:
        if self._is_fallback:
            self.fail("a fallback calls a delegate")
        self.index(call.delegate, self.program.delegates, "delegate")
        spec = self.program.delegates[call.delegate]
        self._read(call.inputs, spec.space)
        self._make(call.outputs, aliases=False, space=spec.space)
        if spec.fallback >= 0:
            self._check_fallback(call, self.program.fallbacks[spec.fallback])

    def _check_fallback(self, call: DelegateCall, fallback: Method) -> None:
        """Check that a fallback has as many inputs and outputs as the delegate, of the same dtypes."""
        values = self.method.values
        for what, indices, refs in (
            ("take", call.inputs, [Ref(i.value) for i in fallback.inputs if i.value >= 0]),
            ("give", call.outputs, fallback.outputs),
        ):
            dtypes = [fallback.values[r.index].dtype if isinstance(r, Ref) else None for r in refs]
            if dtypes != [values[i].dtype for i in indices]:
                self.fail(f"the fallback {fallback.name!r} does not {what} what its delegate does")

    def _parallel_call(self, call: StructuredCall, path: str) -> None:
        if self._branch is not None or self._is_fallback:
            inside = "a fallback" if self._is_fallback else "such a branch"
            self.fail(f"branches that may run at the same time stand in {inside}")
        if call.operands or call.carried or call.sequences:
            self.fail("PARALLEL takes no values: its branches read them where they lie")
        if len(call.blocks) < _LEAST_BRANCHES:
            self.fail(f"PARALLEL has {len(call.blocks)} blocks, and needs {_LEAST_BRANCHES}")
        if call.outputs != tuple(o for block in call.blocks for o in block.outputs):
            self.fail("PARALLEL gives other values than its branches do")
        branches: list[_Branch] = []
        for number, block in enumerate(call.blocks):
            self.where = place = f"{self.name}, {path}, block {number}"
            self._branch = _Branch()
            branches.append(self._branch)
            if block.inputs:
                self.fail("the branch takes values: it reads them where they lie")
            self._instructions(block.instructions, f"{path}, block {number}, instruction")
            self.where = place
            self._read(block.outputs)
            defined = {o for inner in block.instructions for o in inner.outputs}
            for index in block.outputs:
                if index not in defined or self.method.values[index].storage.kind in _INITIAL:
                    self.fail(f"the branch gives value %{index}, which it does not make")
            for inner in block.instructions:
                self._forget(inner.outputs)
        self._branch = None
        for index in call.outputs:
            self._readable[index] = True
        self.where = f"{self.name}, {path}"
        self._check_writes(branches)

    def _check_writes(self, branches: Sequence[_Branch]) -> None:
        """Check that no branch uses an older state or input that another branch writes."""
        touched = Counter(memory for branch in branches for memory in branch.read | branch.written)
        for memory in sorted({m for b in branches for m in b.written}, key=lambda m: (m[0].value, m[1])):
            if touched[memory] > 1:
                self.fail(f"{memory[0].name} {memory[1]} is written in one branch and used in another")

    def _structured_call(self, call: StructuredCall, path: str) -> None:
        if call.kind is Structure.PARALLEL:
            self._parallel_call(call, path)
            return
        self._read(call.operands)
        if len(call.blocks) != _BLOCKS[call.kind]:
            self.fail(f"{call.kind.name} has {len(call.blocks)} blocks, not {_BLOCKS[call.kind]}")
        if not 0 <= call.carried <= len(call.operands):
            self.fail(f"{call.carried} of {len(call.operands)} operands are carried")
        if not 0 <= call.sequences <= len(call.operands) - call.carried:
            self.fail(f"{call.sequences} of {len(call.operands)} operands are sequences")
        if call.sequences and call.kind in (Structure.IF, Structure.WHILE):
            self.fail(f"{call.kind.name} takes no sequences")
        if not call.sequences and call.kind in (Structure.SCAN, Structure.MAP):
            self.fail(f"{call.kind.name} has no sequence to go along")
        if call.carried and call.kind in (Structure.IF, Structure.MAP):
            self.fail(f"{call.kind.name} carries no values")
        if call.carried > len(call.outputs):
            self.fail(f"{call.kind.name} carries {call.carried} values and gives {len(call.outputs)}")
        inputs = len(call.operands) - (call.kind is Structure.IF)
        outputs = [len(call.outputs)] * len(call.blocks)
        if call.kind is Structure.WHILE:
            outputs[0] = 1  # the condition
            if call.carried != len(call.outputs):
                self.fail(f"WHILE carries {call.carried} values and gives {len(call.outputs)}")
        self._make(call.outputs[: call.carried], aliases=False)  # they hold the carried values from turn to turn
        for number, (block, expected) in enumerate(zip(call.blocks, outputs, strict=True)):
            self.where = f"{self.name}, {path}, block {number}"
            if (len(block.inputs), len(block.outputs)) != (inputs, expected):
                actual = f"{len(block.inputs)} values and gives {len(block.outputs)}"
                self.fail(f"the block takes {actual}, {call.kind.name} needs {inputs} and {expected}")
            self._block(call, block, f"{path}, block {number}, instruction")
        self.where = f"{self.name}, {path}"
        self._make(call.outputs[call.carried :], aliases=False)

    def _block(self, call: StructuredCall, block: Block, path: str) -> None:
        place = self.where
        bases = dict(block_bases(call, block))
        for index in block.inputs:
            self._check_block_input(index, bases.get(index, -1))
        self._make(block.inputs, aliases=True)
        self._instructions(block.instructions, path)
        self.where = place
        self._read(block.outputs)
        for inner in block.instructions:
            self._forget(inner.outputs)
        self._forget(block.inputs)

    def _check_block_input(self, index: int, base: int) -> None:
        """Check that an alias among a block's inputs is an alias of the value that it holds, of the same type."""
        self.index(index, self.method.values, "value")
        values, storage = self.method.values, self.method.values[index].storage
        if storage.kind is not StorageKind.ALIAS:
            return
        if storage.index != base:
            self.fail(f"%{index} {values[index].name!r} is an alias of another value than the block gets")
        if (values[index].dtype, values[index].shape) != (values[base].dtype, values[base].shape):
            self.fail(f"%{index} {values[index].name!r} is another type than %{base}, which it is an alias of")

    def _forget(self, values: Iterable[int]) -> None:
        """Make values unreadable after the end of their block."""
        for index in values:
            self._readable[index] = self.method.values[index].storage.kind in _INITIAL

    def _read(self, values: Iterable[int], space: int | None = 0) -> None:
        """Check that values can be read from the host's memory or from a memory space; None: any space."""
        for index in values:
            self.index(index, self.method.values, "value")
            if not self._readable[index]:
                self.fail(f"value %{index} {self.method.values[index].name!r} is read before it is made here")
            if self._branch is not None:
                storage = self.method.values[self._owner[index]].storage
                self._branch.read.add((storage.kind, storage.index))
            self._check_reach(index, space)

    def _check_reach(self, index: int, space: int | None) -> None:
        """Check that a value does not lie in another device's memory. A space of None means no check."""
        storage = self.method.values[index].storage
        if (
            space is not None
            and storage.kind is StorageKind.ARENA
            and storage.index not in (0, space)
            and storage.index <= len(self.program.spaces)
        ):
            device = self.program.spaces[storage.index - 1]
            name = f"value %{index} {self.method.values[index].name!r}"
            self.fail(f"{name} lies in {device.backend}'s memory {device.name!r}, which is out of reach here")

    def _make(self, values: Iterable[int], *, aliases: bool, space: int | None = 0) -> None:
        for index in values:
            self.index(index, self.method.values, "value")
            value = self.method.values[index]
            name, kind = f"value %{index} {value.name!r}", value.storage.kind
            if kind in _READ_ONLY:
                self.fail(f"{name} is written, but {kind.name} is read-only")
            if kind is StorageKind.STATE:
                self._write(value.storage)
                continue
            if self._defined[index]:
                self.fail(f"{name} is made twice")
            if kind is StorageKind.ALIAS:
                if not aliases:
                    self.fail(f"{name} is an alias, which only a kernel or a block can make")
                self._read((value.storage.index,))
                self._owner[index] = self._owner[value.storage.index]
            self._check_reach(index, space)
            self._defined[index] = self._readable[index] = True

    def _args(self, args: Iterable[Arg], space: int | None = 0) -> None:
        for arg in args:
            if isinstance(arg, tuple):
                self._args(arg, space)
            elif isinstance(arg, Ref):
                self._read((arg.index,), space)
            elif isinstance(arg, Expr):
                self.expr(arg)
