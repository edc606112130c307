"""Find ONNX Runtime's WebGPU provider: Dawn over Vulkan, Direct3D 12 or Metal.

Names, drivers and limits of adapters are read from Vulkan, because ONNX Runtime does not report them.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import struct
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from delegate.errors import DelegateError
from delegate_onnxruntime.onnx.runtime.blob import OnnxModel
from delegate_onnxruntime.onnx.runtime.provider import Provider, device, one_line, register
from delegate_onnxruntime.onnx.runtime.session import open_session, session_options

INSTALL = "pip install 'delegate-onnxruntime[gpu]'"
PROVIDER = "WebGpuExecutionProvider"
NO_DEVICE = "there is no GPU that Dawn can use through Vulkan, Direct3D 12 or Metal"
DRIVER = "install the GPU's driver, on Linux one with Vulkan and its loader (Debian: apt-get install libvulkan1)"
FLOAT, FLOAT16 = 1, 10  # ONNX's codes of element types
_ADD = b'\x08\t:5\n\x0e\n\x01x\n\x01x\x12\x01y"\x03Add\x12\x01g%bB\x04\n\x00\x10\x11'  # y = x + x as a ModelProto
_VALUE = b"%c\x0f\n\x01%c\x12\n\n\x08\x08%c\x12\x04\n\x02\x08\x01"  # one element of a type


def provider() -> Provider:
    """Return WebGPU's provider, registered with ONNX Runtime; raise BackendUnavailable if it is absent."""
    return register(PROVIDER, _library, INSTALL)


def _library() -> str:
    import onnxruntime_ep_webgpu

    return str(onnxruntime_ep_webgpu.get_library_path())


@cache
def missing(dtype: int) -> str:
    """Return the library's reason why the device cannot add two numbers of an element type; empty if it can.

    Only a trial is reliable: the provider lists devices without querying their drivers, and always accepts float16.
    """
    graph = _ADD % b"".join(_VALUE % (field, name, dtype) for field, name in ((b"Z", b"x"), (b"b", b"y")))
    x = np.ones(1, np.float32 if dtype == FLOAT else np.float16)
    try:
        session = open_graph(graph)
        with device(PROVIDER).lock:
            session.run(None, {"x": x})
            del session
    except DelegateError as error:
        return error.where or error.what
    except Exception as error:  # see open_session
        return one_line(error)
    return ""


def open_graph(graph: bytes) -> Any:
    """Return a session of a model without weights."""
    return open_session(OnnxModel(graph), session_options(provider(), {}), provider())


def no_device() -> str:
    """Return the reason why nothing can run here; empty if it can. Raise BackendUnavailable without the library."""
    if not provider().devices:
        return NO_DEVICE
    reason = missing(FLOAT)
    return f"{NO_DEVICE} ({reason})" if reason else ""


def is_software(registered: Provider) -> bool:
    """Return true if the device is a CPU that emulates a GPU, such as SwiftShader."""
    return all(d.device.type.name == "CPU" for d in registered.devices)


def describe(registered: Provider) -> str:
    """Return the device for messages: adapter, driver and limits, and "(software)" if a CPU emulates it."""
    return (
        f"WebGPU on {adapter(registered) or _device_name(registered)}{' (software)' if is_software(registered) else ''}"
    )


def adapter(registered: Provider) -> Adapter | None:
    """Return Vulkan's adapter of the device; None if Dawn does not use Vulkan."""
    software = is_software(registered)
    return next((a for a in adapters() if a.is_cpu == software), None)


def _device_name(registered: Provider) -> str:
    """Return the name of the device in ONNX Runtime."""
    device = registered.devices[0].device
    return " ".join(part for part in (device.vendor, device.metadata.get("Description", "")) if part) or "GPU"


_CPU = 4  # VK_PHYSICAL_DEVICE_TYPE_CPU
_MOST = 16  # adapters
# VkPhysicalDeviceProperties: versions of API and driver, vendor, device, type, name; then a UUID, and among the limits
# maxStorageBufferRange. https://registry.khronos.org/vulkan/specs/latest/man/html/VkPhysicalDeviceProperties.html
_PROPERTIES = struct.Struct("=5I256s16x4x28xI")
_SIZE = 1024  # of a buffer that is surely large enough for it


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter.

    Args:
        name: as the driver gives it.
        driver: version, in the driver's own coding.
        api: version of Vulkan.
        largest: bytes of the largest storage buffer that a shader may bind.
        is_cpu: true if a CPU emulates it.
    """

    name: str
    driver: str
    api: str
    largest: int
    is_cpu: bool

    def __str__(self) -> str:
        return f"{self.name}, driver {self.driver}, Vulkan {self.api}, buffers of {self.largest / 2**20:.0f} MiB"


@cache
def adapters() -> tuple[Adapter, ...]:
    """Return the adapters of this machine; empty without Vulkan."""
    library = ctypes.util.find_library("vulkan") or ctypes.util.find_library("vulkan-1")
    if library is None:
        return ()
    vulkan = ctypes.CDLL(library)
    instance = ctypes.c_void_p()
    created = struct.pack("@IPIPIPIP", 1, 0, 0, 0, 0, 0, 0, 0)  # VkInstanceCreateInfo without anything
    if vulkan.vkCreateInstance(created, None, ctypes.byref(instance)):
        return ()
    try:
        count, devices = ctypes.c_uint32(_MOST), (ctypes.c_void_p * _MOST)()
        if vulkan.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), devices):
            return ()
        return tuple(_adapter(vulkan, devices[i]) for i in range(count.value))
    finally:
        vulkan.vkDestroyInstance(instance, None)


def _adapter(vulkan: ctypes.CDLL, device: int | None) -> Adapter:
    properties = ctypes.create_string_buffer(_SIZE)
    vulkan.vkGetPhysicalDeviceProperties(ctypes.c_void_p(device), properties)
    api, driver, _, _, kind, name, largest = _PROPERTIES.unpack_from(properties)
    return Adapter(
        name.split(b"\0")[0].decode(errors="replace"), _version(driver), _version(api), largest, kind == _CPU
    )


def _version(packed: int) -> str:
    """Return the text of a packed version: VK_MAKE_API_VERSION, of 7 bits, 10 bits, 12 bits."""
    return f"{packed >> 22 & 127}.{packed >> 12 & 1023}.{packed & 4095}"
