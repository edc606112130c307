"""The operators of a quantized model that ONNX Runtime computes in floats, read from the model that it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx

_FILE, _WEIGHTS = "optimized.onnx", "optimized.weights"
_CONVERSIONS = frozenset({"QuantizeLinear", "DequantizeLinear"})


def save_optimized(settings: Any, folder: str) -> Any:
    """Let a session write the model that it runs to a folder; return its options."""
    settings.optimized_model_filepath = str(Path(folder) / _FILE)
    settings.add_session_config_entry("session.optimized_model_external_initializers_file_name", _WEIGHTS)
    settings.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1024")
    return settings


def notes_on_floats(folder: str) -> Iterator[str]:
    """Yield notes on the operators that read decoded integers in a model that a session wrote."""
    graph = onnx.load_model(Path(folder) / _FILE, load_external_data=False).graph
    decoded = {node.output[0] for node in graph.node if node.op_type == "DequantizeLinear"}
    floats = (n.op_type for n in graph.node if n.op_type not in _CONVERSIONS and not decoded.isdisjoint(n.input))
    for name, count in sorted(Counter(floats).items()):
        yield f"computed in floats, not in integers: {name}{f' ({count} times)' if count > 1 else ''}"
