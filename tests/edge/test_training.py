"""Modules exported in training mode: a warning names what behaves otherwise, and the program does as eager does."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import delegate
from delegate.errors import ExportError
from tests.support.functions import NamedFunction

pytestmark = pytest.mark.filterwarnings("ignore:The tensor attributes self._flat_weights")

X = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0))

# module in training mode, its input, what the warning names
TRAINING = {
    "dropout": (nn.Dropout(0.5), X, "dropout"),
    "channels": (nn.Dropout1d(0.5), X, "feature_dropout"),
    "batch norm": (nn.BatchNorm1d(2), X, "batch_norm"),
    "attention": (NamedFunction(lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)), X, "scaled_dot"),
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


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_dropout_between_layers_is_refused(kind):
    exported = torch.export.export(kind(4, 5, 2, dropout=0.5).train(), (X,))
    with pytest.raises(ExportError, match=r"has dropout between its layers.*call model\.eval\(\)"):
        delegate.to_backend(exported, [])
