"""The schedules of loops: a table of rules per kind of target. The first that fits is the default.

A rule has dlight's form: `apply(function, target, tunable)` returns a schedule, or None if the rule does not fit.
Databases of tuning contain its name, so another rule must get another name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import dlight
from tvm.s_tir.dlight.analysis import get_root_block

from delegate.backends.aot import RegionFailed
from delegate.backends.gpu.cuda.aot.loops import Parallel, Tiled
from delegate.backends.gpu.cuda.aot.tensor_cores import TF32, TensorCores
from delegate.backends.gpu.cuda.runtime import library
from delegate.backends.gpu.cuda.runtime.targets import Target

Rules = Mapping[str, Any]
_SCHEDULED = "tirx.is_scheduled"


def rules(target: Target) -> Rules:
    """Return the rules for a target by name."""
    return _for_host() if target.is_host else _for_gpu(target)


def applied(rule: Any, function: Any, target: Target) -> Any:
    """Return a function scheduled by a rule; None if the rule does not fit."""
    try:
        schedule = rule.apply(function, tvm.target.Target(dict(target.for_tvm())), False)
    except Exception:  # rules try what they cannot know to be allowed, and TVM says no by errors of many kinds
        return None
    if schedule is None or not (target.is_host or _in_threads(schedule)):
        return None
    return schedule.mod["main"].with_attr(_SCHEDULED, True)


def by_default(function: Any, target: Target) -> Any:
    """Return a function scheduled by the first rule that fits; raise RegionFailed if none fits.

    TVM has scheduled some functions for the target already, such as sums that run along a dimension.
    """
    if _SCHEDULED in (function.attrs or ()):
        return function
    candidates = (applied(rule, function, target) for rule in rules(target).values())
    scheduled = next((f for f in candidates if f is not None), None)
    if scheduled is None:
        raise RegionFailed(f"no schedule for {target} fits a function of TVM's over {list(function.params)}")
    return scheduled


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

    def visit(node: Any) -> None:
        if isinstance(node, tirx.AttrStmt):
            are_launches.append(node.attr_key == "thread_extent")
        elif isinstance(node, tirx.For):
            are_launches.append(node.thread_binding is not None)

    tirx.stmt_functor.post_order_visit(body, visit)
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


def _for_gpu(target: Target) -> Rules:
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
    tiles = ((1, 8), (1, 16), (2, 8), (4, 8), (4, 4), (8, 8))
    return {
        "as it is": _AsItIs(),
        "parallel": Parallel(),
        **{f"tiles {rows}x{columns}": Tiled(rows, columns) for rows, columns in tiles},
    }
