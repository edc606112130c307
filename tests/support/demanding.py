"""Demanding models: masks, mixtures of experts, graph networks, recommenders, radiance fields, speech, half types.

As small as the architecture allows, random weights; built without any download.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
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


# -- written out -------------------------------------------------------------------------------------------------------


class Encoder(nn.Module):
    """torch's own encoder, with padding."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        return self.layers(x, src_key_padding_mask=padding)


class Decoder(nn.Module):
    """torch's own decoder, over a memory with padding."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.TransformerDecoder(nn.TransformerDecoderLayer(32, 4, 64, batch_first=True), 2)

    def forward(self, x: torch.Tensor, memory: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        causal = torch.full((x.shape[1], x.shape[1]), -torch.inf).triu(1)
        return self.layers(x, memory, tgt_mask=causal, tgt_is_causal=True, memory_key_padding_mask=padding)


class ByHand(nn.Module):
    """Attention as tutorials write it: masked_fill before a softmax."""

    def __init__(self, layers: int = 12) -> None:
        super().__init__()
        self.inner = nn.ModuleList(nn.Linear(32, 96) for _ in range(layers))
        self.outer = nn.ModuleList(nn.Linear(32, 32) for _ in range(layers))

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        for inner, outer in zip(self.inner, self.outer, strict=True):
            q, k, v = (p.unflatten(-1, (4, 8)).transpose(1, 2) for p in inner(x).chunk(3, -1))
            scores = (q @ k.mT / 8**0.5).masked_fill(padding[:, None, None], -1e4)
            x = F.layer_norm(x + outer((scores.softmax(-1) @ v).transpose(1, 2).flatten(2)), (32,))
        return x


def _padded() -> Inputs:
    padding = torch.zeros(2, 20, dtype=torch.bool)
    padding[1, 12:] = True
    return torch.randn(2, 20, 32), padding


class Graph(nn.Module):
    """Messages along edges, gathered and summed up by index; `kind` is how.

    Args:
        kind: gcn, gat, gin or sage.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.layers = nn.ModuleList(nn.Linear(32 if kind == "sage" else 16, 16) for _ in range(3))
        self.score = nn.Linear(32, 1)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges
        ones = torch.ones(source.shape[0])
        degree = torch.zeros(x.shape[0]).index_add(0, target, ones).clamp(min=1)
        for layer in self.layers:
            messages = x[source]
            if self.kind == "gat":
                score = F.leaky_relu(self.score(torch.cat([messages, x[target]], -1)).squeeze(-1), 0.2).exp()
                total = torch.zeros(x.shape[0]).index_add(0, target, score)
                messages = messages * (score / (total[target] + 1e-9))[:, None]
            elif self.kind == "gcn":
                messages = messages * (degree[source] * degree[target]).rsqrt()[:, None]
            summed = torch.zeros_like(x).index_add(0, target, messages)
            if self.kind == "sage":
                x = layer(torch.cat([x, summed / degree[:, None]], -1)).relu()
            else:
                x = layer(x + summed if self.kind == "gin" else summed).relu()
        return x


def _edges() -> Inputs:
    return torch.randn(50, 16), torch.randint(0, 50, (2, 200))


class Recommender(nn.Module):
    """Embeddings of categories, their products and a tower; `kind` is dlrm, deepfm, wide or towers."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.tables = nn.ModuleList(nn.Embedding(100, 16) for _ in range(8))
        self.bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 16))
        self.top = nn.Sequential(nn.LazyLinear(64), nn.ReLU(), nn.Linear(64, 1))
        self.wide = nn.Linear(13, 1)

    def forward(self, numbers: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        found = [table(categories[:, i]) for i, table in enumerate(self.tables)]
        vectors = torch.stack([self.bottom(numbers), *found], 1)
        if self.kind == "towers":
            users, items = vectors[:, :5].mean(1), vectors[:, 5:].mean(1)
            return F.cosine_similarity(self.top(users).tanh() * users, items)
        if self.kind == "dlrm":
            row, column = torch.triu_indices(9, 9, 1)
            products = (vectors @ vectors.mT)[:, row, column]
            return self.top(torch.cat([vectors[:, 0], products], -1)).sigmoid()
        deep = self.top(vectors.flatten(1))
        if self.kind == "deepfm":
            deep = deep + 0.5 * (vectors.sum(1) ** 2 - (vectors**2).sum(1)).sum(-1, keepdim=True)
        return (deep + self.wide(numbers)).sigmoid()


def _categories() -> Inputs:
    return torch.randn(32, 13), torch.randint(0, 100, (32, 8))


def _recommender(kind: str) -> Build:
    def build() -> nn.Module:
        module = Recommender(kind)
        module(*_categories())  # makes what is lazy
        return module

    return build


class Radiance(nn.Module):
    """A radiance field along rays: sines of positions, a tower, colours summed up by what light is left."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(39, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, points: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        waves = points[..., None] * 2.0 ** torch.arange(6)
        found = self.tower(torch.cat([points, waves.sin().flatten(-2), waves.cos().flatten(-2)], -1))
        opaque = 1 - torch.exp(-F.softplus(found[..., 3]) * steps)
        left = torch.cumprod(torch.cat([torch.ones_like(opaque[:, :1]), 1 - opaque[:, :-1] + 1e-10], -1), -1)
        return ((opaque * left)[..., None] * found[..., :3].sigmoid()).sum(1)


class Halved(nn.Module):
    """A module in a half type, between float32."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.module, self.dtype = module.to(dtype), dtype

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        found = self.module(*(x.to(self.dtype) if x.is_floating_point() else x for x in inputs))
        return found.float()


def _halved(build: Build, dtype: torch.dtype) -> Build:
    return lambda: Halved(build(), dtype)


def _convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU6(), nn.Conv2d(16, 16, 3, 1, 1, groups=16), nn.SiLU(),
        nn.Conv2d(16, 32, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


_IMAGE = lambda: (torch.randn(1, 3, 64, 64),)  # noqa: E731
_WRITTEN: Mapping[str, Entry] = {
    "encoder_padded": (Encoder, _padded),
    "decoder_padded": (Decoder, lambda: (torch.randn(2, 7, 32), *_padded())),
    "attention_by_hand": (ByHand, _padded),
    **{kind: (lambda kind=kind: Graph(kind), _edges) for kind in ("gcn", "gat", "gin", "sage")},  # type: ignore[misc]
    **{kind: (_recommender(kind), _categories) for kind in ("dlrm", "deepfm", "wide", "towers")},
    "radiance_field": (Radiance, lambda: (torch.randn(64, 16, 3), torch.rand(64, 16))),
}
HALVES: Mapping[str, tuple[Build, Callable[[], Inputs], torch.dtype]] = {
    f"{name}_{str(dtype).removeprefix('torch.')}": (_halved(build, dtype), inputs, dtype)
    for name, build, inputs in (("convolutions", _convolutions, _IMAGE), ("by_hand", lambda: ByHand(3), _padded))
    for dtype in (torch.float16, torch.bfloat16)
}
DEMANDING: Mapping[str, Entry] = {
    **{name: (build, masked) for name, build in _MASKED.items()},
    **{name: (build, pairs) for name, build in _PAIRS.items()},
    **_OTHERS,
    **_WRITTEN,
    **{name: (build, inputs) for name, (build, inputs, _) in HALVES.items()},
}
