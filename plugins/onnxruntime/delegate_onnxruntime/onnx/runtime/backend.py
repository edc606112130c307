"""The shared runtime part of backends on ONNX Runtime: sessions on one provider, by the compile specs of a delegate."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from delegate.runtime.backend import BackendRuntime, Delegate
from delegate_onnxruntime.onnx.runtime.blob import OnnxModel, unpack
from delegate_onnxruntime.onnx.runtime.provider import Provider
from delegate_onnxruntime.onnx.runtime.session import OnnxDelegate, open_session, session_options


class OnnxRuntime(BackendRuntime):
    """The runtime part of a backend on one provider; its AOT part opens sessions by the same methods."""

    @classmethod
    @abstractmethod
    def provider(cls, specs: Mapping[str, Any]) -> Provider:
        """Return the provider of compile specs; raise BackendUnavailable if it is absent."""

    @classmethod
    @abstractmethod
    def provider_options(cls, specs: Mapping[str, Any]) -> dict[str, str]:
        """Return the provider's own options for compile specs."""

    @classmethod
    def settings(cls, specs: Mapping[str, Any], graph: bytes = b"") -> Any:
        """Return session options for compile specs; they belong to one session and are used once.

        Args:
            specs: the compile specs.
            graph: the serialized graph; without it, the options suit any graph.
        """
        return session_options(cls.provider(specs), cls.provider_options(specs), threads=specs.get("threads", 0))

    @classmethod
    def open(cls, model: OnnxModel, specs: Mapping[str, Any], *, profile: str = "") -> Any:
        """Return a session; see `open_session`."""
        return open_session(model, cls.settings(specs, model.graph), cls.provider(specs), profile=profile)

    def init(self, blob: memoryview, compile_specs: Mapping[str, Any]) -> Delegate:
        return self.init_with_data(blob, (), compile_specs)

    def init_with_data(
        self, blob: memoryview, data: Sequence[memoryview], compile_specs: Mapping[str, Any]
    ) -> Delegate:
        model = unpack(blob, data, compile_specs)
        return self.make_delegate(partial(self.open, model, compile_specs), model, self.provider(compile_specs))

    def make_delegate(self, open_: Any, model: OnnxModel, provider: Provider) -> Delegate:
        """Return the delegate that runs a model; see `OnnxDelegate`."""
        return OnnxDelegate(open_, model, provider)
