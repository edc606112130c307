"""Control flow at run time: steps that run the steps of blocks. Carried values stay in the memory of the results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from delegate.errors import DelegateError, KernelError
from delegate.plugins import one_line
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
    """The common base of control flow steps. An error in a block is passed on unchanged."""

    __slots__ = ("place",)
    place: str

    def failed(self, error: BaseException) -> DelegateError:
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
        place: for messages.
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
