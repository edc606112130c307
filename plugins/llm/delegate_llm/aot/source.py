"""The source of a model: a folder of safetensors with its tokenizer, or a configuration, for random weights."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn

from delegate.common.files import foreign_format, read_bytes, require_regular
from delegate.errors import ExportError, ProgramError
from delegate_llm.aot.chat_template import read_chat_format, read_object
from delegate_llm.aot.decoder import ATTENTION
from delegate_llm.aot.hugging_face import transformers
from delegate_llm.runtime.about import ChatFormat
from delegate_llm.runtime.tokenizer import Tokenizer
from delegate_llm.runtime.tokenizer_format import MOST_BYTES

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi", "phi3")
HALF = {torch.bfloat16, torch.float16}  # float32 has all their numbers
# Ropes whose angles do not depend on the length of the text; longrope's do above a length, which the export rejects.
ROPES = ("default", "linear", "llama3", "yarn", "longrope", "proportional")


@dataclass(frozen=True)
class Source:
    """A model with all that its program needs.

    Args:
        config: the configuration of the model.
        load: returns a model. Linear layers and the embedding have the type of their file, and all else is float32.
            The first call returns the model that `read` loaded, later calls load it again. Weights of a folder are
            mapped from their file, each separately. So a weight takes memory only while it is read and the caller has
            not deleted it.
        tokenizer: the text of its tokenizer.json; empty: there is none.
        ends: the tokens that end an answer.
        chat: the text around the messages of a chat; None: the model has no chat template.
        name: the name of the model's folder, by which adapters name their base; empty: unknown.
    """

    config: transformers.PretrainedConfig
    load: Callable[[], transformers.PreTrainedModel]
    tokenizer: bytes = b""
    ends: list[int] = field(default_factory=list)
    chat: ChatFormat | None = None
    name: str = ""


def read(path: Path, without_tokenizer: bool = False) -> Source:
    """Return the model at a path.

    Args:
        path: a folder that transformers saved, or a configuration in JSON, for random weights.
        without_tokenizer: require no tokenizer.json, and read none.

    Raises:
        ExportError: the folder has no model, its family is not supported, or a file is missing or damaged.
    """
    if os.path.isfile(path):
        if name := foreign_format(path):
            what = f"this is a model in the format {name}, not a folder or configuration of transformers"
            remedy = "pass the model's folder with config.json, *.safetensors and tokenizer.json"
            raise ExportError(what, where=str(path), remedy=remedy)
        model = _build(_config(path), path)
        return Source(model.config, lambda: copy.deepcopy(model, {id(p): p for p in model.parameters()}))
    for pattern in ("config.json", "*.safetensors", *(() if without_tokenizer else ("tokenizer.json",))):
        if not os.path.isdir(path) or not any(path.glob(pattern)):
            remedy = "pass a folder in the format of transformers, or a configuration in JSON for random weights"
            if pattern == "tokenizer.json":
                remedy = "save the tokenizer next to the weights, or use --no-tokenizer and pass token numbers"
            raise ExportError(f"there is no {pattern}", where=str(path), remedy=remedy)
    config = _config(path / "config.json")
    ends, loaded = _ends(path, config), [_load(path, config)]  # raises the errors of the files

    def load() -> transformers.PreTrainedModel:
        return loaded.pop() if loaded else _load(path, config)

    source = Source(config, load, ends=ends, name=_name(path.resolve()))
    if without_tokenizer:
        return source
    tokenizer = _tokenizer(path / "tokenizer.json", config.vocab_size)
    return replace(source, tokenizer=tokenizer, chat=read_chat_format(path))


def _name(folder: Path) -> str:
    """Return the name of a model's folder; in a hub's cache this is models--OWNER--NAME/snapshots/REVISION."""
    return folder.parents[1].name.rpartition("--")[2] if folder.parent.name == "snapshots" else folder.name


def _config(path: Path) -> transformers.PretrainedConfig:
    values = read_object(path, "this is not a configuration of transformers")
    family = values.get("model_type")
    if family not in FAMILIES:
        raise ExportError(f"unknown family {family!r}", where=str(path), remedy=f"supported are {', '.join(FAMILIES)}")
    try:
        config = transformers.CONFIG_MAPPING[family].from_dict(values)
    except Exception as error:  # classes of transformers, for values that it rejects
        what, remedy = "transformers rejects the configuration", " ".join(str(error).split())
        raise ExportError(what, where=str(path), remedy=remedy) from error
    _check(config, path)
    config._attn_implementation = ATTENTION
    return config


def _check(config: transformers.PretrainedConfig, path: Path) -> None:
    ropes = getattr(config, "rope_parameters", None) or {}
    if not isinstance(ropes, dict):
        raise ExportError(f"rope_parameters is {ropes!r}", where=str(path), remedy="it must be an object")
    for rope in [ropes, *ropes.values()]:
        kind = rope.get("rope_type", "default") if isinstance(rope, dict) else "default"
        if kind not in ROPES:
            what = "rope 'dynamic' depends on the length of the text" if kind == "dynamic" else f"unknown rope {kind!r}"
            raise ExportError(what, where=str(path), remedy=f"supported are {', '.join(ROPES)}")
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
    except Exception as error:  # sizes that do not fit together, which transformers reports in several classes
        raise ExportError("transformers cannot build the model", where=str(path), remedy=str(error)) from error
    return model.eval().requires_grad_(False)


def _load(path: Path, config: transformers.PretrainedConfig) -> transformers.PreTrainedModel:
    kind = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    try:
        weights = _weights(path)
        model, loading = kind.from_pretrained(
            None, config=config, state_dict=weights, dtype=_type(weights.values()), output_loading_info=True
        )
    except Exception as error:  # damaged files, which safetensors and transformers report in several classes
        raise ExportError("its weights cannot be read", where=str(path), remedy=str(error)) from error
    model.name_or_path = config.name_or_path = str(path)  # by which PEFT names the base of an adapter
    wrong = [*loading["missing_keys"], *loading["mismatched_keys"]]
    if wrong:
        what = f"weights are missing or have another shape: {wrong[0]}"
        raise ExportError(what, where=str(path), remedy="save it again")
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if name != "weight" or not isinstance(module, nn.Linear | nn.Embedding):
                setattr(module, name, nn.Parameter(parameter.float()))
        if (scale := getattr(module, "scalar_embed_scale", None)) is not None:  # of Gemma: a buffer has less digits
            module.embed_scale = torch.tensor(scale)
    return model.eval().requires_grad_(False)


def _weights(path: Path) -> dict[str, Tensor]:
    """Return the weights of a folder; each has a mapping of its own, which is closed when the weight is deleted."""
    files = {"model.safetensors"}
    if not os.path.exists(path / "model.safetensors"):  # a folder may have files of other programs, too
        files = {*json.loads(read_bytes(path / "model.safetensors.index.json"))["weight_map"].values()}
    weights: dict[str, Tensor] = {}
    for file in (path / name for name in sorted(files)):
        require_regular(file)
        with safe_open(file, "pt") as opened:
            names = list(opened.keys())
        for name in names:
            with safe_open(file, "pt") as opened:
                weights[name] = opened.get_tensor(name)
    return weights


def _type(weights: Iterable[Tensor]) -> torch.dtype:
    """Return the type in which weights are loaded: the type in their file, if it is one type of half precision."""
    types = {weight.dtype for weight in weights}
    return types.pop() if len(types) == 1 and types <= HALF else torch.float32


def _tokenizer(path: Path, vocabulary: int) -> bytes:
    """Return the text of a tokenizer.

    Added tokens may be beyond the tokens of the model, as Gemma's image tokens are.
    """
    try:
        text = read_bytes(path, MOST_BYTES)
        Tokenizer(text, vocabulary)
    except (OSError, ValueError) as error:
        raise ExportError("this is not a tokenizer", where=str(path), remedy=str(error)) from error
    except ProgramError as error:
        raise ExportError(error.what, where=str(path), remedy=error.remedy) from error
    return text


def _ends(path: Path, config: transformers.PretrainedConfig) -> list[int]:
    """Return the tokens that end an answer, of the generation configuration if there is one."""
    file = path / "generation_config.json"
    generation = read_object(file, "this is not a generation configuration") if os.path.exists(file) else {}
    tokens = generation.get("eos_token_id")
    tokens = config.eos_token_id if tokens is None else tokens
    ends = [] if tokens is None else tokens if isinstance(tokens, list) else [tokens]
    if wrong := [end for end in ends if type(end) is not int]:
        raise ExportError(f"eos_token_id is {wrong[0]!r}", where=str(path), remedy="it must be a token number")
    return ends
