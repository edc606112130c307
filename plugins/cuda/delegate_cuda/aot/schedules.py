"""The schedules of loops: a table of rules per kind of target. The first that fits is the default.

A rule has dlight's form: `apply(function, target, tunable)` returns a schedule, or None if the rule does not fit.
Databases of tuning contain its name, so another rule must get another name.

For the host's CPU, which stands in for a GPU, outer loops may run over its threads. No sum changes the order of its
terms, so results are equal to the last bit.

For tensor cores, the rule is dlight's MatmulTensorization (tvm.s_tir.dlight.gpu.matmul, 0.27), for bfloat16
too, and with a choice of tiles. Convolutions without groups are products of this form: their data is gathered on the
way to shared memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir import dlight
from tvm.s_tir.dlight.analysis import get_root_block
from tvm.s_tir.dlight.gpu.matmul import (
    auto_inline_consumer_chain,
    auto_inline_producers,
    get_index_map,
    get_reduction_blocks,
)

from delegate.backend.aot import RegionFailed
from delegate_cuda.aot.wmma import TILE, Intrinsics, intrinsics
from delegate_cuda.runtime import library
from delegate_cuda.runtime.library import CudaTarget


@dataclass(frozen=True)
class Parallel:
    """A rule that runs every step on all threads, split at its outer loops; elementwise steps become one."""

    def apply(self, function: Any, target: Any, tunable: bool) -> Any:
        del target, tunable  # dlight's form
        schedule = s_tir.Schedule(function)
        for block in _steps(schedule):
            _parallel(schedule, block)
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
        """Return the scheduled function; None for another product."""
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
        """Return the rows and columns of a thread block, and the number of terms between two loads."""
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
        tile = _tile(schedule, store, TILE, unroll=False)
        (fill,) = schedule.get_child_blocks(schedule.decompose_reduction(outer, k0))
        schedule.tensorize(_tile(schedule, left, names.summed), names.load_a)
        schedule.tensorize(_tile(schedule, right, names.summed), names.load_b)
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
        """Return true if a block is a product of numbers in these dtypes that is summed up in float32."""
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


def _tile(schedule: Any, block: Any, columns: int, unroll: bool = True) -> Any:
    """Split the two inner loops of a block into tiles; return the loop that is one tile."""
    i, j = schedule.get_loops(block)[-2:]
    (i, inner), (j, last) = (schedule.split(loop, [None, size]) for loop, size in ((i, TILE), (j, columns)))
    schedule.reorder(i, j, inner, last)
    if unroll:
        schedule.unroll(i)
        schedule.unroll(j)
    return inner


Rules = Mapping[str, Any]
_SCHEDULED = "tirx.is_scheduled"


def rules(target: CudaTarget) -> Rules:
    """Return the rules for a target by name."""
    return _for_host() if target.is_host else _for_gpu(target)


def apply_rule(rule: Any, function: Any, target: CudaTarget) -> Any:
    """Return a function scheduled by a rule; None if the rule does not fit."""
    try:
        schedule = rule.apply(function, tvm.target.Target(dict(target.for_tvm())), False)
    except Exception:  # rules try what they cannot know to be allowed, and TVM says no by errors of many kinds
        return None
    if schedule is None or not (target.is_host or _in_threads(schedule)):
        return None
    _bools_one_by_one(schedule, get_root_block(schedule))
    return schedule.mod["main"].with_attr(_SCHEDULED, True)


def by_default(function: Any, target: CudaTarget) -> Any:
    """Return a function scheduled by the first rule that fits; raise RegionFailed if none fits.

    TVM has scheduled some functions for the target already, such as sums that run along a dimension.
    """
    if _SCHEDULED in (function.attrs or ()):
        return function
    candidates = (apply_rule(rule, function, target) for rule in rules(target).values())
    scheduled = next((f for f in candidates if f is not None), None)
    if scheduled is None:
        raise RegionFailed(f"no schedule for {target} fits a TVM function over {list(function.params)}")
    return scheduled


def _bools_one_by_one(schedule: Any, within: Any) -> None:
    """Unroll vectorised loops over bools in memory: TVM's CUDA code reads two bytes for each bool of a vector."""
    for block in schedule.get_child_blocks(within):
        found = schedule.get(block)
        if any(str(region.source.dtype) == "bool" for region in (*found.reads, *found.writes)):
            for loop in schedule.get_loops(block):
                if schedule.get(loop).kind == tirx.ForKind.VECTORIZED:
                    schedule.unroll(loop)
        _bools_one_by_one(schedule, block)


def _in_threads(schedule: Any) -> bool:
    """Return true if threads run every step: TVM compiles others for the host, which cannot reach the GPU's memory."""
    return all(
        any(schedule.get(loop).thread_binding is not None for loop in schedule.get_loops(block))
        or _launches(schedule.get(block).body)
        for block in schedule.get_child_blocks(get_root_block(schedule))
    )


def _launches(body: Any) -> bool:
    """Return true if a step has its own threads, like TVM's sorting."""
    are_launches: list[bool] = []
    attribute = (tirx.AttrStmt, lambda node: are_launches.append(node.attr_key == "thread_extent"))
    loop = (tirx.For, lambda node: are_launches.append(node.thread_binding is not None))
    tvm_ffi.structural_walk(body, [attribute, loop])
    return any(are_launches)


@dataclass(frozen=True)
class _AsItIs:
    """A rule that leaves TVM's loops unchanged."""

    def apply(self, function: Any, target: Any, tunable: bool) -> Any:
        del target, tunable
        return s_tir.Schedule(function)


@dataclass(frozen=True)
class _PerElement:
    """A rule with one thread for each element of a step's result, which computes its sums, too."""

    threads: int = 256

    def apply(self, function: Any, target: Any, tunable: bool) -> Any:
        del target, tunable
        schedule = s_tir.Schedule(function)
        for block in schedule.get_child_blocks(get_root_block(schedule)):
            loops, kinds = schedule.get_loops(block), [v.iter_type for v in schedule.get(block).iter_vars]
            of_element = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == tirx.IterVar.DataPar]
            elements = of_element or [schedule.add_unit_loop(loops[0] if loops else block)]
            schedule.reorder(*elements, *(loop for loop in loops if loop not in elements))
            for loop, axis in zip(
                schedule.split(schedule.fuse(*elements), [None, self.threads]),
                ("blockIdx.x", "threadIdx.x"),
                strict=True,
            ):
                schedule.bind(loop, axis)
        return schedule


@dataclass(frozen=True)
class _Matmul:
    """A rule for dlight's products, without its schedule for tensor cores: those intrinsics need a minute to import."""

    sizes: Mapping[str, int]

    def apply(self, function: Any, target: Any, tunable: bool) -> Any:
        rule = dlight.gpu.Matmul()
        rule.get_configs = self._config
        return rule.apply(
            function, tvm.target.Target({**target.attrs, "kind": target.kind.name, "arch": "sm_60"}), tunable
        )

    def _config(self, target: Any) -> Any:
        del target
        return dlight.gpu.Matmul.Config(**{**_MATMUL, **self.sizes})


# dlight's own for CUDA
_MATMUL = {
    "block_size_x": 8, "block_size_y": 16, "micro_size_x": 4, "micro_size_y": 4, "micro_size_k": 16, "vector_size": 2,
    "unroll": 256, "storage_align": True,
}  # fmt: skip


def _for_gpu(target: CudaTarget) -> Rules:
    tensor_cores = {
        "tensor cores 4x4": TensorCores(),
        "tensor cores 2x2": TensorCores(warps=2, depth=2),
    }
    if target.tf32:
        tensor_cores |= {  # 4x4 takes 100 KiB of shared memory, more than sm_86 has
            "tensor cores 4x2 tf32": TensorCores(depth=2, dtypes=TF32),
            "tensor cores 2x4 tf32": TensorCores(warps=2, dtypes=TF32),
        }
    return {
        **(tensor_cores if target.has_tensor_cores and library.tensorizes() else {}),
        "matmul 8x16": _Matmul({}),
        "matmul 16x16": _Matmul({"block_size_x": 16}),
        "matmul 8x8": _Matmul({"block_size_y": 8}),
        "matmul 8x16 deep": _Matmul({"micro_size_k": 32}),
        "gemv": dlight.gpu.GEMV(),
        "reduction": dlight.gpu.Reduction(),
        "general reduction": dlight.gpu.GeneralReduction(),
        "fallback": dlight.gpu.Fallback(),
        "thread per element": _PerElement(),
    }


def _for_host() -> Rules:
    return {
        "as it is": _AsItIs(),
        "parallel": Parallel(),
    }
