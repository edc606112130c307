"""Views, permutes, aliases, expand and repeat against eager, also after a convolution (NHWC) and a permute."""

import pytest
import torch
from torch import nn
from torch.export import Dim

from tests.backends.xnnpack.harness import AfterConv, assert_as_eager, lower, run
from tests.support.functions import Function

X = torch.linspace(-4, 4, 120).reshape(2, 3, 4, 5)
ROW = torch.linspace(-1, 1, 5)


class Tokens(nn.Module):
    """A class token before a sequence, as vision transformers have it."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.linspace(0, 1, 5).reshape(1, 1, 5))

    def forward(self, x):
        return torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)


# function, inputs
SAME = {
    "view": (lambda x: x.view(6, 20), X),
    "view_minus_one": (lambda x: x.view(2, -1, 2), X),
    "flatten": (lambda x: x.flatten(1), X),
    "to_one_dimension": (lambda x: x.reshape(-1), X),
    "unsqueeze_last": (lambda x: x.unsqueeze(-1) + 1, X),
    "unsqueeze_first": (lambda x: x.unsqueeze(0) * 2, X),
    "squeeze": (lambda x: x.squeeze() + 1, X[:, :1]),
    "squeeze_dim": (lambda x: x.squeeze(-3) + 1, X[:, :1]),
    "squeeze_dim_of_more": (lambda x: x.squeeze(1) + 1, X),
    "squeeze_dims": (lambda x: x.squeeze((1, 2)) + 1, X[:, :1, :1]),
    "permute": (lambda x: x.permute(3, 0, -2, 1), X),
    "permute_twice": (lambda x: x.permute(1, 2, 3, 0).permute(2, 0, 3, 1) + 1, X),
    "transpose": (lambda x: x.transpose(-1, 1), X),
    "t": (lambda x: x.t(), X[0, 0]),
    "permute_view": (lambda x: x.permute(0, 2, 1, 3).reshape(2, 4, 15), X),
    "view_after_transpose_keeps": (lambda x: x.transpose(0, 1).reshape(3, 2, 20), X),
    "clone": (lambda x: x.transpose(1, 2).clone() + 1, X),
    "contiguous": (lambda x: x.transpose(1, 2).contiguous().view(2, -1), X),
    "input_is_output": (lambda x: x.view(2, 3, 4, 5), X),
    "expand_new": (lambda x: x.expand(7, 5).neg(), ROW),
    "expand_middle": (lambda x: x[:, :1].expand(2, 3, 4, 5).exp(), X),
    "expand_two": (lambda x: x[:1, :, :1].expand(2, -1, 4, 5).exp(), X),
    "expand_permuted": (lambda x: x[:, :1].permute(0, 2, 3, 1).expand(-1, -1, -1, 6).exp(), X),
    "expand_into_add": (lambda x: x[:, :1].expand(2, 3, 4, 5) + x, X),
    "expand_into_both": (lambda x: x[:, :1].expand(2, 3, 4, 5) + x[:, 1:2].expand(2, 3, 4, 5), X),
    "expand_is_output": (lambda x: (x[:, :1].expand(2, 3, 4, 5),), X),
    "repeat": (lambda x: x.repeat(1, 2, 1, 3), X),
    "repeat_new": (lambda x: x.repeat(2, 1, 3), X[0, 0]),
    "repeat_ones": (lambda x: x.repeat(1, 4, 1, 1), X[:, :1]),
    "repeat_permuted": (lambda x: x.permute(0, 2, 3, 1).repeat(1, 1, 2, 2), X),
    "tile": (lambda x: x.tile(3), X),
}


@pytest.mark.parametrize("name", SAME)
def test_same_as_eager(name):
    function, x = SAME[name]
    run(Function(function), (x,))


# function of a feature map [2, 6, 4, 5] in NHWC; transposes allowed besides the one of the input
NHWC = {
    "flatten_2": (lambda x: x.flatten(2).transpose(1, 2), 0),
    "to_tokens_and_back": (
        lambda x: x.flatten(2).transpose(1, 2).add(1).transpose(1, 2).reshape(2, 6, 4, 5).relu().permute(0, 2, 3, 1),
        0,
    ),
    "flatten_1": (lambda x: x.flatten(1), 1),
    "split_channels": (lambda x: x.view(2, 2, 3, 4, 5).permute(0, 3, 4, 1, 2), 0),
    "squeeze": (lambda x: x.mean((2, 3), keepdim=True).squeeze(-1).squeeze(-1), 0),
    "permute_to_last": (lambda x: x.permute(0, 2, 3, 1) * 2, 0),
    "repeat": (lambda x: x.repeat(1, 2, 2, 1).permute(0, 2, 3, 1), 0),
    "expand": (lambda x: x.mean(1, keepdim=True).expand(-1, 6, -1, -1).exp(), 1),
    "unsqueeze": (lambda x: x.unsqueeze(2).permute(0, 2, 3, 4, 1), 0),
}


@pytest.mark.parametrize("name", NHWC)
def test_after_convolution(name):
    function, transposes = NHWC[name]
    lowered = run(AfterConv(function), (X,), 1e-4, 1e-5)
    assert lowered.transposes <= 1 + transposes


def test_class_token_of_a_dynamic_batch():
    module = Tokens()
    lowered = lower(module, (torch.randn(2, 4, 5),), {"x": {0: Dim("n", min=2, max=64)}})
    for n in (2, 6):
        x = torch.randn(n, 4, 5)
        x[0, 0, 0] = torch.inf
        assert_as_eager(module, (x,), lowered, 0, 0)
