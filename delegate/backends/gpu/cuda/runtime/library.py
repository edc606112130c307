"""TVM's runtime, without its compiler and without torch: its loading, and its facts of this machine's GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata, util
from pathlib import Path
from typing import Any

from delegate.backends.gpu.cuda.runtime.targets import Target
from delegate.backends.info import Availability
from delegate.errors import BackendUnavailable

INSTALL = "pip install 'delegate[cuda]'"
PACKAGE = "apache-tvm"
STAND_IN = "host CPU by TVM (stand-in)"
CPU, CUDA = 1, 2  # DLPack's codes of devices
_EXISTS, _COMPUTE_VERSION, _NAME = 0, 4, 5  # TVM's codes of a device's attributes


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
        BackendUnavailable: a library is absent, e.g. NVIDIA's driver, or there is no GPU.
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
        raise BackendUnavailable("no NVIDIA GPU is here that TVM can use", remedy="see that `nvidia-smi` lists one")
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


def local_gpu() -> tuple[Target, str]:
    """Return the GPU of this machine as a target, and its name; raise BackendUnavailable if there is none."""
    tvm_ffi = runtime(CUDA)
    return Target("sm_" + _attribute(tvm_ffi, _COMPUTE_VERSION).replace(".", "")), str(_attribute(tvm_ffi, _NAME))


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
