"""Matrix products on tensor cores: a schedule in the form of dlight's rules.

The same as dlight's MatmulTensorization (tvm.s_tir.dlight.gpu.matmul, 0.27), for bfloat16 too, and with a choice of
tiles. Convolutions without groups are products of this form: their data is gathered on the way to shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir.dlight.analysis import get_root_block
from tvm.s_tir.dlight.gpu.matmul import (
    auto_inline_consumer_chain,
    auto_inline_producers,
    get_index_map,
    get_reduction_blocks,
)

from delegate.backends.gpu.cuda.aot.wmma import TILE, Intrinsics, intrinsics

_WARP, _VECTOR = 32, 4
TF32 = ("float32",)


@dataclass(frozen=True)
class TensorCores:
    """The rule: a block of threads has a square of `warps` x `warps` warps, each of which computes 2 x 2 tiles.

    Args:
        warps: number of warps along a side of the square.
        depth: number of tiles that are summed up between two loads from global memory.
        dtypes: dtypes of the operands; float32 is read as TF32.
    """

    warps: int = 4
    depth: int = 4
    dtypes: tuple[str, ...] = ("float16", "bfloat16")

    def apply(self, function: Any, target: Any, tunable: bool) -> Any:
        """Return the scheduled function; None if it is no such product."""
        del target, tunable  # dlight's form
        schedule = s_tir.Schedule(function)
        blocks = get_reduction_blocks(schedule, schedule.get_child_blocks(get_root_block(schedule)))
        if blocks is None or not self._fits(schedule.get(blocks[0])):
            return None
        block = _as_product(schedule, blocks[0])
        names = intrinsics(str(schedule.get(block).reads[0].source.dtype))
        sizes = [v.dom.extent for v in schedule.get(block).iter_vars[1:]]
        if any(isinstance(n, tirx.IntImm) and 2 * n.value <= m for n, m in zip(sizes, self._block(names), strict=True)):
            return None  # padding to a whole block would at least double the work
        self._schedule(schedule, block, names)
        return schedule

    def _block(self, names: Intrinsics) -> tuple[int, int, int]:
        """Return the rows and columns of a block of threads, and the number of terms between two loads."""
        side = TILE * 2 * self.warps
        return side, side, names.summed * self.depth

    def _schedule(self, schedule: Any, block: Any, names: Intrinsics) -> None:
        schedule.pad_einsum(block, [1, *self._block(names)])
        batch, i, j, k = schedule.get_loops(block)
        (i, i_in), (j, j_in), (k, k_in) = (
            schedule.split(loop, [None, size]) for loop, size in ((i, TILE), (j, TILE), (k, names.summed))
        )
        schedule.reorder(i, j, k, i_in, j_in, k_in)
        outer = schedule.blockize(i_in)

        i0, i1, i2, i3 = schedule.split(i, [None, 1, self.warps, 2])
        j0, j1, j2, j3 = schedule.split(j, [1, None, self.warps, 2])
        k0, k1 = schedule.split(k, [None, self.depth])
        for loop, order, stage in (
            (k0, [0, 3, 1, 4, 5, 2, 6], [0, 0, 0, 0, 0, 1, 1]),
            (k1, [0, 1, 2], [0, 0, 1]),
        ):
            schedule.annotate(loop, "software_pipeline_order", order)
            schedule.annotate(loop, "software_pipeline_stage", stage)
        schedule.reorder(i0, j0, i1, j1, j2, i2, k0, k1, i3, j3)
        warp = schedule.fuse(j2, i2)
        for loop, axis in (
            (batch, "blockIdx.z"), (schedule.fuse(i0, j0), "blockIdx.x"), (schedule.fuse(i1, j1), "blockIdx.y"),
            (warp, "threadIdx.y"),
        ):  # fmt: skip
            schedule.bind(loop, axis)

        for index in (0, 1):
            auto_inline_producers(schedule, self._fetch(schedule, outer, index, k0, names.summed))
        left, right = (schedule.cache_read(outer, n, f"wmma.matrix_{name}") for n, name in enumerate("ab"))
        for fragment in (left, right):
            schedule.compute_at(fragment, k1)
            schedule.unsafe_set_dtype(fragment, 0, names.fragment)

        shared = schedule.cache_write(outer, 0, "shared.dyn")
        schedule.storage_align(shared, 0, -2, 16, 4)
        store = schedule.cache_write(outer, 0, "wmma.accumulator")
        for written in (store, shared):
            schedule.reverse_compute_at(written, warp)
        tile = _tiled(schedule, store, TILE, unroll=False)
        (fill,) = schedule.get_child_blocks(schedule.decompose_reduction(outer, k0))
        schedule.tensorize(_tiled(schedule, left, names.summed), names.load_a)
        schedule.tensorize(_tiled(schedule, right, names.summed), names.load_b)
        schedule.tensorize(schedule.get_loops(fill)[-2], names.fill)
        schedule.tensorize(tile, names.store)
        schedule.tensorize(schedule.get_loops(block)[-3], names.multiply)

        auto_inline_consumer_chain(schedule, shared)
        _, lane, vector = schedule.split(
            schedule.fuse(*schedule.get_loops(shared)[-2:]), factors=[None, _WARP, _VECTOR]
        )
        schedule.bind(lane, "threadIdx.x")
        schedule.vectorize(vector)

    def _fits(self, block: Any) -> bool:
        """Return true if a block is a product of numbers of these dtypes that is summed up in float32."""
        if len(block.reads) != 2 or get_index_map(block) is None:
            return False
        left, right = (str(region.source.dtype) for region in block.reads)
        return left == right and left in self.dtypes and str(block.writes[0].source.dtype) == "float32"

    def _fetch(self, schedule: Any, block: Any, index: int, at: Any, columns: int) -> Any:
        """Load an operand to shared memory by all threads of a block, in rows that start in different banks."""
        fetched = schedule.cache_read(block, index, "shared.dyn")
        schedule.compute_at(fetched, at)
        fused = schedule.fuse(*schedule.get_loops(fetched)[-2:])
        _, warp, lane, vector = schedule.split(fused, factors=[None, self.warps**2, _WARP, _VECTOR])
        schedule.bind(lane, "threadIdx.x")
        schedule.bind(warp, "threadIdx.y")
        schedule.vectorize(vector)
        schedule.storage_align(fetched, 0, axis=-2, factor=columns, offset=columns // 2)
        schedule.annotate(fetched, "tirx.manifest_shared_memory_local_stage", 1)
        schedule.annotate(fetched, "double_buffer_scope", 0)
        return fetched


def _as_product(schedule: Any, block: Any) -> Any:
    """Return the block in the form C[batch, i, j] += A[batch, i, k] * B[batch, j, k]."""
    left, right, result = (schedule.reindex(block, part) for part in (("read", 0), ("read", 1), ("write", 0)))
    whole, *maps = get_index_map(schedule.get(block))
    for moved, part, index_map in zip((left, right, result), ("write", "write", "read"), maps, strict=True):
        schedule.transform_layout(moved, (part, 0), index_map)
    schedule.transform_block_layout(block, whole)
    return block


def _tiled(schedule: Any, block: Any, columns: int, unroll: bool = True) -> Any:
    """Split the two inner loops of a block into tiles; return the loop that is one tile."""
    i, j = schedule.get_loops(block)[-2:]
    (i, inner), (j, last) = (schedule.split(loop, [None, size]) for loop, size in ((i, TILE), (j, columns)))
    schedule.reorder(i, j, inner, last)
    if unroll:
        schedule.unroll(i)
        schedule.unroll(j)
    return inner
