"""The options of `torch.compile(..., backend="delegate", options=...)`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from delegate.config import Config, load_config
from delegate.errors import ConfigError, did_you_mean
from delegate.kernels.libraries import Wanted
from delegate.selection import ConfigSource, Request

TORCH = "aten"  # torch's own kernels: here it is always installed


@dataclass(frozen=True)
class CompileOptions:
    """What graphs are lowered with.

    Args:
        backends, config, kernels, cache: as `delegate.to_backend` takes them; without kernels, here and in the
            configuration, torch's own run what no backend takes.
        freeze: whether parameters and buffers are compiled in as constants where no gradients are asked for. Where one
            of them is replaced or written to, the graph is compiled again. Torch does not see what is written through
            `tensor.data`, or by other libraries to the same memory.
    """

    backends: Request = None
    config: ConfigSource = None
    kernels: Wanted | None = None
    cache: bool | None = None
    freeze: bool = True

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> CompileOptions:
        """The options that torch hands over; raises ConfigError for one that is unknown."""
        known = [field.name for field in fields(cls)]
        for name in given or {}:
            if name not in known:
                where = "options of torch.compile"
                raise ConfigError(f"there is no option {name!r}", where=where, remedy=did_you_mean(name, known))
        made = cls(**(given or {}))
        if made.quantizes and not made.freeze:
            what = "quantization: weights that are inputs of a graph cannot be quantized"
            raise ConfigError(what, where="options of torch.compile", remedy='leave "freeze" out, or "quantization"')
        return made

    @cached_property
    def configuration(self) -> Config:
        """The configuration, loaded."""
        return load_config(self.config if self.config is not None else {})

    @property
    def quantizes(self) -> bool:
        """If graphs are quantized before they are lowered."""
        return self.configuration.quantization is not None

    def require_no_samples(self) -> None:
        """Raise ConfigError for what needs inputs of a graph, or its weights: graphs of gradients have neither."""
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
