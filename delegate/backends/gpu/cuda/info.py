"""Facts of the backend cuda that need no library."""

from __future__ import annotations

from delegate.backend.info import BackendInfo
from delegate.backends.gpu.cuda.runtime import library

INFO = BackendInfo(
    name="cuda",
    description="NVIDIA's GPUs by TVM, compiled ahead of time (float32, tf32, float16, bfloat16)",
    aot="delegate.backends.gpu.cuda.aot.backend:CudaBackend",
    runtime="delegate.backends.gpu.cuda.runtime.delegate:CudaRuntime",
    probe=library.probe,
    install=library.INSTALL,
    preference=2,
)
