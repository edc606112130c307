"""Attention with masks, and the operators after it, over head sizes and lengths.

A library that fuses attention with its neighbours chooses its kernel by the head size and by whether a length is known
ahead of time, so these vary together with the mask, the spelling and the operator that follows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim

import delegate
from delegate.testing import assert_same
from tests.support.functions import Function

HEADS = 4
Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


def _normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _by_hand(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Compute attention by products and a softmax, which is NaN in rows that see nothing."""
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype is torch.bool else scores + mask
    return scores.softmax(-1) @ v


SPELLINGS: Mapping[str, Attend] = {
    "whole": torch.nn.functional.scaled_dot_product_attention,
    "by hand": _by_hand,
}

# What follows attention: a function of its result [batch, heads, length, head size] and the queries of that shape.
FOLLOWERS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "nothing": lambda y, _: y,
    "relu": lambda y, _: y.relu(),
    "a gate of each element": lambda y, q: y * q.sigmoid(),
    "a gate of each row": lambda y, q: y * q.amax(-1, keepdim=True),
    "a gate of each row, shared by heads": lambda y, q: y + q[:, :1, :, :1],
    "a gate of each head": lambda y, q: y * q[:, :, :1, :1],
    "a gate after relu": lambda y, q: y.relu() - q[..., :1],
    "a choice of rows": lambda y, q: torch.where(q[..., :1] > 0, y, q),
    "a norm of each row": lambda y, _: y / torch.linalg.vector_norm(y, dim=-1, keepdim=True).clamp(min=1e-6),
    "a gate after heads are joined": lambda y, q: y.transpose(1, 2).flatten(2) * q[:, 0, :, :1],
}

MASKS = ("no mask", "bool", "bool with rows that see nothing", "float", "float with rows that see nothing")


@dataclass(frozen=True)
class Case:
    """Attention to lower once, and to call with several lengths if they are dynamic.

    Args:
        head: the head size.
        mask: one of `MASKS`.
        follower: one of `FOLLOWERS`.
        dynamic: whether the batch and the length are dynamic.
        length: the length of the export.
        spelling: one of `SPELLINGS`.
    """

    head: int
    mask: str
    follower: str
    dynamic: bool
    length: int = 12
    spelling: str = "whole"

    def __str__(self) -> str:
        sizes = "dynamic" if self.dynamic else "static"
        return f"{self.spelling}, {self.head}, {self.length}, {sizes}, {self.mask}, {self.follower}"

    def module(self) -> Function:
        """Return the model: attention over q, k, v and a mask, then the follower."""
        attend, follow = SPELLINGS[self.spelling], FOLLOWERS[self.follower]
        return Function(lambda q, k, v, mask=None: follow(attend(q, k, v, mask), q))

    def inputs(self, batch: int, length: int) -> tuple[Tensor, ...]:
        """Return q, k and v [batch, HEADS, length, head], and the mask [batch, 1, length, length] if there is one."""
        shape = (batch, HEADS, length, self.head)
        qkv = tuple(_normal(*shape, seed=seed) for seed in range(3))
        if self.mask == "no mask":
            return qkv
        seen = _normal(batch, 1, length, length, seed=3) > -0.5
        seen[..., 0] = True
        if "nothing" in self.mask:
            seen[..., ::3, :] = False
        if self.mask.startswith("float"):
            return *qkv, torch.where(seen, _normal(*seen.shape, seed=4), float("-inf"))
        return *qkv, seen

    def shapes(self) -> Any:
        """Return the dynamic shapes of the export."""
        if not self.dynamic:
            return None
        # TVM reserves memory for the largest sizes.
        batch, length = Dim("batch", min=1, max=8), Dim("length", min=1, max=1024)
        masks = 0 if self.mask == "no mask" else 1
        return ((*({0: batch, 2: length},) * 3, *({0: batch, 2: length, 3: length},) * masks),)


def cases(long: bool) -> Iterator[Case]:
    """Return the grid: a few combinations that no library may get wrong, or all of them."""
    rowwise = "a gate of each row"
    if not long:
        for head, dynamic in itertools.product((64, 128), (False, True)):
            yield Case(head, "float with rows that see nothing", rowwise, dynamic)
        yield Case(128, "bool", "nothing", True)
        yield Case(256, "no mask", "a gate of each row, shared by heads", False, length=200)
        yield Case(192, "no mask", "a choice of rows", True, spelling="by hand")
        return
    for head, dynamic in itertools.product((8, 48, 64, 96, 120, 128, 160, 192, 256, 320, 512), (False, True)):
        for mask in MASKS:
            yield Case(head, mask, rowwise, dynamic)
    for head, dynamic, spelling in itertools.product((64, 128, 256), (False, True), SPELLINGS):
        for follower in FOLLOWERS:
            yield Case(head, "bool", follower, dynamic, spelling=spelling)
    for head, mask, spelling in itertools.product((64, 128, 256), MASKS, SPELLINGS):
        if spelling == "whole" or "nothing" not in mask:
            yield Case(head, mask, rowwise, False, length=200, spelling=spelling)


def compare(case: Case, config: Mapping[str, Any]) -> frozenset[str]:
    """Compare attention with eager, at several sizes if they are dynamic.

    Returns:
        The operators that ran on a backend, such as "aten.mul.Tensor".
    """
    module = case.module()
    exported = torch.export.export(module, case.inputs(2, case.length), dynamic_shapes=case.shapes())
    program = delegate.to_backend(exported, config=dict(config))
    sizes = ((2, case.length), (1, 1), (1, 7), (3, 33), (1, 130)) if case.dynamic else ((2, case.length),)
    for batch, length in sizes:
        inputs = case.inputs(batch, length)
        assert_same(program(*inputs), module(*inputs), 1e-5)
    return frozenset(n.op for n in program.report.nodes if n.backend != "portable")
