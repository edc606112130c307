"""Places for LoRA adapters in a model: matrices of each conversation, which its linear layers add as a product."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from delegate.edge.low_rank import low_rank_product
from delegate.errors import ConfigError
from delegate.llm.aot.hugging_face import transformers
from delegate.llm.runtime.adapter import FIRST, RANKS, SECOND


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
        linear = dict(_linear(self.model.base_model.layers))
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


def _linear(layers: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """Yield the linear layers with their names."""
    return ((name, module) for name, module in layers.named_modules() if isinstance(module, nn.Linear))
