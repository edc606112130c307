"""How ONNX Runtime's WebGPU provider is found: Dawn over Vulkan, Direct3D 12 or Metal."""

from __future__ import annotations

from importlib import metadata

from delegate.backends.info import Availability
from delegate.backends.onnx.provider import Provider, register
from delegate.errors import DelegateError

INSTALL = "pip install 'delegate[gpu]'"
PROVIDER = "WebGpuExecutionProvider"
SPACE = "webgpu"  # the device's memory, as ONNX Runtime names it
NO_DEVICE = (
    "no GPU is here that Dawn can use through Vulkan, Direct3D 12 or Metal; a driver makes one visible, on Linux with "
    "Vulkan's loader (Debian: libvulkan1)"
)


def provider() -> Provider:
    """WebGPU's provider, registered with ONNX Runtime; raises BackendUnavailable where it is absent."""
    return register(PROVIDER, _library, INSTALL)


def _library() -> str:
    import onnxruntime_ep_webgpu

    return str(onnxruntime_ep_webgpu.get_library_path())


def is_software(found: Provider) -> bool:
    """Whether the device is a CPU that plays a GPU, such as SwiftShader."""
    return all(d.device.type.name == "CPU" for d in found.devices)


def describe(found: Provider) -> str:
    """The device for people: vendor and name, "(software)" where a CPU plays it."""
    device = found.devices[0].device
    name = " ".join(part for part in (device.vendor, device.metadata.get("Description", "")) if part) or "GPU"
    return f"WebGPU on {name}{' (software)' if is_software(found) else ''}"


def probe() -> Availability:
    """Whether a GPU, real or played by software, is here."""
    try:
        found = provider()
    except DelegateError as error:
        return Availability(ok=False, reason=f"{error.what}: {error.where}")
    if not found.devices:
        return Availability(ok=False, reason=NO_DEVICE)
    versions = {name: metadata.version(name) for name in ("onnxruntime", "onnxruntime-ep-webgpu")}
    return Availability(ok=True, versions=versions, devices=(describe(found),), stand_in=is_software(found))
