"""Facts of the backend that need no library. Cheap to import: no torch, no vendor library."""

from __future__ import annotations

from delegate.backend.info import Availability, BackendInfo


def probe() -> Availability:
    """Probe for the library and its devices."""
    try:
        import numpy  # the vendor's library in its place
    except ImportError as error:
        return Availability(ok=False, reason=f"numpy cannot be imported: {error}")
    return Availability(ok=True, versions={"numpy": numpy.__version__}, devices=("CPU",))


INFO = BackendInfo(
    name="acme",
    description="Acme, float32",
    aot="delegate_acme.aot:AcmeBackend",
    runtime="delegate_acme.runtime:AcmeRuntime",
    probe=probe,
    install="pip install numpy",
)
