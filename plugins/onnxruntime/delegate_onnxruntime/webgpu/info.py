"""Facts of the backend webgpu that need no library, and the name `gpu`, the best backend of GPUs."""

from __future__ import annotations

from importlib import metadata

from delegate.backend.info import Availability, BackendAlias, BackendInfo
from delegate.errors import DelegateError
from delegate_onnxruntime.webgpu.device import DRIVER, INSTALL, describe, is_software, no_device, provider


def probe() -> Availability:
    """Probe for a GPU, real or emulated by software."""
    try:
        registered, reason = provider(), no_device()
    except DelegateError as error:
        return Availability(ok=False, reason=f"{error.what}: {error.where}")
    if reason:
        return Availability(ok=False, reason=reason, remedy=DRIVER)
    versions = {name: metadata.version(name) for name in ("onnxruntime", "onnxruntime-ep-webgpu")}
    return Availability(ok=True, versions=versions, devices=(describe(registered),), stand_in=is_software(registered))


INFO = BackendInfo(
    name="webgpu",
    description="GPUs of any vendor by WebGPU inside ONNX Runtime (float32, float16)",
    aot="delegate_onnxruntime.webgpu.aot:WebGpuBackend",
    runtime="delegate_onnxruntime.webgpu.runtime:WebGpuRuntime",
    probe=probe,
    install=INSTALL,
    preference=1,
    # SwiftShader, the software GPU: it draws nothing here.
    noise=(r"error: XDG_RUNTIME_DIR is invalid or not set in the environment\.",),
)
GPU = BackendAlias(
    name="gpu",
    description="GPUs: NVIDIA's by TVM if there is one, else those of any vendor by WebGPU",
    stands_for=("cuda", "webgpu"),
)
