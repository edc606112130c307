"""A pluggable backend delegation framework for exported PyTorch models.

Importing this package imports neither torch nor any vendor library: the public names are resolved when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from delegate.compile import to_backend as to_backend
    from delegate.compiled import CompiledProgram as CompiledProgram
    from delegate.edge.cached_attention import cached_attention as cached_attention
    from delegate.kernels.table import KernelTable as KernelTable
    from delegate.partitioner.partitioner import Partitioner as Partitioner
    from delegate.partitioner.saved import SavedPlan as SavedPlan
    from delegate.program.dtypes import DType as DType
    from delegate.runtime.loaded import LoadedProgram as LoadedProgram
    from delegate.runtime.loaded import load as load

__version__ = "0.1.0"

_PUBLIC = {
    "to_backend": "delegate.compile",
    "CompiledProgram": "delegate.compiled",
    "cached_attention": "delegate.edge.cached_attention",
    "KernelTable": "delegate.kernels.table",
    "DType": "delegate.program.dtypes",
    "Partitioner": "delegate.partitioner.partitioner",
    "SavedPlan": "delegate.partitioner.saved",
    "load": "delegate.runtime.loaded",
    "LoadedProgram": "delegate.runtime.loaded",
}

__all__ = [
    "CompiledProgram", "DType", "KernelTable", "LoadedProgram", "Partitioner", "SavedPlan", "cached_attention", "load",
    "to_backend",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'delegate' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("torch", "pydantic", "yaml"):
            raise
        from delegate.errors import DelegateError

        raise DelegateError(
            f"delegate.{name} compiles programs, and {missing} is not installed",
            remedy="pip install 'delegate[aot]'; running saved programs needs only delegate.load",
        ) from error


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
