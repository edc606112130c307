"""The query for nodes that a provider would leave to ONNX Runtime's CPU kernels, which sessions forbid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from delegate.backends.aot import RegionFailed
from delegate.backends.onnx.aot.model import ExportedModel
from delegate.backends.onnx.runtime.provider import Provider, one_line
from delegate.backends.onnx.runtime.session import add_weights


def left_to_cpu(exported: ExportedModel, settings: Any, provider: Provider) -> Mapping[str, str]:
    """Return the nodes that a provider does not support, each with a reason; empty if it supports all.

    Args:
        exported: the model.
        settings: options of a session on the provider, from `session_options`; used once.
        provider: the provider.

    Raises:
        RegionFailed: the library does not load the model at all, or leaves only nodes of unknown origin.
    """
    import onnxruntime

    name = provider.name
    settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    add_weights(settings, exported.model)
    try:
        with provider.lock:
            session = onnxruntime.InferenceSession(exported.model.graph, settings, enable_fallback=0)
            parts = session.get_provider_graph_assignment_info()
            del session
    except Exception as error:  # the bindings raise classes of their own that share no base but Exception
        raise RegionFailed(f"{name} does not load it: {one_line(error)}") from error
    left = [node for part in parts if part.ep_name != name for node in part.get_nodes()]
    reasons = {
        source: f"{name} does not take {node.op_type} here"
        for node in left
        for source in exported.sources.get(node.name, ())
    }
    if left and not reasons:
        operators = ", ".join(sorted({node.op_type for node in left}))
        raise RegionFailed(f"{name} leaves {operators} to the CPU")
    return reasons
