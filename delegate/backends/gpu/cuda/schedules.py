"""How loops may be scheduled: a table of rules per kind of target. The first that fits is the default.

A rule has the form of dlight's: `apply(function, target, tunable)` gives a schedule, or None where it does not fit. Its
name stands in databases of tuning: another rule gets another name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir
from tvm.s_tir import dlight

from delegate.backends.gpu.cuda import library
from delegate.backends.gpu.cuda.loops import Parallel, Tiled
from delegate.backends.gpu.cuda.targets import Target
from delegate.backends.gpu.cuda.tensor_cores import TF32, TensorCores

Rules = Mapping[str, Any]


def rules(target: Target) -> Rules:
    """The rules for a target by name."""
    return _for_host() if target.is_host else _for_gpu(target)


def applied(rule: Any, function: Any, target: Target) -> Any:
    """A function as a rule schedules it; None where it does not fit."""
    try:
        schedule = rule.apply(function, tvm.target.Target(dict(target.for_tvm())), False)
    except Exception:  # rules try what they cannot know to be allowed, and TVM says no by errors of many kinds
        return None
    return None if schedule is None else schedule.mod["main"].with_attr("tirx.is_scheduled", True)


def by_default(function: Any, target: Target) -> Any:
    """A function as the first rule that fits schedules it."""
    made = (applied(rule, function, target) for rule in rules(target).values())
    return next((f for f in made if f is not None), function)


@dataclass(frozen=True)
class _AsItIs:
    """The loops as TVM has made them."""

    def apply(self, function: Any, target: Any, tunable: bool) -> Any:
        del target, tunable
        return s_tir.Schedule(function)


@dataclass(frozen=True)
class _Matmul:
    """dlight's products without its own schedule for tensor cores, whose intrinsics take a minute to import."""

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
    }


def _for_host() -> Rules:
    tiles = ((1, 8), (1, 16), (2, 8), (4, 8), (4, 4), (8, 8))
    return {
        "as it is": _AsItIs(),
        "parallel": Parallel(),
        **{f"tiles {rows}x{columns}": Tiled(rows, columns) for rows, columns in tiles},
    }
