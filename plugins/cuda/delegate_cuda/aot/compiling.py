"""Compilation of Relax to a shared library, by TVM's passes and code generators, and installed compilers."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from delegate.backend.aot import RegionFailed
from delegate.errors import DelegateError, LoweringError
from delegate_cuda.runtime.library import CudaTarget, one_line

# What TVM reads from the environment alone. Its own choice is fast and wrong in the last digits: exp and the like.
_EXACT = {
    "TVM_CUDA_NVCC_NO_FAST_MATH": "1",
    "TVM_CUDA_NVRTC_EXTRA_OPTS": "--ftz=false --prec-div=true --prec-sqrt=true",
}


Scheduler = Callable[[Sequence[Any]], Sequence[Any]]


def compile_library(module: Any, target: CudaTarget, scheduler: Scheduler | None = None) -> bytes:
    """Compile a module.

    Args:
        module: a module of Relax, from `to_relax`.
        target: the architecture to compile for.
        scheduler: schedules the loops of its functions; None: the default rules.

    Raises:
        LoweringError: a compiler is missing.
        RegionFailed: TVM does not compile the module.
    """
    import tvm

    from delegate_cuda.aot.wmma import with_tf32

    words = tvm.target.Target(dict(target.for_tvm()), host="llvm")
    _require_linker()
    with TemporaryDirectory() as folder, _environment(_device_compiler(target)), with_tf32():
        path = Path(folder, "library.so")
        try:
            with words:
                _build(module, words, target, scheduler).export_library(str(path))
        except DelegateError:
            raise
        except Exception as error:  # whatever TVM raises across its boundary
            raise RegionFailed(f"TVM does not compile it for {target}: {one_line(error)}") from error
        return path.read_bytes()


def _build(module: Any, words: Any, target: CudaTarget, scheduler: Scheduler | None) -> Any:
    """Build a module by TVM's default passes for the target, with our own schedules."""
    import tvm
    from tvm import relax

    from delegate_cuda.aot.schedules import by_default

    backend = relax.backend.cpu_generic.pipeline if target.is_host else relax.backend.cuda.pipeline
    fuse = (
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
    )
    module = tvm.transform.Sequential([*backend.library_dispatch_passes(words), *fuse])(module)
    scheduler = scheduler or (lambda functions: [by_default(f, target) for f in functions])
    functions = {n: f for n, f in module.functions_items() if isinstance(f, tvm.tirx.PrimFunc)}
    for name, function in zip(functions, scheduler([*functions.values()]), strict=True):
        module[name] = function
    lower = [*backend.dataflow_lower_passes(words), *backend.finalize_passes(words)]
    return relax.build(module, words, relax_pipeline=tvm.transform.Sequential(lower))


def _require_linker() -> None:
    from tvm.support import cc

    if cc.get_cc() is None:
        raise LoweringError(
            "TVM needs a C++ compiler to link a library, and none is installed", remedy="install g++ or clang++"
        )


def _device_compiler(target: CudaTarget) -> dict[str, str]:
    """Return the environment that selects NVIDIA's compiler for TVM; empty for the host."""
    if target.is_host:
        return {}
    if shutil.which("nvcc"):
        return {"TVM_CUDA_COMPILE_MODE": "nvcc", **_EXACT}
    if _has("cuda.bindings"):
        return {"TVM_CUDA_COMPILE_MODE": "nvrtc", **_EXACT}
    raise LoweringError(
        f"compiling for {target} needs nvcc or NVRTC, and neither is installed",
        remedy="install the CUDA toolkit and have nvcc on PATH, or pip install cuda-bindings nvidia-cuda-nvrtc",
    )


def _has(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
