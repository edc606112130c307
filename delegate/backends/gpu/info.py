"""What is known of the GPU backend before its libraries are touched."""

from __future__ import annotations

from delegate.backends.gpu.engines import ENGINES
from delegate.backends.info import Availability, BackendInfo


def probe() -> Availability:
    """Whether one of the engines can be used, and what each of them finds."""
    found = {name: engine.probe() for name, engine in ENGINES.items()}
    usable = [a for a in found.values() if a.ok]
    lacking = {name: a for name, a in found.items() if a.reason}
    return Availability(
        ok=bool(usable),
        reason="; ".join(f"{name}: {a.reason}" for name, a in lacking.items()),
        remedy=" or ".join(a.remedy or ENGINES[name].install for name, a in lacking.items()),
        versions={library: version for a in usable for library, version in a.versions.items()},
        devices=tuple(device for a in usable for device in a.devices),
        stand_in=bool(usable) and all(a.stand_in for a in usable),
    )


INFO = BackendInfo(
    name="gpu",
    description="GPUs of any vendor by WebGPU inside ONNX Runtime, or NVIDIA's by TVM (float32, float16)",
    aot="delegate.backends.gpu.aot:GpuBackend",
    runtime="delegate.backends.gpu.runtime:GpuRuntime",
    probe=probe,
    install=" or ".join(engine.install for engine in ENGINES.values()),
    preference=1,
)
