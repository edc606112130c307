"""The options of `torch.compile(..., backend="delegate", options=...)`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from delegate.config import Config, load_config
from delegate.errors import ConfigError, did_you_mean
from delegate.kernels.libraries import KernelRequest
from delegate.selection import ConfigSource, Request

TORCH = "aten"  # torch's own kernels; torch is always installed here


@dataclass(frozen=True)
class CompileOptions:
    """The options for lowering graphs.

    Args:
        backends, config, kernels, cache: see `delegate.to_backend`. If neither this nor the configuration names
            kernels, torch's own kernels run the nodes that no backend runs.
        freeze: if parameters and buffers are compiled in as constants when no gradients are required. If one of them
            is replaced or written to, the graph is compiled again. Torch does not notice writes through `tensor.data`,
            or by other libraries to the same memory.
    """

    backends: Request = None
    config: ConfigSource = None
    kernels: KernelRequest | None = None
    cache: bool | None = None
    freeze: bool = True

    @classmethod
    def of(cls, options: Mapping[str, Any] | None) -> CompileOptions:
        """Return the options that torch passes; raise ConfigError for an unknown option."""
        known = [field.name for field in fields(cls)]
        for name in options or {}:
            if name not in known:
                where = "options of torch.compile"
                raise ConfigError(f"there is no option {name!r}", where=where, remedy=did_you_mean(name, known))
        settings = cls(**(options or {}))
        if settings.quantizes and not settings.freeze:
            what = "quantization: weights that are inputs of a graph cannot be quantized"
            raise ConfigError(what, where="options of torch.compile", remedy='leave "freeze" out, or "quantization"')
        return settings

    @cached_property
    def configuration(self) -> Config:
        """The configuration, loaded."""
        return load_config(self.config if self.config is not None else {})

    @property
    def quantizes(self) -> bool:
        """Return if graphs are quantized before they are lowered."""
        return self.configuration.quantization is not None

    def require_whole(self, graph_break: str) -> None:
        """Raise ConfigError for calibration data, which is for the inputs of a model, if torch splits the model.

        Args:
            graph_break: the reason why the graph ends before the model does; empty if it does not.
        """
        section = self.configuration.quantization
        if graph_break and section is not None and section.calibration is not None:
            what = (
                f"quantization.calibration: the data is for a model's inputs, and torch splits the model: {graph_break}"
            )
            remedy = "take out the cause, which fullgraph=True names, or give a dynamic scheme"
            raise ConfigError(what, where="options of torch.compile", remedy=remedy)

    def require_no_samples(self) -> None:
        """Raise ConfigError for options that need a graph's inputs or weights: graphs of gradients have neither."""
        config = self.configuration
        needing = {
            "quantization": self.quantizes,
            "verify": config.verify is not None,
            "placement.policy": config.placement.policy == "measured",
        }
        for key in (key for key, is_set in needing.items() if is_set):
            what = f"{key}: it is for graphs without gradients, and these are computed here"
            remedy = "call the model under torch.no_grad(), or leave the key out"
            raise ConfigError(what, where="options of torch.compile", remedy=remedy)
