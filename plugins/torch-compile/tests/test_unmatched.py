"""Patterns that match in no graph of a compiled model are one warning."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from delegate.testing import assert_same

from .compiling import Lowered, compile_on


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.stem(x).relu())


class Split(Whole):
    """A model of two graphs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.stem(x).relu()
        torch._dynamo.graph_break()
        return self.head(y)


class Ended(Whole):
    """A model whose only graph ends in a graph break."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        torch._dynamo.graph_break()
        return y


MATCHING = {"pins": {"head": "xnnpack"}, "node_pins": {"relu": "xnnpack"}}
MODULE, NODE = {"pins": {"hed": "portable"}}, {"node_pins": {"rellu": "portable"}}
MODULE_TEXT = r"partitioning: pins 'hed' -> portable matches no module of {}: did you mean 'head'\?"
NODE_TEXT = r"partitioning: node_pins 'rellu' -> portable matches no node of {}: did you mean 'relu'\?"
ONE, TWO = "the graph that torch captured", "the 2 graphs that torch captured"

CASES: dict[str, tuple[type[nn.Module], dict[str, Any], list[list[str]]]] = {
    # the model, the section `partitioning`, the warnings of each call
    "whole": (Whole, MODULE, [[MODULE_TEXT.format(ONE)], []]),
    "a node": (Whole, NODE, [[NODE_TEXT.format(ONE)], []]),
    "both": (Whole, {**MODULE, **NODE}, [[MODULE_TEXT.format(ONE), NODE_TEXT.format(ONE)], []]),
    "no near name": (Whole, {"pins": {"zzz": "portable"}}, [[r"'zzz' .*: known: head, stem$"], []]),
    "split": (Split, MODULE, [[MODULE_TEXT.format(TWO)], []]),
    "ended": (Ended, MODULE, [[], [MODULE_TEXT.format(ONE)], []]),
    "whole, matching": (Whole, MATCHING, [[], []]),
    "split, matching": (Split, MATCHING, [[], []]),
    "ended, matching": (Ended, MATCHING, [[], []]),
}


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(("kind", "partitioning", "expected"), CASES.values(), ids=CASES)
def test_one_warning(
    kind: type[nn.Module],
    partitioning: dict[str, Any],
    expected: list[list[str]],
    gradients: bool,
    lowered: Lowered,
) -> None:
    torch.manual_seed(0)
    module, x = kind(), torch.randn(3, 8)
    run = compile_on(module, backends=None, config={"backends": ["xnnpack"], "partitioning": partitioning})
    with torch.set_grad_enabled(gradients):
        for texts in expected:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                assert_same(run(x), module(x), 1e-6)
            messages = [str(w.message) for w in caught if "partitioning" in str(w.message)]
            assert len(messages) == len(texts), messages
            assert all(re.search(text, message) for text, message in zip(texts, messages, strict=True)), messages
    assert "xnnpack" in lowered.backends


def test_other_options_have_their_own_warning() -> None:
    x = torch.randn(3, 8)
    for _ in range(2):
        torch._dynamo.reset()
        with torch.no_grad(), pytest.warns(RuntimeWarning, match=MODULE_TEXT.format(ONE)):
            compile_on(Whole(), backends=None, config={"backends": ["xnnpack"], "partitioning": MODULE})(x)
