"""From a model to one file: prefill, decode, head, the description of the model, and its tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
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
from delegate.placement.strategy import ByPreference
from delegate.plugins import one_line
from delegate.registry import default_registry
from delegate.selection import select
from delegate_llm.aot.decoder import Decoder, Detach, Head, Slots
from delegate_llm.aot.engines import MethodEngine, choose_engines, partitioners, shorten
from delegate_llm.aot.hugging_face import transformers
from delegate_llm.aot.source import Source
from delegate_llm.aot.stack import export_stack
from delegate_llm.aot.weights import calibration_rows, quantize_weights, release_free_memory
from delegate_llm.options import Options
from delegate_llm.runtime.tokenizer import Tokenizer, parse_tokens

_MOST_CALIBRATION = 2**30  # bytes of a text
GRAPHS = frozenset({"prefill", "decode", "verify", "head", "heads"})  # the methods that compute


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
        slots = Slots(model, options.lora_rank, options.lora_targets.replace(",", " ").split(), options.conversations)
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


def measure_engines(
    source: Source, options: Options, progress: Callable[[str], None], backends: Sequence[str] | None = None
) -> list[MethodEngine]:
    """Measure the first layers of a model on the backends, and return the choice for each method.

    Args:
        source: the model, from `read`.
        options: see there.
        progress: called with short progress texts.
        backends: The candidates, the preferred one first. None: all that work on this machine.

    Returns:
        The choices; empty if there is one backend only.

    Raises:
        DelegateError: the options are wrong, or the first layers cannot be exported or lowered.
    """
    candidates = tuple(select(None if backends is None else list(backends), None, default_registry()).backends)
    if len(candidates) < 2:
        return []
    if options.calibration is not None:
        _calibration(source, options.calibration)  # its errors come before the measurement
    quick = replace(options, rounding="nearest", calibration=None)  # equally fast
    small = replace(source, config=shorten(source.load()).config, load=lambda: shorten(source.load()))
    exported = methods(small, quick)
    measured = {name: program for name, program in exported.items() if name in GRAPHS}
    decode, prefill = ("decode", "verify"), ("prefill",)  # guesses are checked with the numbers of decode
    layers: tuple[tuple[tuple[str, ...], ...], ...] = ((decode, prefill),)
    if options.prefill_weights not in (None, options.weights):
        layers = ((decode,), (prefill,))
    elif options.conversations > 1:  # a batch computes answers by prefill
        layers = (((*decode, *prefill),),)
    return choose_engines(measured, (*layers, (("head", "heads"),)), candidates, progress)


def export(
    source: Source,
    path: Path,
    options: Options,
    backends: Sequence[str] | Sequence[MethodEngine] | None = ("xnnpack",),
) -> CompiledProgram:
    """Compile a model, and save it; if that fails, an earlier file at `path` stays.

    Args:
        source: the model, from `read`.
        path: the program file to write.
        options: see there.
        backends: Backends in order of preference, or the choices of `measure_engines`. None: all that work on this
            machine.

    Raises:
        DelegateError: the options are wrong, or the model cannot be exported, lowered or written.
    """
    engines = [backend for backend in backends or () if isinstance(backend, MethodEngine)]
    names = None if backends is None else [backend for backend in backends if isinstance(backend, str)]
    # Methods that share weights have one backend, which estimates of each alone would not give.
    placed = partitioners(engines) if engines else names
    program = lower_owned(methods(source, options), placed, placement=ByPreference())
    program.save(path)
    return program
