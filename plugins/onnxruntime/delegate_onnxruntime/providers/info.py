"""Facts of the backend that do not need ONNX Runtime."""

from __future__ import annotations

from importlib import metadata

from delegate.backend.info import Availability, BackendInfo
from delegate_onnxruntime.providers.runtime.installed import INSTALL, built_in, plugin_wheels


def probe() -> Availability:
    """Probe for ONNX Runtime and its providers."""
    try:
        import onnxruntime
    except ImportError as error:
        return Availability(ok=False, reason=f"onnxruntime cannot be imported: {error}")
    plugins = plugin_wheels()
    versions = {wheel: metadata.version(wheel) for wheel, _ in plugins.values()}
    devices = (*built_in(), *(f"{name} ({wheel})" for name, (wheel, _) in plugins.items()))
    return Availability(ok=True, versions={"onnxruntime": onnxruntime.__version__, **versions}, devices=devices)


INFO = BackendInfo(
    name="onnxruntime",
    description="Any execution provider of ONNX Runtime: CPU, CUDA, TensorRT, DirectML, CoreML, plugin wheels",
    aot="delegate_onnxruntime.providers.aot.backend:OnnxRuntimeBackend",
    runtime="delegate_onnxruntime.providers.runtime.delegate:OnnxRuntimeRuntime",
    probe=probe,
    install=INSTALL,
    api_version=(1, 0),
    preference=-2,  # after those that come with the project, where nobody names backends
)
