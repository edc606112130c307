"""Facts of the backend webgpu that need no library."""

from __future__ import annotations

from delegate.backend.info import BackendInfo
from delegate_onnxruntime.webgpu.runtime import provider

INFO = BackendInfo(
    name="webgpu",
    description="GPUs of any vendor by WebGPU inside ONNX Runtime (float32, float16)",
    aot="delegate_onnxruntime.webgpu.aot.backend:WebGpuBackend",
    runtime="delegate_onnxruntime.webgpu.runtime.delegate:WebGpuRuntime",
    probe=provider.probe,
    install=provider.INSTALL,
    preference=1,
    # SwiftShader, the software GPU: it draws nothing here.
    noise=(r"error: XDG_RUNTIME_DIR is invalid or not set in the environment\.",),
)
