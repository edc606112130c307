"""Modules exported in training mode: a warning names what behaves otherwise, and the program does as eager does."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import delegate
from tests.support.functions import NamedFunction
from tests.support.lowering import assert_same, left

pytestmark = pytest.mark.filterwarnings("ignore:The tensor attributes self._flat_weights")

X = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0))

# module in training mode, its input, what the warning names
TRAINING = {
    "dropout": (nn.Dropout(0.5), X, "dropout"),
    "channels": (nn.Dropout1d(0.5), X, "feature_dropout"),
    "batch norm": (nn.BatchNorm1d(2), X, "batch_norm"),
    "attention": (NamedFunction(lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)), X, "scaled_dot"),
    "lstm": (nn.LSTM(4, 5, 2, dropout=0.5), X, "lstm"),
    "encoder": (nn.TransformerEncoderLayer(4, 2, 8), X, r"dropout \(3 times\)"),
}


@pytest.mark.parametrize("name", TRAINING)
def test_it_is_said(name):
    module, x, operator = TRAINING[name]
    exported = torch.export.export(module.train(), (x,))
    with pytest.warns(UserWarning, match=rf"forward was exported in training mode: .*{operator}.*model\.eval\(\)"):
        delegate.to_backend(exported, [])


@pytest.mark.parametrize("module", [nn.Dropout(0.0), nn.LayerNorm(4), nn.LSTM(4, 5, 2), nn.InstanceNorm1d(2)], ids=repr)
def test_what_is_the_same_in_training_is_not_said(module):
    delegate.to_backend(torch.export.export(module.train(), (X,)), [])  # warnings are errors


@pytest.mark.filterwarnings("ignore:method .* training mode")
@pytest.mark.parametrize("backends", [[], "xnnpack"], ids=["portable", "xnnpack"])
@pytest.mark.parametrize(("kind", "operator"), [(nn.LSTM, "lstm"), (nn.GRU, "gru"), (nn.RNN, "rnn_tanh")])
@pytest.mark.parametrize("form", [{}, {"bidirectional": True}, {"batch_first": True, "num_layers": 3}], ids=str)
def test_dropout_between_layers(kind, operator, form, backends):
    """With a rate of 1 nothing is left to chance: the later layers get zeros."""
    torch.manual_seed(0)
    module = kind(4, 5, **{"num_layers": 2, **form}, dropout=1.0).train()
    program = delegate.to_backend(torch.export.export(module, (X,)), backends)
    assert left(program) == ({f"aten.{operator}.input": 1} if backends else {})  # no backend has it
    with torch.no_grad():
        assert_same(program(X), module(X))
