"""From a model to one file: prefill, decode, head, the description of the model, and its tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from delegate.common.files import read_bytes
from delegate.compile import lower_owned
from delegate.compiled import CompiledProgram
from delegate.errors import ConfigError, ExportError
from delegate.placement.policy import ByPreference
from delegate.plugins import one_line
from delegate.registry import default_registry
from delegate.selection import select
from delegate_llm.aot.decoder import TYPES, Decoder, Detach, Head, Slots
from delegate_llm.aot.engines import MethodEngine, choose_engines, partitioners, shortened
from delegate_llm.aot.hugging_face import transformers
from delegate_llm.aot.source import Source
from delegate_llm.aot.stack import export_stack
from delegate_llm.aot.weights import (
    BLOCKS,
    INTEGERS,
    ROUNDINGS,
    WEIGHTS,
    calibration_rows,
    quantize_weights,
    release_free_memory,
)
from delegate_llm.runtime.tokenizer import Tokenizer, parse_tokens

_MOST_CALIBRATION = 2**30  # bytes of a text
GRAPHS = frozenset({"prefill", "decode", "verify", "head", "heads"})  # the methods that compute


@dataclass(frozen=True)
class Options:
    """Options of an export.

    Args:
        context: the maximum number of tokens in a conversation.
        chunk: the maximum number of prompt tokens in one call of prefill.
        conversations: the number in one context; one call of prefill computes tokens of several.
        weights: the type of linear layers in decode; "int4" in blocks.
        prefill_weights: their type in prefill, which has more rows; None: the same, for a smaller file.
        head_weights: The head's format, "int8" or "int4"; the head is float32 if `weights` is.
        block: the number of int4 weights that share a scale, one of `BLOCKS`.
        rounding: How int4 weights are rounded, one of `ROUNDINGS`.
        calibration: a text for the rounding "gptq"; without a tokenizer, token numbers such as 5,17,3.
        cache: the type of keys and values.
        guesses: the maximum number of guesses that method `verify` checks in one call; 0: no such method.
        lora_rank: the maximum rank of LoRA adapters, which each conversation may have for itself; 0: no adapters.
        lora_targets: the last names of the linear layers that adapters may change; empty: all but the head.
        backends: Backend names in order of preference. None: all that work on this machine; see `measure_engines` too.
    """

    context: int = 2048
    chunk: int = 64
    conversations: int = 1
    weights: str = "int4"
    prefill_weights: str | None = None
    head_weights: str = "int8"
    block: int = BLOCKS[0]
    rounding: str = "nearest"
    calibration: Path | None = None
    cache: str = "float32"
    guesses: int = 0
    lora_rank: int = 0
    lora_targets: Sequence[str] = ()
    backends: Sequence[str] | None = ("xnnpack",)

    def check(self) -> None:
        """Raise ConfigError if the options do not fit together."""
        if not 2 <= self.chunk <= self.context:
            remedy = "use a chunk of at least 2 tokens, and a context that is not smaller than the chunk"
            raise ConfigError(f"a chunk of {self.chunk} in a context of {self.context}", remedy=remedy)
        if self.guesses < 0 or self.guesses >= self.context:
            raise ConfigError(f"{self.guesses} guesses in a context of {self.context}", remedy="use 4, or 0 for none")
        if self.lora_rank < 0 or (self.lora_targets and not self.lora_rank):
            remedy = "use a rank of at least 1 for --lora-rank, or no --lora-targets"
            raise ConfigError(f"adapters of rank {self.lora_rank}", remedy=remedy)
        if self.conversations < 1:
            raise ConfigError(f"{self.conversations} conversations", remedy="use 1 or more")
        for name, value, known in (
            ("block", self.block, BLOCKS),
            ("cache", self.cache, tuple(TYPES)),
            ("weights", self.weights, WEIGHTS),
            ("prefill_weights", self.prefill_weights or self.weights, WEIGHTS),
            ("head_weights", self.head_weights, INTEGERS),
            ("rounding", self.rounding, ROUNDINGS),
        ):
            if value not in known:
                raise ConfigError(f"unknown {name} {value!r}", remedy=f"choose one of: {', '.join(map(str, known))}")
        if self.weights == "float32" and self.head_weights == "int4":
            raise ConfigError("a head in int4 for layers in float32", remedy="use --weights int4 or int8")
        if self.rounding != "nearest" and "int4" not in (self.weights, self.prefill_weights, self.head_weights):
            raise ConfigError(f"rounding {self.rounding!r} is for int4 weights", remedy="use --weights int4")
        if (self.rounding == "gptq") != (self.calibration is not None):
            what = "rounding 'gptq' needs a text" if self.calibration is None else "only rounding 'gptq' reads a text"
            raise ConfigError(what, where="calibration", remedy="use --rounding gptq and --calibration FILE together")


class Data(nn.Module):
    """A method that returns bytes."""

    data: Tensor

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.register_buffer("data", torch.from_numpy(np.frombuffer(data, np.uint8).copy()))

    def forward(self) -> Tensor:
        return self.data.clone()


def methods(source: Source, options: Options) -> dict[str, ExportedProgram]:
    """Return the exported methods of the program.

    Raises:
        ConfigError: the options do not fit together, or do not fit the model.
        ExportError: torch cannot export it.
    """
    options.check()
    positions = source.config.max_position_embeddings
    if options.context > positions:
        remedy = f"use --context {positions} or less"
        raise ConfigError(f"the model supports {positions} positions, not {options.context}", remedy=remedy)
    rows = None if options.calibration is None else _calibration(source, options.calibration)
    decode = prefill = _decoder(source, options.weights, options, rows)
    if options.prefill_weights not in (None, options.weights):
        prefill = _decoder(source, options.prefill_weights, options, rows, decode)
    release_free_memory()
    prefill.keys, prefill.values = decode.keys, decode.values  # one tensor for each state, so none is compared
    exported = {
        "prefill": _export(prefill, _calls(options)),
        "decode": _export(decode, 1),
        "head": _head(decode, 1),
        "about": torch.export.export(Data(json.dumps(about(source, options)).encode()), ()),
    }
    if options.lora_rank:
        exported["detach"] = torch.export.export(Detach(decode.model), (torch.zeros(1, dtype=torch.int64),))
    if options.guesses:
        exported["verify"] = _export(decode, options.guesses + 1)
    results = max(options.conversations, options.guesses + 1)
    if results > 1:
        exported["heads"] = _head(decode, results)
    if source.tokenizer:
        exported["tokenizer"] = torch.export.export(Data(source.tokenizer), ())
    return exported


def _decoder(
    source: Source, weights: str, options: Options, rows: Tensor | None, other: Decoder | None = None
) -> Decoder:
    """Return the decoder with this type of weights, and the slots of adapters.

    It shares the embedding and head of the other decoder if both are quantized.
    """
    slots = None
    model = source.load()
    _fix_rope(model, options.context)
    tables = None if other is None or options.weights == "float32" else other.model
    quantize_weights(model, weights, options.head_weights, options.block, options.rounding, rows, tables)
    if options.lora_rank:
        slots = Slots(model, options.lora_rank, options.lora_targets, options.conversations)
        model = slots.model
    return Decoder(model, options.context, options.conversations, options.cache, slots).eval()


def _calibration(source: Source, path: Path) -> Tensor:
    """Return the token rows of a calibration text; raises ConfigError or InputError if they do not fit."""
    try:
        text = read_bytes(path, _MOST_CALIBRATION).decode()
    except (OSError, ValueError) as error:
        what = f"the calibration text cannot be read: {one_line(error)}"
        raise ConfigError(what, where=str(path), remedy="give a text file in UTF-8") from error
    vocabulary = source.config.vocab_size
    tokenizer = Tokenizer(source.tokenizer, vocabulary) if source.tokenizer else None
    tokens = list(parse_tokens(text)) if tokenizer is None else tokenizer.encode(text)
    return calibration_rows(tokens, vocabulary, str(path))


def _fix_rope(model: transformers.PreTrainedModel, context: int) -> None:
    """Fix the angles of longrope to the angles of short texts, which the context must not exceed.

    Raises:
        ConfigError: the context needs both kinds of angles, so keys in the cache would change with its length.
    """
    rope = model.config.rope_parameters
    if rope.get("rope_type") != "longrope":
        return
    if context > (most := rope["original_max_position_embeddings"]):
        what = f"rope 'longrope' has other angles for texts of more than {most} tokens"
        raise ConfigError(what, remedy=f"use --context {most} or less")
    for module in model.modules():
        if getattr(module, "rope_type", None) == "longrope":
            module.rope_type = "default"  # keeps the angles, which are those of short texts


def _upto(size: int) -> dict[int, Any] | None:
    """Return a dynamic first dimension of 2 to `size`; None if it is static."""
    return {0: Dim("rows", min=2, max=size)} if size > 2 else None


def _calls(options: Options) -> int:
    """Return the maximum number of tokens in one call of prefill: a chunk, or a token of each conversation."""
    return max(options.chunk, options.conversations)


def _head(decoder: Decoder, rows: int) -> ExportedProgram:
    hidden = torch.zeros(rows, decoder.model.config.hidden_size)
    with _errors():
        return torch.export.export(Head(decoder.model), (hidden,), dynamic_shapes=(_upto(rows),))


def _export(decoder: Decoder, tokens: int) -> ExportedProgram:
    """Export a call of up to `tokens` tokens."""
    inputs = (torch.zeros(tokens, dtype=torch.int64), torch.arange(tokens), torch.zeros(tokens, dtype=torch.int64))
    layers = next(name for name, part in decoder.named_modules() if part is decoder.model.base_model.layers)
    with _errors():
        return export_stack(decoder, (layers, "keys", "values"), inputs, (_upto(tokens),) * 3)


@contextmanager
def _errors() -> Iterator[None]:
    """Return a context for exports without gradients; ExportError is raised for whatever torch raises."""
    try:
        with torch.no_grad():
            yield
    except Exception as error:  # many classes of torch: sizes of the configuration that do not fit together
        remedy = "its sizes (heads, groups, channels) may be inconsistent: try the model in transformers"
        raise ExportError(f"torch cannot export the model: {one_line(error)}", remedy=remedy) from error


def about(source: Source, options: Options) -> dict[str, Any]:
    """Return the description of the model that the runtime reads."""
    return {
        "family": source.config.model_type,
        "context": options.context,
        "chunk": _calls(options),
        "conversations": options.conversations,
        "guesses": options.guesses,
        "vocabulary": source.config.vocab_size,
        "weights": options.weights,
        "cache": options.cache,
        "lora_rank": options.lora_rank,
        "base": source.name,
        "ends": source.ends,
        "chat": source.chat and asdict(source.chat),
    }


def measure_engines(source: Source, options: Options, progress: Callable[[str], None]) -> list[MethodEngine]:
    """Measure the first layers of a model on the backends, and return the choice for each method.

    Args:
        source: the model, from `read`.
        options: see there.
        progress: called with short progress texts.

    Returns:
        The choices; empty if there is one backend only.

    Raises:
        DelegateError: the options are wrong, or the first layers cannot be exported or lowered.
    """
    backends = tuple(select(options.backends and list(options.backends), None, default_registry()).backends)
    if len(backends) < 2:
        return []
    if options.calibration is not None:
        _calibration(source, options.calibration)  # its errors come before the measurement
    quick = replace(options, rounding="nearest", calibration=None)  # equally fast
    small = replace(source, config=shortened(source.load()).config, load=lambda: shortened(source.load()))
    exported = methods(small, quick)
    measured = {name: program for name, program in exported.items() if name in GRAPHS}
    decode, prefill = ("decode", "verify"), ("prefill",)  # guesses are checked with the numbers of decode
    layers: tuple[tuple[tuple[str, ...], ...], ...] = ((decode, prefill),)
    if options.prefill_weights not in (None, options.weights):
        layers = ((decode,), (prefill,))
    elif options.conversations > 1:  # a batch computes answers by prefill
        layers = (((*decode, *prefill),),)
    return choose_engines(measured, (*layers, (("head", "heads"),)), backends, progress)


def export(source: Source, path: Path, options: Options, engines: Sequence[MethodEngine] = ()) -> CompiledProgram:
    """Compile a model, and save it; if that fails, an earlier file at `path` stays.

    Args:
        source: the model, from `read`.
        path: the program file to write.
        options: see there.
        engines: the backend of each method, from `measure_engines`; empty: the backends in order of preference.

    Raises:
        DelegateError: the options are wrong, or the model cannot be exported, lowered or written.
    """
    backends = partitioners(engines) if engines else options.backends and list(options.backends)
    # Methods that share weights have one backend, which estimates of each alone would not give.
    program = lower_owned(methods(source, options), backends, placement=ByPreference())
    program.save(path)
    return program
