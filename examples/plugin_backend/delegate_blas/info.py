"""Facts of the backend that need no library. Cheap to import: neither torch nor SciPy."""

from __future__ import annotations

from delegate.backend.info import Availability, BackendInfo


def probe() -> Availability:
    """Probe for SciPy."""
    try:
        import scipy
    except ImportError as error:
        return Availability(ok=False, reason=f"scipy cannot be imported: {error}")
    return Availability(ok=True, versions={"scipy": scipy.__version__}, devices=("CPU",))


INFO = BackendInfo(
    name="blas",
    description="Linear layers by the BLAS of SciPy, float32",
    aot="delegate_blas.aot:BlasBackend",
    runtime="delegate_blas.runtime:BlasRuntime",
    probe=probe,
    install="pip install scipy",
)
