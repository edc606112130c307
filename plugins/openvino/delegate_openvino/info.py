"""Facts of the backend that do not need OpenVINO."""

from __future__ import annotations

from delegate.backend.info import Availability, BackendInfo

INSTALL = "pip install delegate-openvino"


def probe() -> Availability:
    """Probe for OpenVINO and its devices."""
    try:
        import openvino
    except ImportError as error:
        return Availability(ok=False, reason=f"openvino cannot be imported: {error}")
    core = openvino.Core()
    devices = tuple(f"{name}: {core.get_property(name, 'FULL_DEVICE_NAME')}" for name in core.available_devices)
    if not devices:
        return Availability(ok=False, reason="OpenVINO finds no device here")
    return Availability(ok=True, versions={"openvino": openvino.__version__.split("-")[0]}, devices=devices)


INFO = BackendInfo(
    name="openvino",
    description="Intel's CPUs, GPUs and NPUs, by OpenVINO (float32, float16, bfloat16, int8, int4)",
    aot="delegate_openvino.aot:OpenVinoBackend",
    runtime="delegate_openvino.runtime:OpenVinoRuntime",
    probe=probe,
    install=INSTALL,
    api_version=(1, 0),
    preference=-1,  # after those that come with the project, where nobody names backends
)
