"""Execution providers of ONNX Runtime: its own ones, and the ones of separate libraries, which are registered once.

A lost device is only available again after the process has released all its memory and sessions; see `Device`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from threading import RLock
from typing import Any, Protocol
from weakref import WeakSet

from delegate.errors import BackendUnavailable

_WARNINGS, _ERRORS = (
    2,
    3,
)  # ONNX Runtime's levels of logging; it has no way to ask for the level, and starts at warnings


CPU = "CPUExecutionProvider"


@dataclass(frozen=True)
class Provider:
    """A provider for sessions.

    Args:
        name: ONNX Runtime's name of it, e.g. "QNNExecutionProvider".
        devices: the OrtEpDevices of this machine that it can use, if it has a separate library; may be empty.
        built_in: true if it is a part of ONNX Runtime, and lists no devices.
    """

    name: str
    devices: tuple[Any, ...] = ()
    built_in: bool = False

    def add_to(self, settings: Any, options: Mapping[str, str]) -> None:
        """Add the provider, with its own options, to these SessionOptions."""
        if self.built_in:
            settings.add_provider(self.name, dict(options))
        else:
            settings.add_provider_for_devices(list(self.devices), dict(options))

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Return the lock of the provider's device: concurrent use crashes WebGPU's library, and may crash others.

        Built-in providers have no lock, because they may run in several threads.
        """
        return nullcontext() if self.built_in else device(self.name).lock


def register(name: str, library: Callable[[], str], install: str) -> Provider:
    """Register a provider's library with ONNX Runtime, unless that was done before, and find its devices.

    Args:
        name: name of the provider.
        library: returns the path of its library; raises ImportError if its package is absent.
        install: the command that installs it.

    Raises:
        BackendUnavailable: ONNX Runtime or the provider's library is absent or cannot be loaded.
    """
    try:
        import onnxruntime

        if all(d.ep_name != name for d in onnxruntime.get_ep_devices()):
            _register(onnxruntime, name, library())
        devices = tuple(d for d in onnxruntime.get_ep_devices() if d.ep_name == name)
    except Exception as error:  # ImportError, or what ONNX Runtime's bindings raise of a library that does not load
        raise BackendUnavailable(f"{name} cannot be loaded", where=one_line(error), remedy=install) from error
    return Provider(name, devices)


def _register(onnxruntime: Any, name: str, path: str) -> None:
    onnxruntime.set_default_logger_severity(_ERRORS)  # warnings of the libraries are for their own developers
    try:
        onnxruntime.register_execution_provider_library(name, path)
    except Exception as error:
        if "already registered" not in str(error):  # a provider without a device here was registered before
            raise
    finally:
        onnxruntime.set_default_logger_severity(_WARNINGS)


class DeviceUser(Protocol):
    """A session or memory on a device."""

    def release(self) -> None:
        """Release everything on the device until it is needed again; the caller holds the device's lock."""


class Device:
    """A device that the sessions of this process on one provider share, and its users.

    Attributes:
        lock: held during all work on the device, because concurrent use crashes WebGPU's plugin.
    """

    def __init__(self) -> None:
        self.lock = RLock()
        self._users: WeakSet[DeviceUser] = WeakSet()

    def add(self, user: DeviceUser) -> None:
        """Add a user of the device."""
        self._users.add(user)

    def clear(self) -> None:
        """Release everything on the device, so that the library starts again with the device that is available."""
        with self.lock:
            for user in tuple(self._users):
                user.release()


@cache
def device(name: str) -> Device:
    """Return the device of a provider."""
    return Device()


def one_line(error: Exception) -> str:
    """Return a library's message on one line, shortened."""
    return " ".join(str(error).split())[:500]
