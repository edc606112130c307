"""TVM without its compiler and without torch: its targets, the loading of its runtime, and this machine's GPU."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Any

from delegate.backend.info import Availability
from delegate.errors import BackendUnavailable

INSTALL = "pip install delegate-cuda"
PACKAGE = "apache-tvm"
STAND_IN = "host CPU by TVM (stand-in)"
CPU, CUDA = 1, 2  # DLPack's codes of devices
_EXISTS, _COMPUTE_VERSION, _NAME = 0, 4, 5  # TVM's codes of a device's attributes
_ARCH = re.compile(r"sm_(\d+)(\d)([af]?)")
HOST = "llvm"
# https://developer.nvidia.com/cuda-gpus, and the code generators of CUDA 13
ARCHITECTURES = (
    "sm_70", "sm_72", "sm_75", "sm_80", "sm_86", "sm_87", "sm_88", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_100a",
    "sm_103", "sm_103a", "sm_110", "sm_110a", "sm_120", "sm_120a", "sm_121", "sm_121a", HOST,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CudaTarget:
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

    def runs_on(self, gpu: CudaTarget) -> bool:
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


def version() -> str:
    """Return TVM's version, e.g. "0.27.0"; raise BackendUnavailable if it is absent."""
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError as error:
        raise BackendUnavailable(f"{PACKAGE} is not installed", remedy=INSTALL) from error


def tensorizes() -> bool:
    """Return true if TVM's tensorize works: it copies IR as JSON, which ends the process with tvm-ffi 0.1.15."""
    return not metadata.version("apache-tvm-ffi").startswith("0.1.15")


def runtime(device: int) -> Any:
    """Return the module tvm_ffi, with TVM's runtime for a device loaded.

    Args:
        device: CPU or CUDA.

    Raises:
        BackendUnavailable: a library is absent, e.g. NVIDIA's driver, or the machine has no GPU.
    """
    version()
    home = util.find_spec("tvm")
    if home is None or home.origin is None:
        raise BackendUnavailable(f"{PACKAGE} has no package tvm", remedy=INSTALL)
    folder = Path(home.origin).parent / "lib"
    try:
        with _block_torch_import():
            import tvm_ffi
        _load(folder, "tvm_runtime", "RTLD_GLOBAL")
        if device == CUDA:
            _load(folder, "tvm_runtime_cuda", "RTLD_LOCAL")
    except (ImportError, OSError, RuntimeError) as error:
        remedy = "install NVIDIA's driver and the CUDA runtime" if device == CUDA else INSTALL
        raise BackendUnavailable("TVM's runtime cannot be loaded", where=str(error), remedy=remedy) from error
    if device == CUDA and not _attribute(tvm_ffi, _EXISTS):
        raise BackendUnavailable("there is no NVIDIA GPU that TVM can use", remedy="check that `nvidia-smi` lists one")
    return tvm_ffi


def _load(folder: Path, name: str, mode: str) -> None:
    from tvm_ffi.libinfo import load_lib_ctypes

    load_lib_ctypes("tvm", name, mode, extra_lib_paths=[folder])


@contextmanager
def _block_torch_import() -> Iterator[None]:
    """Block the import of torch: tvm_ffi imports it if it is installed, which takes seconds."""
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["torch"]


def _attribute(tvm_ffi: Any, code: int) -> Any:
    return tvm_ffi.get_global_func("runtime.GetDeviceAttr")(CUDA, 0, code)


def local_gpu() -> tuple[CudaTarget, str]:
    """Return the GPU of this machine as a target, and its name; raise BackendUnavailable if there is none."""
    tvm_ffi = runtime(CUDA)
    return CudaTarget("sm_" + _attribute(tvm_ffi, _COMPUTE_VERSION).replace(".", "")), str(_attribute(tvm_ffi, _NAME))


def probe() -> Availability:
    """Probe for TVM and a GPU of NVIDIA; without a GPU, TVM compiles for others, and the host's CPU stands in."""
    try:
        versions = {PACKAGE: version()}
        runtime(CPU)
    except BackendUnavailable as error:
        return Availability(ok=False, reason=f"{error.what}: {error.where}" if error.where else error.what)
    try:
        target, name = local_gpu()
    except BackendUnavailable as error:
        reason = f"no GPU: {error.where or error.what}"
        return Availability(
            ok=True, reason=reason, versions=versions, devices=(STAND_IN,), stand_in=True, remedy=error.remedy
        )
    return Availability(ok=True, versions=versions, devices=(f"CUDA on {name} ({target})",))


def one_line(error: Exception) -> str:
    """Return a message of TVM as one short line, without its traces, which are for its own developers."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return " ".join(" ".join(lines[-3:]).split())[:400]
