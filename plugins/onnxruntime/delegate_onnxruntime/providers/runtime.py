"""The runtime part: a session on a provider."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar

import numpy as np

from delegate_onnxruntime.onnx.runtime.backend import OnnxRuntime
from delegate_onnxruntime.onnx.runtime.provider import Provider
from delegate_onnxruntime.onnx.runtime.session import FATAL, new_session
from delegate_onnxruntime.providers.info import find

# y = a @ b as a ModelProto: MatMulInteger of uint8[1, 4] and int8[4, 1].
_PRODUCT = (
    b'\x08\n\x12\x00:\\\n\x18\n\x01a\n\x01b\x12\x01y"\rMatMulInteger\x12\x01gZ\x13\n\x01a\x12\x0e\n\x0c\x08\x02\x12\x08'
    b"\n\x02\x08\x01\n\x02\x08\x04Z\x13\n\x01b\x12\x0e\n\x0c\x08\x03\x12\x08\n\x02\x08\x04\n\x02\x08\x01b\x13\n\x01y\x12\x0e\n\x0c"
    b"\x08\x06\x12\x08\n\x02\x08\x01\n\x02\x08\x01B\x04\n\x00\x10\x15"
)
_OF_BYTES = (
    b"DequantizeLinear",
    b"DynamicQuantizeMatMul",
    b"MatMulInteger",
)  # operators that lead to products of bytes


@cache
def products_saturate() -> bool:
    """Return true if sums of two products of uint8 and int8 saturate in 16 bits on this CPU, as on x86-64 without VNNI.

    ONNX Runtime then has to convert weights to uint8, whose kernels are exact. Where it is not necessary, that takes
    up to four times as long.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, FATAL
    session = new_session(_PRODUCT, options)
    (sums,) = session.run(None, {"a": np.full((1, 4), 255, np.uint8), "b": np.full((4, 1), 127, np.int8)})
    return bool(sums[0, 0] != 4 * 255 * 127)


def _text(value: object) -> str:
    """Return a value as text, in the form that providers read."""
    return str(int(value)) if isinstance(value, bool) else str(value)


class OnnxRuntimeRuntime(OnnxRuntime):
    """The runtime part of the backend, which opens sessions."""

    load_options: ClassVar = {"threads": int}

    @classmethod
    def provider(cls, specs: Mapping[str, Any]) -> Provider:
        return find(specs["provider"])

    @classmethod
    def provider_options(cls, specs: Mapping[str, Any]) -> dict[str, str]:
        return {name: _text(value) for name, value in specs["provider_options"].items()}

    @classmethod
    def settings(cls, specs: Mapping[str, Any], graph: bytes = b"") -> Any:
        session = super().settings(specs, graph)
        if (not graph or any(name in graph for name in _OF_BYTES)) and products_saturate():
            session.add_session_config_entry("session.x64quantprecision", "1")
        return session

    def runs_code(self, compile_specs: Mapping[str, Any]) -> bool:
        """Return true if the provider has options, because they may name libraries to load."""
        return bool(compile_specs.get("provider_options"))
