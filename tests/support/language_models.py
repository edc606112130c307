"""Small random language models, their programs, and the tokens that transformers itself generates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from delegate_llm.runtime.model import Model

from tests.support.zoo import libraries

with libraries():
    import tokenizers
    import transformers
    from delegate_llm import Options, export
    from delegate_llm.aot.source import Source, read

SHAPE = {
    "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "initializer_range": 0.3, "eos_token_id": 299,
    "pad_token_id": 298, "bos_token_id": 297,
}  # fmt: skip
FAMILIES = {
    "llama": {"tie_word_embeddings": False, "rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0,
              "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}},
    "qwen3": {"head_dim": 16, "tie_word_embeddings": True},
    "gemma": {"head_dim": 32},
    "gemma2": {"head_dim": 16, "sliding_window": 7, "query_pre_attn_scalar": 16, "initializer_range": 0.05},
    "gemma3_text": {"head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 16, "num_hidden_layers": 7,
                    "initializer_range": 0.05},
    "mistral": {"sliding_window": 7},
    "qwen2": {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0,
              "original_max_position_embeddings": 32}},
    "phi": {"tie_word_embeddings": False, "partial_rotary_factor": 0.5},
    "phi3": {"sliding_window": 50, "original_max_position_embeddings": 64, "rope_parameters": {"rope_type": "longrope",
             "rope_theta": 1e4, "partial_rotary_factor": 0.5, "original_max_position_embeddings": 64,
             "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 5.0]}},
    "llama with biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4,
                          "head_dim": 12, "rope_theta": 5e3, "rope_scaling": {"type": "linear", "factor": 3.0}},
    "mistral with one group": {"model_type": "mistral", "sliding_window": None, "num_key_value_heads": 1,
                               "head_dim": 24, "tie_word_embeddings": True, "rope_parameters": {"rope_type": "yarn",
                               "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32,
                               "attention_factor": 0.8}},
    "llama with parts of heads": {"model_type": "llama", "rope_parameters": {
                                  "rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    "phi with norms": {"model_type": "phi", "qk_layernorm": True},
    "phi3 without groups": {"model_type": "phi3", "num_key_value_heads": 4, "sliding_window": 6, "rope_parameters": {
                            "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}},
    "qwen2 with a window in one layer": {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 5,
                                         "max_window_layers": 1, "tie_word_embeddings": True},
}  # fmt: skip
PROMPT = [5, 17, 3, 42, 8, 77, 121, 9, 200, 31, 64]
TOKENS = 24


def configuration(folder: Path, family: str, **changes: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": family, **SHAPE, **FAMILIES.get(family, {}), **changes}))
    return path


def made(folder: Path, family: str, backends: Sequence[str] = ("xnnpack",), **options: object) -> tuple[Source, Model]:
    """A small random model, and the program of it."""
    with libraries():
        source = read(configuration(folder, family))
        chosen = Options(**{"context": 64, "chunk": 8, "weights": "float32", **options})
        export(source, folder / "model.dlg", chosen, backends)
    return source, Model(folder / "model.dlg", trust_code=True)  # a DSP's partitions are machine code


def reference(source: Source) -> torch.nn.Module:
    """The same model with transformers' own attention."""
    config = type(source.config).from_dict(source.config.to_dict())
    config._attn_implementation = "eager"
    with libraries():
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.load_state_dict(source.load().state_dict())
    return model


def eager(source: Source, prompt: list[int], count: int = TOKENS) -> list[int]:
    """What it generates greedily, without a cache."""
    model, tokens = reference(source), list(prompt)
    with torch.no_grad():
        while len(tokens) < len(prompt) + count:
            tokens.append(int(model(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def tokenizer() -> tokenizers.Tokenizer:
    """Bytes as tokens, so that any text can be written, and characters of several."""
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: i for i, letter in enumerate(letters)}
    found = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    found.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = tokenizers.decoders.ByteLevel()
    return found


def save_model(path: Path) -> Path:
    """Save a model with its tokenizer, as transformers does."""
    with libraries():
        read(configuration(path, "llama")).load().save_pretrained(path)
    tokenizer().save(str(path / "tokenizer.json"))
    return path
