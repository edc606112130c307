"""Names, drivers and limits of adapters, read from Vulkan, because ONNX Runtime does not report them."""

from __future__ import annotations

import ctypes
import ctypes.util
import struct
from dataclasses import dataclass
from functools import cache

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
