"""From a model to one file: prefill, decode, what is known of the model, and its tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from delegate.compile import to_backend
from delegate.compiled import CompiledProgram
from delegate.errors import ConfigError, ExportError
from delegate.llm.aot.decoder import TYPES, Decoder, Head, Verifier
from delegate.llm.aot.source import Source
from delegate.llm.aot.stack import export_stack
from delegate.llm.aot.weights import WEIGHTS, with_weights
from delegate.plugins import one_line


@dataclass(frozen=True)
class Options:
    """How a model is exported.

    Args:
        context: how many tokens a conversation has room for.
        chunk: how many of a prompt prefill takes at once, at most.
        conversations: how many one context holds; where there are several, method `batch` decodes all in one call.
        weights: of the layers in decode; "int4" in blocks of 32.
        prefill_weights: of the layers in prefill and batch, which have more rows; None: the same, the smaller file.
        cache: the type of keys and values.
        guesses: of a smaller model, how many method `verify` looks at in one call, at most; 0: there is no such method.
        backends: in order of preference.
    """

    context: int = 2048
    chunk: int = 64
    conversations: int = 1
    weights: str = "int4"
    prefill_weights: str | None = None
    cache: str = "float32"
    guesses: int = 0
    backends: Sequence[str] = ("xnnpack",)

    def check(self) -> None:
        """Raises ConfigError for numbers that do not go together."""
        if not 2 <= self.chunk <= self.context:
            remedy = "use a chunk of at least 2 tokens, and a context that is not smaller than the chunk"
            raise ConfigError(f"a chunk of {self.chunk} in a context of {self.context}", remedy=remedy)
        if self.guesses < 0 or self.guesses >= self.context:
            raise ConfigError(f"{self.guesses} guesses in a context of {self.context}", remedy="use 4, or 0 for none")
        if self.conversations < 1:
            raise ConfigError(f"{self.conversations} conversations", remedy="use 1 or more")
        for name, given, known in (
            ("cache", self.cache, tuple(TYPES)),
            ("weights", self.weights, WEIGHTS),
            ("prefill_weights", self.prefill_weights or self.weights, WEIGHTS),
        ):
            if given not in known:
                raise ConfigError(f"unknown {name} {given!r}", remedy=f"choose one of: {', '.join(known)}")


class Data(nn.Module):
    """A method that returns bytes."""

    data: Tensor

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.register_buffer("data", torch.from_numpy(np.frombuffer(data, np.uint8).copy()))

    def forward(self) -> Tensor:
        return self.data.clone()


def methods(source: Source, options: Options) -> dict[str, ExportedProgram]:
    """The methods of the program, exported.

    Raises:
        ConfigError: the options do not go together, or not with the model.
        ExportError: torch cannot export it.
    """
    options.check()
    positions = source.model.config.max_position_embeddings
    if options.context > positions:
        remedy = f"use --context {positions} or less"
        raise ConfigError(f"the model supports {positions} positions, not {options.context}", remedy=remedy)
    decoders = {
        w: Decoder(with_weights(source.model, w), options.context, options.conversations, options.cache).eval()
        for w in dict.fromkeys((options.weights, options.prefill_weights or options.weights))
    }
    decode, prefill = decoders[options.weights], decoders[options.prefill_weights or options.weights]
    found = {
        "prefill": _export(prefill, 1, 3, ({1: Dim("length", min=2, max=options.chunk)},) * 2 + (None,)),
        "decode": _export(decode, 1, 1),
        "head": _head(decode, 1),
        "about": torch.export.export(Data(json.dumps(about(source, options)).encode()), ()),
    }
    if options.conversations > 1:
        found["batch"] = _export(prefill, options.conversations, 1, (_upto(0, options.conversations),) * 3)
    if options.guesses:
        sizes = _upto(1, options.guesses + 1)
        found["verify"] = _export(Verifier(decode), 1, options.guesses + 1, (sizes, sizes, None))
    rows = max(options.conversations, options.guesses + 1)
    if rows > 1:
        found["heads"] = _head(decode, rows, (_upto(0, rows),))
    if source.tokenizer:
        found["tokenizer"] = torch.export.export(Data(source.tokenizer), ())
    return found


def _upto(dimension: int, size: int) -> dict[int, Any] | None:
    """That a dimension is dynamic, from two on; None where it cannot be anything but two."""
    return {dimension: Dim("size", min=2, max=size)} if size > 2 else None


def _head(decoder: Decoder, rows: int, sizes: Any = None) -> ExportedProgram:
    hidden = torch.zeros(rows, decoder.model.config.hidden_size)
    with _errors():
        return torch.export.export(Head(decoder.model), (hidden,), dynamic_shapes=sizes)


def _export(decoder: Decoder | Verifier, batch: int, length: int, sizes: Any = None) -> ExportedProgram:
    positions = torch.arange(length).expand(batch, length).contiguous()
    inputs = (torch.zeros(batch, length, dtype=torch.int64), positions, torch.arange(batch))
    layers = next(name for name, part in decoder.named_modules() if part is decoder.model.base_model.layers)
    with _errors():
        return export_stack(decoder, (layers, "keys", "values"), inputs, sizes)


@contextmanager
def _errors() -> Iterator[None]:
    """Return a context for exports without gradients; ExportError is raised for whatever torch raises."""
    try:
        with torch.no_grad():
            yield
    except Exception as error:  # of torch's many kinds: sizes of the configuration that do not go together
        remedy = "its sizes (heads, groups, channels) may be inconsistent: try the model in transformers"
        raise ExportError(f"torch cannot export the model: {one_line(error)}", remedy=remedy) from error


def about(source: Source, options: Options) -> dict[str, Any]:
    """What those who run the program have to know."""
    return {
        "family": source.model.config.model_type,
        "context": options.context,
        "chunk": options.chunk,
        "conversations": options.conversations,
        "guesses": options.guesses,
        "vocabulary": source.model.config.vocab_size,
        "weights": options.weights,
        "cache": options.cache,
        "ends": source.ends,
    }


def export(source: Source, path: Path, options: Options) -> CompiledProgram:
    """Compile and save; what was at `path` stays where that fails.

    Raises:
        DelegateError: as `methods`, or it cannot be lowered or written.
    """
    program = to_backend(methods(source, options), list(options.backends))
    program.save(path)
    return program
