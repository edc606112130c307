"""Control flow at run time: steps that run the steps of their blocks. Carried values stay where the results will be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from delegate.errors import DelegateError, KernelError
from delegate.plugins import one_line
from delegate.runtime.backend import Array
from delegate.runtime.steps import Step, run_steps


class Moves:
    """Copies arrays to where they are wanted, as if all at once.

    Args:
        sources, targets: the arrays, pair by pair; a call may exchange entries.
        staged: the pairs whose source another pair may overwrite, each with room for a copy.
    """

    __slots__ = ("sources", "staged", "targets")

    def __init__(self, sources: list[Any], targets: list[Any], staged: Sequence[tuple[int, Array]]) -> None:
        self.sources, self.targets, self.staged = sources, targets, staged

    def __call__(self) -> None:
        sources = self.sources
        if self.staged:
            sources = sources.copy()
            for i, room in self.staged:
                np.copyto(room, sources[i])
                sources[i] = room
        for source, target in zip(sources, self.targets, strict=True):
            np.copyto(target, source)


class BoundBlock:
    """The steps of a block, after its inputs are moved in."""

    __slots__ = ("enter", "steps")

    def __init__(self, enter: Moves, steps: list[Step]) -> None:
        self.enter, self.steps = enter, steps

    def __call__(self) -> None:
        self.enter()
        run_steps(self.steps)


class _ControlStep:
    """What control flow has in common: an error in a block is that block's own."""

    __slots__ = ("place",)
    place: str

    def failed(self, error: BaseException) -> DelegateError:
        """The error that tells the user which instruction failed."""
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
        block, leave = self.branches[bool(self.predicate[0])]
        block()
        leave()


class WhileStep(_ControlStep):
    """Runs the body as long as the condition gives true. `holds` is a list of one array of one element."""

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
        sequences, parts: the whole arrays, and where the body takes their parts.
        body: the block.
        results, stacks: what the body gives, and the whole arrays that are made of it.
        advance: moves the carried values to the next turn.
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
        for turn in range(len(self.sequences[0])):
            for whole, part in zip(self.sequences, self.parts, strict=True):
                np.copyto(part, whole[turn])
            self.body()
            for result, whole in zip(self.results, self.stacks, strict=True):
                whole[turn] = result
            self.advance()
