"""Settings of OpenVINO's compiler, for running a model, and for its trial when a region is lowered."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import openvino
from openvino import opset13 as opset

from delegate.program.cores import library_threads
from delegate.runtime.backend import default_float_environment

GROUPS = (16, 32, 64, 128)  # numbers of activations that share a range, chosen at run time
_HALF = ("f16", "bf16")
# OpenVINO caches up to 5,000 compiled kernels and their memory, one for each operator and each set of sizes.
_CACHE = 5000
_CACHED_SIZES = 64  # sets of sizes that stay compiled
_PRODUCTS = 64  # that are added up to find out if they saturate


def settings(specs: Mapping[str, Any], model: Any) -> dict[str, Any]:
    """Return OpenVINO's properties of a compiled model.

    On CPUs without AVX-512, fused kernels of 16 bits in OpenVINO 2026.4 have ended the process, so there are none.

    The cache of kernels for dynamic sizes is bounded. With OpenVINO's own bound, 3,800 calls with random sizes of a
    model of three convolutions take 650 MiB, and the memory grows on.

    If products of bytes saturate, the low-precision transformations stay off, and operators between FakeQuantize and
    decoded integers are computed in floats.

    Raises:
        ValueError: the specs have an unknown number of activations that share a range.
    """
    if type(specs["group"]) is not int or specs["group"] not in (0, *GROUPS):
        raise ValueError(f"the group of activations is {specs['group']!r}, not 0 or one of {GROUPS}")
    on_cpu, ops = specs["device"].startswith("CPU"), model.get_ops()
    in_16_bits = any(o.get_element_type().to_string() in _HALF for op in ops for o in op.outputs())
    in_integers = on_cpu and any(op.get_type_name() == "FakeQuantize" for op in ops)
    properties = {
        "SNIPPETS_MODE": "DISABLE" if in_16_bits and on_cpu else None,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": specs["precision"],
        "CACHE_DIR": specs["cache"] or None,
        "INFERENCE_NUM_THREADS": (library_threads(specs["threads"]) if on_cpu else specs["threads"]) or None,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": specs["group"] if on_cpu else None,
        "CPU_RUNTIME_CACHE_CAPACITY": min(_CACHED_SIZES * len(ops), _CACHE) if on_cpu and model.is_dynamic() else None,
        "LP_TRANSFORMS_MODE": "NO" if in_integers and products_saturate() else None,
    }
    return {name: value for name, value in properties.items() if value is not None}


def compile_model(
    model: openvino.Model, device: str, properties: Mapping[str, Any], core: openvino.Core | None = None
) -> openvino.CompiledModel:
    """Return a compiled model that keeps subnormal numbers: OpenVINO would flush them if this thread does so now."""
    with default_float_environment():
        return (core or openvino.Core()).compile_model(model, device, properties)


@cache
def products_saturate() -> bool:
    """Return true if sums of two products of uint8 and int8 saturate in 16 bits here, as on x86-64 without VNNI."""
    x = opset.parameter([1, _PRODUCTS], np.float32)
    ends = [np.float32(0), np.float32(255)] * 2
    weights = opset.convert(opset.constant(np.full((1, _PRODUCTS), 127, np.int8)), "f32")
    one = opset.constant(np.float32(1))
    product = opset.matmul(opset.fake_quantize(x, *ends, 256), opset.multiply(weights, one), False, True)
    properties = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = compile_model(openvino.Model([product], [x]), "CPU", properties)
    (sums,) = compiled([np.full((1, _PRODUCTS), 255, np.float32)]).values()
    return bool(sums[0, 0] != _PRODUCTS * 255 * 127)
