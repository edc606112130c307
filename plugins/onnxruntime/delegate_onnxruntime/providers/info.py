"""Facts of the backend, and the installed providers: those of ONNX Runtime's own build, and those of plugin wheels."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import cache
from importlib import metadata
from types import ModuleType

from delegate.backend.info import Availability, BackendInfo
from delegate.errors import BackendUnavailable, did_you_mean
from delegate_onnxruntime.onnx.runtime.provider import Provider, register

INSTALL = "pip install 'delegate-onnxruntime[cpu]'"
_MORE = "install a build of ONNX Runtime that has it (onnxruntime-gpu, onnxruntime-directml), or its plugin wheel"


def find(name: str) -> Provider:
    """Return a provider by its name; register its library with ONNX Runtime if it has a separate one.

    Raises:
        BackendUnavailable: no such provider is installed, or it finds no supported device.
    """
    if name in built_in():
        return Provider(name, built_in=True)
    plugins = plugin_wheels()
    if name not in plugins:
        here = (*built_in(), *plugins)
        remedy = did_you_mean(name, here) if here else INSTALL
        raise BackendUnavailable(f"ONNX Runtime has no provider {name!r} here", remedy=f"{remedy}; or {_MORE}")
    wheel, library = plugins[name]
    provider = register(name, library, f"pip install --upgrade {wheel}")
    if not provider.devices:
        raise BackendUnavailable(f"{name} finds no supported device", remedy="install the device's driver")
    return provider


def built_in() -> tuple[str, ...]:
    """Return the providers of the installed build; empty if ONNX Runtime is absent.

    The remote service is omitted, and so are providers of wheels, which ONNX Runtime lists after their registration.
    """
    try:
        import onnxruntime
    except ImportError:
        return ()
    others = {"AzureExecutionProvider", *plugin_wheels()}
    return tuple(name for name in onnxruntime.get_available_providers() if name not in others)


@cache
def plugin_wheels() -> dict[str, tuple[str, Callable[[], str]]]:
    """Return the providers of wheels: provider -> its distribution, and a function that returns the library's path.

    The package has `get_ep_names` and `get_library_path`, as ONNX Runtime's documentation requires.
    """
    providers: dict[str, tuple[str, Callable[[], str]]] = {}
    for wheel, module in _packages():
        names, path = (getattr(module, what, None) for what in ("get_ep_names", "get_library_path"))
        if names is not None and path is not None:
            providers |= dict.fromkeys(names(), (wheel, path))
    return providers


def _packages() -> Iterator[tuple[str, ModuleType]]:
    """Yield the packages of all distributions with names like ONNX Runtime's, without ONNX Runtime itself."""
    for distribution in metadata.distributions():
        wheel = distribution.name.lower().replace("_", "-")
        tops = (distribution.read_text("top_level.txt") or wheel.replace("-", "_")).split()
        for name in tops if wheel.startswith("onnxruntime-") else ():
            if name.startswith("onnxruntime_"):
                try:
                    module = importlib.import_module(name)
                except Exception:  # a wheel that does not load has no provider
                    continue
                yield wheel, module


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
    runtime="delegate_onnxruntime.providers.runtime:OnnxRuntimeRuntime",
    probe=probe,
    install=INSTALL,
    preference=-2,  # after those that come with the project, where nobody names backends
)
