"""Models of transformers by the names of their classes: text, padded or not, pairs of texts, images, speech."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from tests.support.zoo import Inputs

Build = Callable[[], nn.Module]
Entry = tuple[Build, Callable[[], Inputs]]

WORDS = 200
_SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
_ENCODER = {**_SIZES, "vocab_size": WORDS, "max_position_embeddings": 64}
_DECODER = {**_ENCODER, "num_key_value_heads": 2, "use_cache": False, "bos_token_id": 1, "eos_token_id": 2}
_PARTS = {"layers": 2, "attention_heads": 4, "ffn_dim": 128}
_PAIR = {
    "d_model": 64, "vocab_size": WORDS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1, "max_position_embeddings": 64, "use_cache": False,
    **{f"{half}_{what}": n for half in ("encoder", "decoder") for what, n in _PARTS.items()},
}  # fmt: skip


def _tokens(length: int = 20) -> torch.Tensor:
    return torch.randint(3, WORDS, (2, length))


def masked() -> Inputs:
    """Tokens, and which of them count."""
    mask = torch.ones(2, 20, dtype=torch.long)
    mask[1, 13:] = 0
    return _tokens(), mask


def pairs() -> Inputs:
    """Tokens, which of them count, and tokens to go on from."""
    return *masked(), _tokens(9)


class Named(nn.Module):
    """A module whose arguments are given by name."""

    def __init__(self, build: Build, *names: str) -> None:
        super().__init__()
        self.module, self.names = build(), names

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.module(**dict(zip(self.names, inputs, strict=True)))


def _by_name(build: Build) -> Build:
    return lambda: Named(build, "input_ids", "attention_mask")


def _transformers(cls: str, config: str, **shape: Any) -> Build:
    def build() -> nn.Module:
        import transformers

        return getattr(transformers, cls)(getattr(transformers, config)(**shape))

    return build


_MASKED: Mapping[str, Build] = {
    "bert_masked": _transformers("BertModel", "BertConfig", **_ENCODER),
    "roberta_masked": _transformers("RobertaModel", "RobertaConfig", **_ENCODER),
    "electra_masked": _transformers("ElectraModel", "ElectraConfig", **_ENCODER, embedding_size=32),
    "albert_masked": _transformers("AlbertModel", "AlbertConfig", **_ENCODER, embedding_size=32),
    "mpnet_masked": _transformers("MPNetModel", "MPNetConfig", **_ENCODER),
    "deberta_masked": _transformers("DebertaV2Model", "DebertaV2Config", **_ENCODER),
    "camembert_masked": _transformers("CamembertModel", "CamembertConfig", **_ENCODER),
    "ernie_masked": _transformers("ErnieModel", "ErnieConfig", **_ENCODER),
    "megatron_bert_masked": _transformers("MegatronBertModel", "MegatronBertConfig", **_ENCODER),
    "distilbert_masked": _transformers(
        "DistilBertModel", "DistilBertConfig", dim=64, n_layers=2, n_heads=4, hidden_dim=128, vocab_size=WORDS
    ),
    "mistral_masked": _transformers("MistralForCausalLM", "MistralConfig", **_DECODER),
    "gemma_masked": _transformers("GemmaForCausalLM", "GemmaConfig", **_DECODER, head_dim=16),
    "phi_masked": _transformers("PhiForCausalLM", "PhiConfig", **_DECODER),
    "stablelm_masked": _transformers("StableLmForCausalLM", "StableLmConfig", **_DECODER),
    "gpt_neox_masked": _transformers("GPTNeoXForCausalLM", "GPTNeoXConfig", **_ENCODER, use_cache=False),
    "opt_masked": _transformers(
        "OPTForCausalLM", "OPTConfig", hidden_size=64, num_hidden_layers=2, num_attention_heads=4, ffn_dim=128,
        vocab_size=WORDS, max_position_embeddings=64, word_embed_proj_dim=64, use_cache=False,
    ),
    "bloom_masked": _by_name(_transformers(
        "BloomForCausalLM", "BloomConfig", hidden_size=64, n_layer=2, n_head=4, vocab_size=WORDS, use_cache=False
    )),
    "falcon_masked": _by_name(_transformers(
        "FalconForCausalLM", "FalconConfig", hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        vocab_size=WORDS, use_cache=False,
    )),
    "mixtral": _transformers(
        "MixtralForCausalLM", "MixtralConfig", **_DECODER, num_local_experts=4, num_experts_per_tok=2
    ),
    "qwen2_moe": _transformers(
        "Qwen2MoeForCausalLM", "Qwen2MoeConfig", **_DECODER, num_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=32, shared_expert_intermediate_size=64,
    ),
    "olmoe": _transformers("OlmoeForCausalLM", "OlmoeConfig", **_DECODER, num_experts=4, num_experts_per_tok=2),
}  # fmt: skip

_PAIRS: Mapping[str, Build] = {
    "bart": _transformers("BartModel", "BartConfig", **_PAIR),
    "mbart": _transformers("MBartModel", "MBartConfig", **_PAIR),
    "marian": _transformers("MarianModel", "MarianConfig", **_PAIR),
    "pegasus": _transformers("PegasusModel", "PegasusConfig", **_PAIR),
    "t5": _transformers(
        "T5Model", "T5Config", d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, vocab_size=WORDS,
        decoder_start_token_id=0, use_cache=False,
    ),
}  # fmt: skip

_VISION = {**_SIZES, "image_size": 32, "patch_size": 8}


def _clip() -> nn.Module:
    import transformers

    text = {**_ENCODER, "eos_token_id": WORDS - 1, "bos_token_id": 1, "pad_token_id": 0}
    return transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=_VISION, projection_dim=32))


def _clip_inputs() -> Inputs:
    tokens, mask = masked()
    tokens[:, -1] = WORDS - 1
    return tokens, torch.randn(2, 3, 32, 32), mask


def _speech() -> Inputs:
    return (torch.randn(1, 3200),)


_WAVES = {**_SIZES, "conv_dim": (32, 32, 32), "conv_stride": (5, 2, 2), "conv_kernel": (10, 3, 2),
          "num_feat_extract_layers": 3, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}  # fmt: skip

_OTHERS: Mapping[str, Entry] = {
    "clip": (_clip, _clip_inputs),
    "dinov2": (_transformers("Dinov2Model", "Dinov2Config", **_VISION), lambda: (torch.randn(1, 3, 32, 32),)),
    "segformer": (
        _transformers("SegformerForSemanticSegmentation", "SegformerConfig", hidden_sizes=[16, 32, 48, 64],
                      depths=[1, 1, 1, 1], decoder_hidden_size=32, num_attention_heads=[1, 2, 3, 4]),
        lambda: (torch.randn(1, 3, 64, 64),),
    ),
    "wav2vec2": (_transformers("Wav2Vec2Model", "Wav2Vec2Config", **_WAVES), _speech),
    "hubert": (_transformers("HubertModel", "HubertConfig", **_WAVES), _speech),
}  # fmt: skip

_VOCABULARY = 500


def _words() -> Inputs:
    return (torch.randint(0, _VOCABULARY, (1, 24)),)


def _spectrogram() -> Inputs:
    return (torch.randn(1, 16, 60),)


_WORDS = {"vocab_size": _VOCABULARY, "bos_token_id": 1, "eos_token_id": 2}
_CAUSAL = {**_SIZES, "num_key_value_heads": 2, "vocab_size": _VOCABULARY, "use_cache": False}
_LANGUAGE: Mapping[str, Build] = {
    "bert": _transformers("BertModel", "BertConfig", **_SIZES, vocab_size=_VOCABULARY),
    "distilbert": _transformers(
        "DistilBertModel", "DistilBertConfig", dim=64, n_layers=2, n_heads=4, hidden_dim=128, vocab_size=_VOCABULARY
    ),
    "gpt2": _transformers("GPT2LMHeadModel", "GPT2Config", n_embd=64, n_layer=2, n_head=4, use_cache=False, **_WORDS),
    "llama": _transformers("LlamaForCausalLM", "LlamaConfig", **_CAUSAL),
    "qwen3": _transformers("Qwen3ForCausalLM", "Qwen3Config", **_CAUSAL, head_dim=16),
    "t5_encoder": _transformers(
        "T5EncoderModel", "T5Config", d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, vocab_size=_VOCABULARY
    ),
}


def _whisper() -> nn.Module:
    shape = {"num_mel_bins": 16, "max_source_positions": 30, "d_model": 64, "vocab_size": _VOCABULARY}
    layers = {f"{half}_layers": 2 for half in ("encoder", "decoder")}
    heads = {f"{half}_attention_heads": 4 for half in ("encoder", "decoder")}
    sizes = {f"{half}_ffn_dim": 128 for half in ("encoder", "decoder")}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    return _transformers("WhisperModel", "WhisperConfig", **shape, **layers, **heads, **sizes, **tokens)()


LANGUAGE: Mapping[str, Entry] = {
    **{name: (build, _words) for name, build in _LANGUAGE.items()},
    "whisper_encoder": (lambda: _whisper().get_encoder(), _spectrogram),
    **{name: (build, masked) for name, build in _MASKED.items()},
    **{name: (build, pairs) for name, build in _PAIRS.items()},
    **_OTHERS,
}
