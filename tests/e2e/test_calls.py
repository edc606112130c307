"""Ways to call a program: keyword arguments by position, and the names of what comes back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import delegate
from delegate.errors import InputError
from delegate.testing import assert_same
from tests.support.functions import NamedFunction

X, Y = torch.arange(6.0).reshape(2, 3), torch.ones(3)


class Keywords(torch.nn.Module):
    def forward(self, *, x, y, factor=2):
        return x * factor - y


class Both(torch.nn.Module):
    def forward(self, x, *, y):
        return x - y


def test_keyword_only_arguments_in_order(tmp_path):
    program = delegate.to_backend(torch.export.export(Keywords(), (), {"x": X, "y": Y}), [])
    program.save(tmp_path / "keywords.dlg")
    loaded = delegate.load(tmp_path / "keywords.dlg")
    wanted = X * 2 - Y
    for found in (program(X, Y), program(x=X, y=Y), program(X, y=Y), program(Y, x=X)):
        assert_same(found, wanted)
    np.testing.assert_array_equal(loaded(X.numpy(), Y.numpy()), wanted.numpy())
    with pytest.raises(InputError, match="takes"):
        program(X, Y, Y)
    with pytest.raises(InputError, match="missing y"):
        program(X)


def test_positional_and_keyword_arguments_in_order():
    program = delegate.to_backend(torch.export.export(Both(), (X,), {"y": Y}), [])
    assert_same(program(X, Y), X - Y)
    assert_same(program(y=Y, x=X), X - Y)
    with pytest.raises(InputError, match="takes"):
        program(X, Y, Y)


@pytest.mark.parametrize("name", ["median", "max", "sort", "topk", "mode"])
def test_torchs_named_tuples_keep_their_names(name, tmp_path):
    function = getattr(torch, name)
    args = (2,) if name == "topk" else () if name == "sort" else (1,)
    exported = torch.export.export(NamedFunction(lambda x: function(x, *args)).eval(), (X,))
    program = delegate.to_backend(exported, [])
    program.save(tmp_path / "named.dlg")
    found = delegate.load(tmp_path / "named.dlg")(X.numpy())
    wanted = function(X, *args)
    np.testing.assert_array_equal(found.values, wanted.values.numpy())
    np.testing.assert_array_equal(found.indices, wanted.indices.numpy())
    assert_same(program(X).values, wanted.values)
