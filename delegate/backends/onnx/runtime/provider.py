"""Execution providers of ONNX Runtime: those that it has, and those that come as libraries, registered once.

A device that is lost comes back only when nothing of the process is left on it; see `Device`.
"""

from __future__ import annotations

import os
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
    """A provider that sessions can be made on.

    Args:
        name: as ONNX Runtime knows it, e.g. "QNNExecutionProvider".
        devices: the OrtEpDevices of this machine that it can use, where it comes as a library of its own; may be empty.
        built_in: it is a part of ONNX Runtime, and lists no devices.
    """

    name: str
    devices: tuple[Any, ...] = ()
    built_in: bool = False

    def add_to(self, settings: Any, options: Mapping[str, str]) -> None:
        """Have a session of these SessionOptions run on it, with options in its own words."""
        if self.built_in:
            settings.add_provider(self.name, dict(options))
        else:
            settings.add_provider_for_devices(list(self.devices), dict(options))

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Held while anything works on it: two at once crash WebGPU's library, and of others nobody knows. What is a
        part of ONNX Runtime may run in several threads.
        """
        return nullcontext() if self.built_in else device(self.name).lock


def register(name: str, library: Callable[[], str], install: str) -> Provider:
    """Register a provider's library with ONNX Runtime, unless that was done before, and find its devices.

    Args:
        name: of the provider.
        library: gives the path of its library; raises ImportError where its package is absent.
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
        if "already registered" not in str(error):  # one that has no device here was registered before
            raise
    finally:
        onnxruntime.set_default_logger_severity(_WARNINGS)


class Tenant(Protocol):
    """A session or memory on a device."""

    def leave(self) -> None:
        """Give up what it has there, and get it anew when it is needed again; called with the device's lock held."""


class Device:
    """A device that the sessions of this process on one provider share, and its tenants.

    Attributes:
        lock: held while anything works there: two at once crash WebGPU's plugin.
    """

    def __init__(self) -> None:
        self.lock = RLock()
        self._tenants: WeakSet[Tenant] = WeakSet()

    def add(self, tenant: Tenant) -> None:
        """Somebody who has something there from now on."""
        self._tenants.add(tenant)

    def clear(self) -> None:
        """Have all tenants leave, so that the library begins anew, with the device that is there then."""
        with self.lock:
            for tenant in tuple(self._tenants):
                tenant.leave()


@cache
def device(name: str) -> Device:
    """The device of a provider."""
    return Device()


if hasattr(os, "register_at_fork"):  # a lock may be held by a thread that is not there any more
    os.register_at_fork(after_in_child=device.cache_clear)


def one_line(error: Exception) -> str:
    """Return a library's message on one line, shortened."""
    return " ".join(str(error).split())[:500]
