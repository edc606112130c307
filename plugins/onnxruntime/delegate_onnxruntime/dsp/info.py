"""Facts of the DSP backend that need no library, and the search for its provider."""

from __future__ import annotations

from importlib import metadata

from delegate.backend.info import Availability, BackendInfo
from delegate.errors import DelegateError
from delegate_onnxruntime.onnx.runtime.provider import Provider, register

INSTALL = "pip install 'delegate-onnxruntime[dsp]'"
PROVIDER = "QNNExecutionProvider"


def provider() -> Provider:
    """Return QNN's provider, registered with ONNX Runtime; raise BackendUnavailable if it is absent."""
    return register(PROVIDER, _library, INSTALL)


def _library() -> str:
    import onnxruntime_qnn

    return str(onnxruntime_qnn.get_library_path())


def versions() -> dict[str, str]:
    """Return the versions of the libraries that compile and run a context binary."""
    return {name: metadata.version(name) for name in ("onnxruntime", "onnxruntime-qnn")}


def is_emulated(registered: Provider) -> bool:
    """Return true if programs run on the emulator: then ONNX Runtime lists a CPU in place of an NPU."""
    return all(d.device.type.name != "NPU" for d in registered.devices)


def probe() -> Availability:
    """Probe for QNN's provider and its HTP, real or emulated."""
    try:
        registered = provider()
    except DelegateError as error:
        return Availability(ok=False, reason=f"{error.what}: {error.where}")
    if not registered.devices:
        return Availability(ok=False, reason=f"{PROVIDER} finds no supported device")
    emulated = is_emulated(registered)
    device = f"Hexagon HTP{' (emulated)' if emulated else ''}"
    return Availability(ok=True, versions=versions(), devices=(device,), stand_in=emulated)


INFO = BackendInfo(
    name="dsp",
    description="Qualcomm Hexagon HTP, by QNN inside ONNX Runtime (float16 arithmetic)",
    aot="delegate_onnxruntime.dsp.aot.backend:DspBackend",
    runtime="delegate_onnxruntime.dsp.runtime:DspRuntime",
    probe=probe,
    install=INSTALL,
    preference=2,
    noise=("# LIBNATIVE: No alternate configuration present .*",),  # the emulator, at its first start
    licence="onnxruntime-qnn holds Qualcomm's QNN libraries, which are proprietary: read its licence before you ship",
)
