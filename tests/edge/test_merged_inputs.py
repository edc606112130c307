"""Inputs that were one tensor in the example of the export, of which torch makes one."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import delegate
from delegate.testing import assert_same

X, Y = torch.linspace(-1, 1, 24).reshape(1, 2, 3, 4), torch.linspace(2, 3, 24).reshape(1, 2, 3, 4)


class Attention(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v)


class Nested(nn.Module):
    def forward(self, a: dict[str, Any], b: Tensor | None = None, *, c: Tensor) -> Tensor:
        return a["x"] * 2 + a["y"][0] + c


@pytest.mark.parametrize(
    ("module", "args", "kwargs", "merged"),
    [
        (Attention(), (X, X, X), {}, ["'v' in place of 'q'", "'v' in place of 'k'"]),
        (Attention(), (X, Y, X), {}, ["'v' in place of 'q'"]),
        (Nested(), ({"x": X, "y": [Y]}, None), {"c": X}, ["'c' in place of \"a['x']\""]),
        (Attention(), (X, X.clone(), X.clone()), {}, []),
        (nn.Identity(), (X,), {}, []),
    ],
    ids=["all", "two", "nested", "copies", "one"],
)
def test_a_merged_input_is_named(module: nn.Module, args: Any, kwargs: Any, merged: list[str]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        delegate.to_backend(torch.export.export(module, args, kwargs), [])
    found = [str(warning.message) for warning in caught if "in place of" in str(warning.message)]
    assert len(found) == len(merged)
    for words, message in zip(merged, found, strict=True):
        assert words in message


def test_our_export_merges_none() -> None:
    program = delegate.to_backend(delegate.export(Attention(), (X, X, X)), [])
    assert_same(program(X, Y, 2 * Y), Attention()(X, Y, 2 * Y), 1e-5)
