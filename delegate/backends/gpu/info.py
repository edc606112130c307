"""What is known of the GPU backend before its libraries are touched."""

from __future__ import annotations

from importlib import metadata

from delegate.backends.gpu import webgpu
from delegate.backends.info import Availability, BackendInfo
from delegate.errors import DelegateError


def probe() -> Availability:
    """Whether a GPU, real or played by software, is here."""
    try:
        found = webgpu.provider()
    except DelegateError as error:
        return Availability(ok=False, reason=f"{error.what}: {error.where}")
    if not found.devices:
        return Availability(ok=False, reason=webgpu.NO_DEVICE)
    versions = {name: metadata.version(name) for name in ("onnxruntime", "onnxruntime-ep-webgpu")}
    return Availability(
        ok=True, versions=versions, devices=(webgpu.describe(found),), stand_in=webgpu.is_software(found)
    )


INFO = BackendInfo(
    name="gpu",
    description="GPUs of any vendor, by WebGPU inside ONNX Runtime (float32, float16)",
    aot="delegate.backends.gpu.aot:GpuBackend",
    runtime="delegate.backends.gpu.runtime:GpuRuntime",
    probe=probe,
    install=webgpu.INSTALL,
    preference=1,
)
