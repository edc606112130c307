"""Settings of OpenVINO's compiler, for running a model, and for its trial when a region is lowered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_HALF = ("f16", "bf16")


def settings(specs: Mapping[str, Any], model: Any) -> dict[str, Any]:
    """Return OpenVINO's properties of a compiled model.

    On CPUs, OpenVINO 2026.4 fuses two 16-bit linear layers with a sum after them to one kernel. The fusion ends the
    process (SIGSEGV, on a CPU without AVX-512).
    """
    in_16_bits = any(o.get_element_type().to_string() in _HALF for op in model.get_ops() for o in op.outputs())
    properties = {
        "SNIPPETS_MODE": "DISABLE" if in_16_bits and specs["device"].startswith("CPU") else None,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": specs["precision"],
        "CACHE_DIR": specs["cache"] or None,
        "INFERENCE_NUM_THREADS": specs["threads"] or None,
    }
    return {name: value for name, value in properties.items() if value is not None}
