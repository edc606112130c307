"""The targets of TVM's compiler: architectures of NVIDIA's GPUs, and the host's CPU in their place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_ARCH = re.compile(r"sm_(\d+)(\d)([af]?)")
HOST = "llvm"
# https://developer.nvidia.com/cuda-gpus, and the code generators of CUDA 13
ARCHITECTURES = (
    "sm_70", "sm_72", "sm_75", "sm_80", "sm_86", "sm_87", "sm_88", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_100a",
    "sm_103", "sm_103a", "sm_110", "sm_110a", "sm_120", "sm_120a", "sm_121", "sm_121a", HOST,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Target:
    """An architecture.

    Args:
        arch: one of ARCHITECTURES, or the name that a GPU reports.
        tf32: operands of products in float32 are rounded to TF32, so that tensor cores may multiply them.
    """

    arch: str
    tf32: bool = False

    @property
    def is_host(self) -> bool:
        """Return true if it is the CPU of the host, in place of a GPU."""
        return self.arch == HOST

    @property
    def has_tensor_cores(self) -> bool:
        """Return true if it has tensor cores for bfloat16, and enough shared memory for their schedule: from sm_80."""
        match = _ARCH.fullmatch(self.arch)
        return match is not None and int(match[1]) >= 8

    def runs_on(self, gpu: Target) -> bool:
        """Return true if machine code for this target runs on a GPU: of the same major version, and no lower minor one.

        https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#binary-compatibility
        """
        mine, its = _ARCH.fullmatch(self.arch), _ARCH.fullmatch(gpu.arch)
        if mine is None or its is None or mine[1] != its[1]:
            return False
        return mine[2] == its[2] if mine[3] == "a" else int(mine[2]) <= int(its[2])

    def for_tvm(self) -> Mapping[str, Any]:
        """Return TVM's description of the target, with limits that all these GPUs have."""
        if self.is_host:
            return {"kind": "llvm"}
        limits = {"max_threads_per_block": 1024, "max_shared_memory_per_block": 49152, "thread_warp_size": 32}
        return {"kind": "cuda", "arch": self.arch, **limits}

    def __str__(self) -> str:
        return self.arch
