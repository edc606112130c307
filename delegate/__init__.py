"""A pluggable backend delegation framework for exported PyTorch models.

Example::

    exported = torch.export.export(model.eval(), example_inputs)
    program = delegate.to_backend(exported, "xnnpack")  # which backend runs what: print(program.report)
    program.save("model.dlg")

    program = delegate.load("model.dlg")  # on another machine, without torch
    result = program(image)  # NumPy arrays

Importing this package imports neither torch nor any vendor library: the public names are resolved when first used.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from delegate.accuracy.bounds import Verify as Verify
    from delegate.compile import debug as debug
    from delegate.compile import explain as explain
    from delegate.compile import to_backend as to_backend
    from delegate.compiled import CompiledProgram as CompiledProgram
    from delegate.edge.cached_attention import cached_attention as cached_attention
    from delegate.edge.sources import export as export
    from delegate.errors import AccuracyError as AccuracyError
    from delegate.errors import BackendBroken as BackendBroken
    from delegate.errors import BackendError as BackendError
    from delegate.errors import BackendFailed as BackendFailed
    from delegate.errors import BackendIncompatible as BackendIncompatible
    from delegate.errors import BackendNotFound as BackendNotFound
    from delegate.errors import BackendUnavailable as BackendUnavailable
    from delegate.errors import ConfigError as ConfigError
    from delegate.errors import DelegateError as DelegateError
    from delegate.errors import DeviceLost as DeviceLost
    from delegate.errors import DialectError as DialectError
    from delegate.errors import ExecutionError as ExecutionError
    from delegate.errors import ExportError as ExportError
    from delegate.errors import InputError as InputError
    from delegate.errors import KernelError as KernelError
    from delegate.errors import ListenerError as ListenerError
    from delegate.errors import LoweringError as LoweringError
    from delegate.errors import PartitionError as PartitionError
    from delegate.errors import ProgramError as ProgramError
    from delegate.errors import Stopped as Stopped
    from delegate.kernels.table import KernelTable as KernelTable
    from delegate.listeners import listen as listen
    from delegate.partitioner.partitioner import Partitioner as Partitioner
    from delegate.partitioner.saved import SavedPlan as SavedPlan
    from delegate.placement.policy import ByPreference as ByPreference
    from delegate.placement.policy import Estimated as Estimated
    from delegate.placement.policy import Measured as Measured
    from delegate.placement.policy import PlacementPolicy as PlacementPolicy
    from delegate.placement.policy import Remote as Remote
    from delegate.placement.policy import Replay as Replay
    from delegate.placement.policy import SupportTable as SupportTable
    from delegate.program.dtypes import DType as DType
    from delegate.runtime.loaded import LoadedProgram as LoadedProgram
    from delegate.runtime.loaded import load as load

__version__ = "0.1.0"

# How long the threads of NumPy's BLAS spin after a product, as a power of two of cycles. They read it when NumPy is
# imported. By default they spin for 20 ms, and take a core from the library whose partition comes next.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")

_PUBLIC = {
    "Verify": "delegate.accuracy.bounds",
    "debug": "delegate.compile",
    "explain": "delegate.compile",
    "to_backend": "delegate.compile",
    "CompiledProgram": "delegate.compiled",
    "cached_attention": "delegate.edge.cached_attention",
    "export": "delegate.edge.sources",
    "AccuracyError": "delegate.errors",
    "BackendBroken": "delegate.errors",
    "BackendError": "delegate.errors",
    "BackendFailed": "delegate.errors",
    "BackendIncompatible": "delegate.errors",
    "BackendNotFound": "delegate.errors",
    "BackendUnavailable": "delegate.errors",
    "ConfigError": "delegate.errors",
    "DelegateError": "delegate.errors",
    "DeviceLost": "delegate.errors",
    "DialectError": "delegate.errors",
    "ExecutionError": "delegate.errors",
    "ExportError": "delegate.errors",
    "InputError": "delegate.errors",
    "KernelError": "delegate.errors",
    "ListenerError": "delegate.errors",
    "LoweringError": "delegate.errors",
    "PartitionError": "delegate.errors",
    "ProgramError": "delegate.errors",
    "Stopped": "delegate.errors",
    "KernelTable": "delegate.kernels.table",
    "listen": "delegate.listeners",
    "Partitioner": "delegate.partitioner.partitioner",
    "SavedPlan": "delegate.partitioner.saved",
    "ByPreference": "delegate.placement.policy",
    "Estimated": "delegate.placement.policy",
    "Measured": "delegate.placement.policy",
    "PlacementPolicy": "delegate.placement.policy",
    "Remote": "delegate.placement.policy",
    "Replay": "delegate.placement.policy",
    "SupportTable": "delegate.placement.policy",
    "DType": "delegate.program.dtypes",
    "load": "delegate.runtime.loaded",
    "LoadedProgram": "delegate.runtime.loaded",
}

__all__ = list(_PUBLIC)


if not TYPE_CHECKING:  # a type checker then reports misspelled names

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
                f"delegate.{name} needs {missing}, which is not installed",
                remedy="pip install 'delegate[aot]'; running saved programs needs only delegate.load",
            ) from error


def __dir__() -> list[str]:
    return sorted((*_PUBLIC, "__version__"))
