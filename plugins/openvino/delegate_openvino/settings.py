"""Settings of OpenVINO's compiler: for running a model, and for trying it when a region is lowered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_HALF = ("f16", "bf16")


def settings(specs: Mapping[str, Any], model: Any) -> dict[str, Any]:
    """Properties of a compiled model, as OpenVINO names them.

    Of two linear layers in 16 bits with a sum behind them OpenVINO 2026.4 makes one kernel on CPUs. It ends the process
    while it does that (SIGSEGV, on a CPU without AVX-512).
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
