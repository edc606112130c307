"""The engines of the GPU backend: one row for each, with all that is known of it before its libraries are touched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from delegate.backends.gpu.cuda import library as cuda
from delegate.backends.gpu.webgpu import provider as webgpu
from delegate.backends.info import Availability

ENGINE = "engine"  # the compile spec that names the engine of a blob


@dataclass(frozen=True, slots=True)
class Engine:
    """A way to a GPU, with an AOT half and a runtime half of its own.

    Args:
        name: what users write in option `engine`.
        aot: "module:Class" of its AOT half, a subclass of `delegate.backends.aot.Backend`.
        runtime: "module:Class" of its runtime half, a subclass of `delegate.runtime.backend.BackendRuntime`.
        probe: what is here, as the probe of a backend says it.
        install: the command that installs its libraries.
    """

    name: str
    aot: str
    runtime: str
    probe: Callable[[], Availability]
    install: str

    def half(self, which: str) -> Any:
        """The class of its half "aot" or "runtime"."""
        module, _, name = getattr(self, which).partition(":")
        return getattr(import_module(module), name)


_HOME = "delegate.backends.gpu"
ENGINES: Mapping[str, Engine] = {
    e.name: e
    for e in (
        Engine(
            "webgpu",
            aot=f"{_HOME}.webgpu.aot:WebGpuBackend",
            runtime=f"{_HOME}.webgpu.runtime:WebGpuRuntime",
            probe=webgpu.probe,
            install=webgpu.INSTALL,
        ),
        Engine(
            "cuda",
            aot=f"{_HOME}.cuda.aot:CudaBackend",
            runtime=f"{_HOME}.cuda.runtime:CudaRuntime",
            probe=cuda.probe,
            install=cuda.INSTALL,
        ),
    )
}
AUTO = "auto"


def choose() -> tuple[Engine, str]:
    """The engine that `auto` means on this machine, and why."""
    cuda_here = ENGINES["cuda"].probe()
    if cuda_here.ok and not cuda_here.stand_in:
        return ENGINES["cuda"], "an NVIDIA GPU and TVM are here"
    if not cuda_here.ok or ENGINES["webgpu"].probe().ok:
        return ENGINES["webgpu"], "no NVIDIA GPU is here with TVM"
    return ENGINES["cuda"], "no GPU is here"
