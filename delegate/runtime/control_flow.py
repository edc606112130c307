"""Control flow: a structured call becomes a step that runs the steps of its blocks.

Carried values stay in the memory of the results. Imported only by programs with control flow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from delegate.errors import DelegateError, KernelError, ProgramError
from delegate.plugins import one_line
from delegate.program.instructions import block_bases
from delegate.program.model import Block, Instruction, StorageKind, Structure, StructuredCall
from delegate.runtime.arrays import Arrays
from delegate.runtime.backend import Array
from delegate.runtime.steps import Step, run_steps


class Moves:
    """Copies arrays to their targets, as if all at the same time.

    Args:
        sources, targets: the arrays, pair by pair; a call may exchange entries.
        staged: the pairs whose source another pair may overwrite, each with a buffer for a copy.
    """

    __slots__ = ("sources", "staged", "targets")

    def __init__(self, sources: list[Any], targets: list[Any], staged: Sequence[tuple[int, Array]]) -> None:
        self.sources, self.targets, self.staged = sources, targets, staged

    def __call__(self) -> None:
        sources = self.sources
        if self.staged:
            sources = sources.copy()
            for i, buffer in self.staged:
                np.copyto(buffer, sources[i])
                sources[i] = buffer
        for source, target in zip(sources, self.targets, strict=True):
            np.copyto(target, source)


class BoundBlock:
    """The steps of a block, which run after its inputs are moved in."""

    __slots__ = ("enter", "steps")

    def __init__(self, enter: Moves, steps: list[Step]) -> None:
        self.enter, self.steps = enter, steps

    def __call__(self) -> None:
        self.enter()
        run_steps(self.steps)


class _ControlStep:
    """The common base of control flow steps, which passes an error in a block on unchanged."""

    __slots__ = ("place",)
    place: str

    def translate(self, error: BaseException) -> DelegateError:
        """Return the error that names the failed instruction."""
        if isinstance(error, DelegateError):
            return error
        return KernelError(f"control flow failed: {one_line(error)}", where=self.place)


class IfStep(_ControlStep):
    """Runs one of two blocks and moves its results out. `predicate` is a list of one array of one element."""

    __slots__ = ("branches", "predicate")

    def __init__(
        self, place: str, predicate: list[Any], then: tuple[BoundBlock, Moves], other: tuple[BoundBlock, Moves]
    ) -> None:
        self.place, self.predicate, self.branches = place, predicate, (other, then)

    def __call__(self) -> None:
        block, move_out = self.branches[bool(self.predicate[0])]
        block()
        move_out()


class WhileStep(_ControlStep):
    """Runs the body while the condition is true. `holds` is a list of one array of one element."""

    __slots__ = ("advance", "body", "condition", "holds", "start")

    def __init__(
        self, place: str, start: Moves, condition: BoundBlock, holds: list[Any], body: BoundBlock, advance: Moves
    ) -> None:
        self.place, self.start, self.condition, self.holds = place, start, condition, holds
        self.body, self.advance = body, advance

    def __call__(self) -> None:
        self.start()
        while self._holds():
            self.body()
            self.advance()

    def _holds(self) -> bool:
        self.condition()
        return bool(self.holds[0])


class ScanStep(_ControlStep):
    """Runs the body for every part of the sequences; a map is a scan that carries nothing.

    Args:
        place: Where this is, for messages.
        start: moves the carried values in.
        sequences, parts: the complete arrays, and the body's inputs for their parts.
        body: the block.
        results, stacks: the body's outputs, and the complete arrays of them.
        advance: moves the carried values to the next iteration.
    """

    __slots__ = ("advance", "body", "parts", "results", "sequences", "stacks", "start")

    def __init__(
        self,
        place: str,
        start: Moves,
        sequences: tuple[list[Any], list[Any]],
        body: BoundBlock,
        stacks: tuple[list[Any], list[Any]],
        advance: Moves,
    ) -> None:
        self.place, self.start, self.body, self.advance = place, start, body, advance
        self.sequences, self.parts = sequences
        self.results, self.stacks = stacks

    def __call__(self) -> None:
        self.start()
        for i in range(len(self.sequences[0])):
            for sequence, part in zip(self.sequences, self.parts, strict=True):
                np.copyto(part, sequence[i])
            self.body()
            for result, sequence in zip(self.results, self.stacks, strict=True):
                sequence[i] = result
            self.advance()


Bind = Callable[[Iterable[Instruction]], list[Step]]


def make_structured_step(arrays: Arrays, call: StructuredCall, bind: Bind, method: str) -> Step:
    """Return the step of a structured call.

    Args:
        arrays: The method's arrays.
        call: The call that is bound.
        bind: returns the steps of instructions.
        method: its name, for messages.
    """
    place = f"method {method}, {call.kind.name.lower()}"
    blocks = [_bound_block(arrays, call, block, bind) for block in call.blocks]
    if call.kind is Structure.IF:
        _require([((), arrays.shapes[call.operands[0]])], place)
        move_out = [_moves(arrays, block.outputs, call.outputs) for block in call.blocks]
        then, other = zip(blocks, move_out, strict=True)
        return IfStep(place, arrays.entries(call.operands[:1]), then, other)
    carried, body = call.outputs[: call.carried], call.blocks[-1]
    start = _moves(arrays, call.operands[: call.carried], carried)
    advance = _moves(arrays, body.outputs[: call.carried], carried)
    if call.kind is Structure.WHILE:
        holds = arrays.entries(call.blocks[0].outputs)
        _require([((), arrays.shapes[i]) for i in call.blocks[0].outputs], place)
        return WhileStep(place, start, blocks[0], holds, blocks[1], advance)
    end = call.carried + call.sequences
    sequence_values, parts = call.operands[call.carried : end], body.inputs[call.carried : end]
    results, stacks = body.outputs[call.carried :], call.outputs[call.carried :]
    iterations = arrays.shapes[sequence_values[0]][:1]
    pairs = (*zip(sequence_values, parts, strict=True), *zip(stacks, results, strict=True))
    _require([(arrays.shapes[whole], iterations + arrays.shapes[part]) for whole, part in pairs], place)
    sequences = arrays.entries(sequence_values), arrays.entries(parts)
    return ScanStep(place, start, sequences, blocks[0], (arrays.entries(results), arrays.entries(stacks)), advance)


def _require(pairs: Iterable[tuple[tuple[int, ...], tuple[int, ...]]], place: str) -> None:
    """Raise ProgramError unless copies fit, because NumPy would broadcast a small value, or leave a part unwritten.

    A boolean may have one element and any shape.
    """
    for first, second in pairs:
        if first != second and not (first == () and math.prod(second) == 1):
            what = f"a value of shape {list(first)} cannot become one of shape {list(second)}"
            raise ProgramError(what, where=place, remedy="lower the model again; report it if that fails")


def _bound_block(arrays: Arrays, call: StructuredCall, block: Block, bind: Bind) -> BoundBlock:
    bases = dict(block_bases(call, block))
    for index, base in bases.items():
        if arrays.storage[index].kind is StorageKind.ALIAS:
            arrays.identify(index, base)
    return BoundBlock(_moves(arrays, list(bases.values()), list(bases)), bind(block.instructions))


def _moves(arrays: Arrays, sources: Sequence[int], targets: Sequence[int]) -> Moves:
    """Return the copies of values to others; pairs of one identical value need none."""
    pairs = [(s, t) for s, t in zip(sources, targets, strict=True) if arrays.same(s) != arrays.same(t)]
    _require([(arrays.shapes[s], arrays.shapes[t]) for s, t in pairs], "control flow")
    owners = [arrays.owner(t) for _, t in pairs]
    staged = [
        (i, arrays.allocate(s))
        for i, (s, _) in enumerate(pairs)
        if arrays.owner(s) in owners[:i] or arrays.owner(s) in owners[i + 1 :]
    ]
    return Moves(arrays.entries(s for s, _ in pairs), arrays.entries(t for _, t in pairs), staged)
