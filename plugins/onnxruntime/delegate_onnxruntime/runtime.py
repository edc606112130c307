"""The runtime part: a session on a provider."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from delegate.backends.onnx.runtime.blob import OnnxModel, unpack
from delegate.backends.onnx.runtime.provider import Provider
from delegate.backends.onnx.runtime.session import OnnxDelegate, open_session, session_options
from delegate.runtime.backend import BackendRuntime, Delegate
from delegate_onnxruntime.providers import find


def settings(provider: Provider, specs: Mapping[str, Any]) -> Any:
    """Return session options for compile specs; they belong to one session and are used once."""
    session = session_options(provider, provider_options(specs), threads=specs["threads"])
    # Without this, CPUs without VNNI saturate sums of products.
    session.add_session_config_entry("session.x64quantprecision", "1")
    return session


def provider_options(specs: Mapping[str, Any]) -> dict[str, str]:
    """Return the provider's own options for compile specs."""
    return {name: _text(value) for name, value in specs["provider_options"].items()}


def _text(value: object) -> str:
    """Return a value as text, in the form that providers read."""
    return str(int(value)) if isinstance(value, bool) else str(value)


class OnnxRuntimeRuntime(BackendRuntime):
    """The runtime part of the backend, which opens sessions."""

    load_options: ClassVar = {"threads": int}
    fork_safe = False  # ONNX Runtime's threads are gone in a forked process

    def init(self, blob: memoryview, compile_specs: Mapping[str, Any]) -> Delegate:
        return self.init_with_data(blob, (), compile_specs)

    def init_with_data(
        self, blob: memoryview, data: Sequence[memoryview], compile_specs: Mapping[str, Any]
    ) -> Delegate:
        provider, model = find(compile_specs["provider"]), unpack(blob, data, compile_specs)
        return OnnxDelegate(partial(_open, provider, model, compile_specs), model, provider)

    def runs_code(self, compile_specs: Mapping[str, Any]) -> bool:
        """Return true if the provider has options, because they may name libraries to load."""
        return bool(compile_specs.get("provider_options"))


def _open(provider: Provider, model: OnnxModel, specs: Mapping[str, Any], *, profile: str = "") -> Any:
    return open_session(model, settings(provider, specs), provider, profile=profile)
