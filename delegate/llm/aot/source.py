"""Where a model comes from: a folder of safetensors with its tokenizer, or a configuration, for random weights."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
import torch

from delegate.errors import ExportError
from delegate.llm.aot.decoder import ATTENTION
from delegate.llm.aot.hugging_face import transformers

FAMILIES = ("llama", "qwen3", "gemma", "gemma2", "gemma3_text")
ROPES = ("default", "linear", "llama3")  # whose angles do not depend on the length of the text


@dataclass(frozen=True)
class Source:
    """A model with all that a program of it needs.

    Args:
        model: in float32.
        tokenizer: the text of its tokenizer.json; empty: there is none.
        ends: tokens that end an answer.
    """

    model: transformers.PreTrainedModel
    tokenizer: bytes = b""
    ends: list[int] = field(default_factory=list)


def read(path: Path, without_tokenizer: bool = False) -> Source:
    """The model at a path: a folder, or a configuration in JSON.

    Raises:
        ExportError: there is none, its family is not known, or a file is missing.
    """
    if path.is_file():
        return Source(_build(_config(path), path))
    for pattern in ("config.json", "*.safetensors", *(() if without_tokenizer else ("tokenizer.json",))):
        if not any(path.glob(pattern)):
            remedy = "pass a folder in the format of transformers, or a configuration in JSON for random weights"
            if pattern == "tokenizer.json":
                remedy = "save the tokenizer next to the weights, or use --no-tokenizer and pass token numbers"
            raise ExportError(f"there is no {pattern}", where=str(path), remedy=remedy)
    config = _config(path / "config.json")
    model = _loaded(path, config)
    tokenizer = b"" if without_tokenizer else _tokenizer(path / "tokenizer.json", config.vocab_size)
    return Source(model, tokenizer, _ends(path, config))


def _config(path: Path) -> transformers.PretrainedConfig:
    try:
        said: dict[str, Any] = json.loads(path.read_text())
        family = said.get("model_type")
    except (ValueError, AttributeError, OSError) as error:
        raise ExportError("this is not a configuration of transformers", where=str(path), remedy=str(error)) from error
    if family not in FAMILIES:
        raise ExportError(f"unknown family {family!r}", where=str(path), remedy=f"supported are {', '.join(FAMILIES)}")
    try:
        config = transformers.CONFIG_MAPPING[family].from_dict(said)
    except Exception as error:  # of transformers' own kind, for values that it does not take
        what, said_of_it = "transformers rejects the configuration", " ".join(str(error).split())
        raise ExportError(what, where=str(path), remedy=said_of_it) from error
    _check(config, path)
    config._attn_implementation = ATTENTION
    return config


def _check(config: transformers.PretrainedConfig, path: Path) -> None:
    ropes = getattr(config, "rope_parameters", None) or {}
    for rope in [ropes, *ropes.values()]:
        kind = rope.get("rope_type", "default") if isinstance(rope, dict) else "default"
        if kind not in ROPES:
            known = f"supported are {', '.join(ROPES)}"
            raise ExportError(f"rope {kind!r} depends on the length of the text", where=str(path), remedy=known)
    if getattr(config, "use_bidirectional_attention", False):
        raise ExportError(
            "its attention is bidirectional, which a cache does not support",
            where=str(path),
            remedy="use a decoder model",
        )


def _build(config: transformers.PretrainedConfig, path: Path) -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    try:
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    except Exception as error:  # of sizes that do not go together, as transformers finds them
        raise ExportError("transformers cannot build the model", where=str(path), remedy=str(error)) from error
    return model.eval().requires_grad_(False)


def _loaded(path: Path, config: transformers.PretrainedConfig) -> transformers.PreTrainedModel:
    options = {"config": config, "dtype": torch.float32, "use_safetensors": True, "output_loading_info": True}
    try:
        model, said = transformers.AutoModelForCausalLM.from_pretrained(path, local_files_only=True, **options)
    except Exception as error:  # damaged files, as safetensors and transformers find them
        raise ExportError("its weights cannot be read", where=str(path), remedy=str(error)) from error
    odd = [*said["missing_keys"], *said["mismatched_keys"]]
    if odd:
        raise ExportError(
            f"weights are missing or have another shape: {odd[0]}", where=str(path), remedy="save it again"
        )
    return model.eval().requires_grad_(False)


def _tokenizer(path: Path, known: int) -> bytes:
    """Its text. Tokens that were added may lie beyond those that the model knows, as those of images do in Gemma's."""
    text = path.read_bytes()
    try:
        made = tokenizers.Tokenizer.from_buffer(text)
    except Exception as error:  # of the library's own kind
        raise ExportError("this is not a tokenizer", where=str(path), remedy=str(error)) from error
    last = max(made.get_vocab(with_added_tokens=False).values(), default=0)
    if last >= known:
        what = f"the tokenizer has tokens up to {last}, but the model has {known} tokens"
        raise ExportError(what, where=str(path), remedy="use the tokenizer that the model was trained with")
    return text


def _ends(path: Path, config: transformers.PretrainedConfig) -> list[int]:
    """The tokens that end an answer, of the configuration of generation where there is one."""
    file = path / "generation_config.json"
    try:
        said = json.loads(file.read_text()).get("eos_token_id") if file.exists() else None
    except (ValueError, AttributeError, OSError) as error:
        raise ExportError("this is not a generation configuration", where=str(file), remedy=str(error)) from error
    said = config.eos_token_id if said is None else said
    ends = [] if said is None else said if isinstance(said, list) else [said]
    if odd := [end for end in ends if type(end) is not int]:
        raise ExportError(f"eos_token_id is {odd[0]!r}", where=str(path), remedy="it must be a token number")
    return ends
