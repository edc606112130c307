"""The description of the XNNPACK backend, available without its library."""

from __future__ import annotations

from delegate.backend.info import Availability, BackendInfo
from delegate.program.cores import cores

INSTALL = "pip install 'delegate[xnnpack]'"


def probe() -> Availability:
    """Check if LiteRT, which contains XNNPACK, can be imported here."""
    try:
        import ai_edge_litert.interpreter

        version = str(ai_edge_litert.__version__)
    except Exception as error:
        return Availability(ok=False, reason=f"ai-edge-litert cannot be imported: {error}")
    return Availability(ok=True, versions={"ai-edge-litert": version}, devices=(f"CPU, {cores()} threads",))


INFO = BackendInfo(
    name="xnnpack",
    description="CPU, by XNNPACK inside LiteRT (floats, int8, int4)",
    aot="delegate.backends.xnnpack.aot.backend:XnnpackBackend",
    runtime="delegate.backends.xnnpack.runtime.delegate:XnnpackRuntime",
    probe=probe,
    install=INSTALL,
    noise=(r"INFO: Created TensorFlow Lite XNNPACK delegate for CPU\.",),
)
