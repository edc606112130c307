"""Facts of the backend cuda that need no library."""

from __future__ import annotations

from delegate.backend.info import BackendInfo
from delegate_cuda.runtime import library

INFO = BackendInfo(
    name="cuda",
    description="NVIDIA's GPUs by TVM, compiled ahead of time (float32, tf32, float16, bfloat16)",
    aot="delegate_cuda.aot.backend:CudaBackend",
    runtime="delegate_cuda.runtime.delegate:CudaRuntime",
    probe=library.probe,
    install=library.INSTALL,
    preference=2,
)
