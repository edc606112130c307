"""Facts of the backend webgpu that need no library."""

from __future__ import annotations

from delegate.backend.info import BackendInfo
from delegate.backends.gpu.webgpu.runtime import provider

INFO = BackendInfo(
    name="webgpu",
    description="GPUs of any vendor by WebGPU inside ONNX Runtime (float32, float16)",
    aot="delegate.backends.gpu.webgpu.aot.backend:WebGpuBackend",
    runtime="delegate.backends.gpu.webgpu.runtime.delegate:WebGpuRuntime",
    probe=provider.probe,
    install=provider.INSTALL,
    preference=1,
    # SwiftShader, the software GPU: it draws nothing here.
    noise=(r"error: XDG_RUNTIME_DIR is invalid or not set in the environment\.",),
)
