"""Schedules for the host's CPU: outer loops over its threads, inner ones over its vectors, sums in registers.

They are rules in dlight's form. No sum changes the order of its terms, so results are equal to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir.dlight.analysis import get_root_block
from tvm.tirx.analysis import undefined_vars


@dataclass(frozen=True)
class Parallel:
    """A rule that runs every step on all threads, split at its outer loops; elementwise steps become one."""

    def apply(self, function: Any, target: Any, tunable: bool) -> Any:
        del target, tunable  # dlight's form
        schedule = s_tir.Schedule(function)
        for block in _steps(schedule):
            _parallel(schedule, block)
        return schedule


@dataclass(frozen=True)
class Tiled:
    """A rule that computes the only sum of a function tile by tile, in registers, with all steps that follow it.

    Args:
        rows: rows of a tile; they share the values that are read along its columns.
        columns: columns of a tile, adjacent in memory.
    """

    rows: int
    columns: int

    def apply(self, function: Any, target: Any, tunable: bool) -> Any:
        del target, tunable
        schedule = s_tir.Schedule(function)
        steps = _steps(schedule)
        sums = [n for n, block in enumerate(steps) if _is_sum(schedule, block)]
        if len(sums) != 1 or len(steps) - sums[0] > 2:
            return None
        total, last = steps[sums[0]], steps[-1]
        for block in steps[: sums[0]]:
            _parallel(schedule, block)
        shared = _shared_axis(schedule, total)
        if last is total:
            last = schedule.cache_write(total, 0, "global")
        loops = schedule.get_loops(last)
        if len(loops) != len(_axes(schedule, total, tirx.IterVar.DataPar)):
            return None  # what follows changes the shape
        outer, inner = _split(schedule, loops, {shared: self.rows, len(loops) - 1: self.columns})
        schedule.reorder(*outer, *inner)
        at = schedule.fuse(*outer)
        schedule.parallel(at)
        schedule.compute_at(total, at, preserve_unit_loops=True)
        _in_registers(schedule, total, len(loops))
        schedule.vectorize(inner[-1])
        return schedule


def _steps(schedule: Any) -> list[Any]:
    """Return the blocks of a function that could not be moved into the next block, or into the sum before them."""
    blocks = schedule.get_child_blocks(get_root_block(schedule))
    sums = [n for n, block in enumerate(blocks) if _is_sum(schedule, block)]
    free = blocks[sums[-1] + 1 :] if sums else blocks
    for block in free[:-1]:
        schedule.compute_inline(block)
    return [*blocks[: len(blocks) - len(free)], *free[-1:]]


def _axes(schedule: Any, block: Any, kind: Any) -> list[Any]:
    return [v.var for v in schedule.get(block).iter_vars if v.iter_type == kind]


def _is_sum(schedule: Any, block: Any) -> bool:
    return bool(_axes(schedule, block, tirx.IterVar.CommReduce))


def _parallel(schedule: Any, block: Any) -> None:
    """Split the outer loops of a block over threads; LLVM vectorises the inner loop."""
    outer = schedule.get_loops(block)[: len(_axes(schedule, block, tirx.IterVar.DataPar))]
    if not _is_sum(schedule, block):
        outer = outer[:-1]
    if outer:
        schedule.parallel(schedule.fuse(*outer))


def _shared_axis(schedule: Any, block: Any) -> int:
    """Return the axis along which a block repeats the reads of its last axis; without one, the last but one."""
    axes = _axes(schedule, block, tirx.IterVar.DataPar)
    for region in schedule.get(block).reads:
        read = {v for part in region.region for v in undefined_vars(part.min)}
        if axes[-1] in read:
            unread = [n for n, axis in enumerate(axes[:-1]) if axis not in read]
            if unread:
                return unread[-1]
    return max(len(axes) - 2, 0)


def _split(schedule: Any, loops: Sequence[Any], sizes: dict[int, int]) -> tuple[list[Any], list[Any]]:
    """Return the loops over tiles and within a tile: of these sizes, or of the largest smaller divisors."""
    outer, inner = [], []
    for n, loop in enumerate(loops):
        if n in sizes:
            extent = int(schedule.get(loop).extent)
            size = max(s for s in range(1, sizes[n] + 1) if extent % s == 0)
            over, within = schedule.split(loop, [None, size])
            outer.append(over)
            inner.append(within)
        else:
            outer.append(loop)
    return outer, inner


def _in_registers(schedule: Any, block: Any, rank: int) -> None:
    """Sum up a tile: the loops of the sum are outside, those over the tile inside, unrolled and vectorised."""
    loops = schedule.get_loops(block)
    summed = loops[-len(_axes(schedule, block, tirx.IterVar.CommReduce)) :]
    tile = loops[-len(summed) - rank : -len(summed)]
    schedule.reorder(*summed, *tile)
    *rows, columns = tile
    schedule.vectorize(columns)
    for row in rows:
        schedule.unroll(row)
    schedule.decompose_reduction(block, summed[0])
