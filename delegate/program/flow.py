"""What a method does: its instructions in the order of execution, and which values can be read where."""

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
_GIVEN = {StorageKind.INPUT, StorageKind.CONSTANT, StorageKind.STATE}  # there before the first instruction
_LEAST_BRANCHES = 2


class _Branch:
    """What a branch that may run beside others reads, and what it writes that was there before: home and index."""

    def __init__(self) -> None:
        self.read: set[tuple[StorageKind, int]] = set()
        self.written: set[tuple[StorageKind, int]] = set()


class Flow(Checker):
    """Checks the instructions of a method whose declarations are right.

    Args:
        program, method: that they are of.
        is_fallback: whether the method stands in for a delegate.
        outputs: numbers of those whose memory a value has.
    """

    def __init__(self, program: Program, method: Method, *, is_fallback: bool, outputs: Set[int]) -> None:
        super().__init__(program, method)
        self._is_fallback, self._outputs = is_fallback, outputs
        self._readable = [v.storage.kind in _GIVEN for v in method.values]
        self._made = list(self._readable)
        self._owner = list(range(len(method.values)))  # what an alias is a view of, in the end
        self._branch: _Branch | None = None  # the one that is looked at

    def verify(self) -> None:
        """Raise ProgramError where something makes no sense."""
        self._instructions(self.method.instructions, "instruction")
        self.where = f"{self.name}, outputs"
        self._args(self.method.outputs)
        self._check_outputs()
        for index, value in enumerate(self.method.values):
            if not self._made[index]:
                self.where = f"{self.name}, value %{index} {value.name!r}"
                self.fail("no instruction makes it")

    def _check_outputs(self) -> None:
        """What lies in an output's memory is that output, or the output is a view of it."""
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
        fetched = int(across and not uploads)
        self._args(call.args[:fetched], None)
        self._args(call.args[fetched:])
        if (number := written_input(self.program, self.method, call)) is not None:
            self._write(Storage(StorageKind.INPUT, number))
            return
        self._check_aliases(call)
        self._make(call.outputs, aliases=True, space=None if uploads else 0)

    def _write(self, storage: Storage) -> None:
        """Note that an instruction writes what was there before."""
        if self._branch is not None:
            self._branch.written.add((storage.kind, storage.index))

    def _check_aliases(self, call: KernelCall) -> None:
        """A kernel gives views of its first argument alone: lifetimes count on that."""
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
        """It takes and gives as many tensors as the delegate, of the same dtypes."""
        values = self.method.values
        for what, indices, refs in (
            ("take", call.inputs, [Ref(i.value) for i in fallback.inputs if i.value >= 0]),
            ("give", call.outputs, fallback.outputs),
        ):
            found = [fallback.values[r.index].dtype if isinstance(r, Ref) else None for r in refs]
            if found != [values[i].dtype for i in indices]:
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
            made = {o for inner in block.instructions for o in inner.outputs}
            for index in block.outputs:
                if index not in made or self.method.values[index].storage.kind in _GIVEN:
                    self.fail(f"the branch gives value %{index}, which it does not make")
            for inner in block.instructions:
                self._forget(inner.outputs)
        self._branch = None
        for index in call.outputs:
            self._readable[index] = True
        self.where = f"{self.name}, {path}"
        self._check_writes(branches)

    def _check_writes(self, branches: Sequence[_Branch]) -> None:
        """What one branch writes that was there before, a state or an input, no other branch reads or writes."""
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
                given = f"{len(block.inputs)} values and gives {len(block.outputs)}"
                self.fail(f"the block takes {given}, {call.kind.name} needs {inputs} and {expected}")
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
        for made in block.instructions:
            self._forget(made.outputs)
        self._forget(block.inputs)

    def _check_block_input(self, index: int, base: int) -> None:
        """An alias among a block's inputs is the value that it holds, of the same type."""
        self.index(index, self.method.values, "value")
        values, storage = self.method.values, self.method.values[index].storage
        if storage.kind is not StorageKind.ALIAS:
            return
        if storage.index != base:
            self.fail(f"%{index} {values[index].name!r} is an alias of another value than the block gets")
        if (values[index].dtype, values[index].shape) != (values[base].dtype, values[base].shape):
            self.fail(f"%{index} {values[index].name!r} is another type than %{base}, which it is an alias of")

    def _forget(self, values: Iterable[int]) -> None:
        """What a block made cannot be read behind it."""
        for index in values:
            self._readable[index] = self.method.values[index].storage.kind in _GIVEN

    def _read(self, values: Iterable[int], space: int | None = 0) -> None:
        """Values are read by what reaches the host's memory and that space; None: any space."""
        for index in values:
            self.index(index, self.method.values, "value")
            if not self._readable[index]:
                self.fail(f"value %{index} {self.method.values[index].name!r} is read before it is made here")
            if self._branch is not None:
                storage = self.method.values[self._owner[index]].storage
                self._branch.read.add((storage.kind, storage.index))
            self._check_reach(index, space)

    def _check_reach(self, index: int, space: int | None) -> None:
        """What reaches the host's memory and a memory space of a device reaches no other device; None: all."""
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
            name, home = f"value %{index} {value.name!r}", value.storage.kind
            if home in _READ_ONLY:
                self.fail(f"{name} is written, but {home.name} is read-only")
            if home is StorageKind.STATE:
                self._write(value.storage)
                continue
            if self._made[index]:
                self.fail(f"{name} is made twice")
            if home is StorageKind.ALIAS:
                if not aliases:
                    self.fail(f"{name} is an alias, which only a kernel or a block can make")
                self._read((value.storage.index,))
                self._owner[index] = self._owner[value.storage.index]
            self._check_reach(index, space)
            self._made[index] = self._readable[index] = True

    def _args(self, args: Iterable[Arg], space: int | None = 0) -> None:
        for arg in args:
            if isinstance(arg, tuple):
                self._args(arg, space)
            elif isinstance(arg, Ref):
                self._read((arg.index,), space)
            elif isinstance(arg, Expr):
                self.expr(arg)
