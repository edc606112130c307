"""A causal language model of transformers as a module to export.

Its cache is in buffers that are read in place. LoRA adapters have places beside the linear layers: matrices of each
conversation, whose product is added to the layer's results.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from delegate.edge.conversations import cached_attention, low_rank_product, update_cache
from delegate.errors import ConfigError
from delegate_llm.aot.hugging_face import transformers
from delegate_llm.runtime.adapter import FIRST, RANKS, SECOND

ATTENTION = "delegate"  # the name of `attend` among the attention functions of transformers
TYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "int8": torch.int8,
}  # fmt: skip


@dataclass(frozen=True)
class CachedEntries:
    """The keys or values of a layer, and the positions of this call's queries."""

    entries: Tensor
    scales: Tensor | None
    positions: Tensor
    rows: Tensor


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return zeros that take memory only when they are written; the export never writes them."""
    return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)).view(dtype).view(shape)


class CacheBuffer(nn.Module):
    """The keys or values of one layer: (conversations, groups, context, channels).

    Args:
        kind: one of `TYPES`; int8 has a scale for each entry and group.
    """

    entries: Tensor
    scales: Tensor | None

    def __init__(self, shape: tuple[int, int, int, int], kind: str) -> None:
        super().__init__()
        self.register_buffer("entries", _zeros(shape, TYPES[kind]))
        self.register_buffer("scales", _zeros(shape[:-1], torch.float32) if kind == "int8" else None)

    def write(self, new: Tensor, positions: Tensor, rows: Tensor) -> CachedEntries:
        """Write the entries of some positions, and return the cache; new: (batch, groups, length, channels)."""
        if self.scales is not None:
            scales = new.abs().amax(-1) / 127
            self.scales.copy_(update_cache(self.scales, scales, positions, rows))
            new = torch.round(new / scales.clamp_min(1e-30)[..., None])
        self.entries.copy_(update_cache(self.entries, new, positions, rows))
        return CachedEntries(self.entries, self.scales, positions, rows)


class _Writer(transformers.Cache):  # type: ignore[misc]
    """The cache to which the layers of transformers write their keys and values in one call."""

    def __init__(self, decoder: Decoder, positions: Tensor, rows: Tensor) -> None:
        super().__init__(layers=[])
        self._decoder, self._where = decoder, (positions, rows)

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        stores: tuple[Any, Any] = self._decoder.keys[layer_idx], self._decoder.values[layer_idx]
        return tuple(
            store.write(new, *self._where) for store, new in zip(stores, (key_states, value_states), strict=True)
        )


def attend(
    module: nn.Module,
    query: Tensor,
    key: CachedEntries,
    value: CachedEntries,
    attention_mask: None,
    scaling: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """An attention function of transformers: causal, over what `CacheBuffer.write` returns."""
    result = cached_attention(
        query, key.entries, value.entries, key.positions, key.rows, key.scales, value.scales,
        scaling, sliding_window or 0, softcap or 0.0,
    )  # fmt: skip
    return result.transpose(1, 2), None


transformers.AttentionInterface.register(ATTENTION, attend)


class Slots:
    """The places for adapters in a copy of a model.

    Args:
        model: with all its linear layers, quantized or not; it stays as it is, and shares all tensors with the copy.
        rank: the maximum rank of an adapter.
        targets: the last names of the linear layers that an adapter may change; empty: all but the head.
        conversations: the number of conversations, each of which has a slot.

    Attributes:
        model: the copy.

    Raises:
        ConfigError: no linear layer has the name of a target.
    """

    def __init__(
        self, model: transformers.PreTrainedModel, rank: int, targets: Sequence[str], conversations: int
    ) -> None:
        self.rows: Tensor | None = None  # the conversation of each token in the call that is traced
        shared: dict[int, Any] = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())}
        self.model = copy.deepcopy(model, shared)
        parts = self.model.base_model.layers.named_modules()
        linear = {name: part for name, part in parts if isinstance(part, nn.Linear)}
        known = sorted({name.rpartition(".")[2] for name in linear})
        if unknown := [target for target in targets if target not in known]:
            what = f"the model has no linear layer {unknown[0]!r}"
            raise ConfigError(what, where="--lora-targets", remedy=f"choose from {', '.join(known)}")
        for name, module in linear.items():
            if not targets or name.rpartition(".")[2] in targets:
                module.register_buffer(FIRST, torch.zeros(conversations, rank, module.in_features))
                module.register_buffer(SECOND, torch.zeros(conversations, rank, module.out_features))
                module.register_buffer(RANKS, torch.zeros(conversations, dtype=torch.int64))
                module.register_forward_hook(self._add_product)

    def _add_product(self, module: nn.Module, args: tuple[Tensor], result: Tensor) -> Tensor:
        assert self.rows is not None
        first, second, ranks = (module.get_buffer(name) for name in (FIRST, SECOND, RANKS))
        product: Tensor = low_rank_product(args[0], first, second, ranks, self.rows)
        return result + product


class Detach(nn.Module):
    """A method that clears the slots of some conversations; it also makes the matrices states of the program."""

    def __init__(self, model: transformers.PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, rows: Tensor) -> Tensor:
        for name, buffer in self.named_buffers():
            if name.rpartition(".")[2] in (FIRST, SECOND, RANKS):
                buffer[rows] = 0
        return rows.clone()


class Decoder(nn.Module):
    """tokens, positions, rows (tokens) -> the input of `Head` after each token, (tokens, width).

    The tokens are of one or several conversations, which may have different numbers of them. Those of one conversation
    are adjacent, so that attention reads its cache once.

    Args:
        model: with the attention function `ATTENTION`.
        slots: places for adapters in this model; None: it has none.
        context: the maximum number of tokens in a conversation.
        conversations: the number of rows in the cache, one for each conversation.
        cache: the type of the cache's entries, one of `TYPES`.
    """

    def __init__(
        self,
        model: transformers.PreTrainedModel,
        context: int,
        conversations: int,
        cache: str,
        slots: Slots | None = None,
    ) -> None:
        super().__init__()
        self.model, self._slots = model, slots
        config = model.config
        heads = config.num_key_value_heads
        channels = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (conversations, heads, context, channels)
        self.keys, self.values = (
            nn.ModuleList(CacheBuffer(shape, cache) for _ in range(config.num_hidden_layers)) for _ in range(2)
        )

    def forward(self, tokens: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
        where = positions[:, None]
        if self._slots is not None:
            self._slots.rows = rows
        cache = _Writer(self, where, rows)
        model = self.model.base_model
        hidden: Tensor = model(tokens[:, None], position_ids=where, past_key_values=cache, use_cache=True)[0]
        return hidden[:, 0]


class Head(nn.Module):
    """(rows, width) -> logits (rows, vocabulary): a separate method, which prefill and decode share.

    As a part of prefill and decode, it would be packed twice, with the last layer of each.
    """

    def __init__(self, model: transformers.PreTrainedModel) -> None:
        super().__init__()
        self.layer = model.get_output_embeddings()
        self.cap: float | None = getattr(model.config, "final_logit_softcapping", None)

    def forward(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.layer(hidden)
        return logits if self.cap is None else torch.tanh(logits / self.cap) * self.cap
