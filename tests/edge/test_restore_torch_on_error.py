"""Interrupts in the middle of torch's own clearing up: torch is as it was, and lowers again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.export import exported_program
from torch.fx._symbolic_trace import _Patcher
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import delegate
from delegate.edge.restore_torch_on_error import restore_torch_on_error
from delegate.errors import ExportError
from delegate.testing import assert_same
from tests.support.sampling import every


class Branches(nn.Module):
    """Branches, of which one is a module: dynamo traces it, so it has to see modules as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.positive = nn.ReLU()

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return torch.cond(a.sum() > 0, self.positive, lambda b: torch.cumsum(b, 0) * 2, (a,))


def at(count: int, function: Any, error: type[BaseException]) -> Any:
    """The function, which raises at its call of that number instead of doing anything."""
    left = [count]

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise error
        return function(*args, **kwargs)

    return interrupted


PLACES = {
    "leaving a mode": (ProxyTorchDispatchMode, "__exit__", 1),
    "leaving a later mode": (ProxyTorchDispatchMode, "__exit__", 2),
    "replacing the first kernels": (exported_program, "_get_decomp_for_cia", 1),
    "replacing later kernels": (exported_program, "_get_decomp_for_cia", 30),
    "leaving the patches of modules": (_Patcher, "revert_all_patches", 1),
    "leaving later patches of modules": (_Patcher, "revert_all_patches", 2),
}


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
@pytest.mark.parametrize("name", every(2, PLACES))
def test_interrupts(name, error, monkeypatch):
    owner, attribute, count = PLACES[name]
    a = torch.arange(3.0)
    exported = torch.export.export(Branches(), (a,))
    kernels = dict(torch.ops.aten.linear.default.py_kernels)
    with monkeypatch.context() as patch:
        patch.setattr(owner, attribute, at(count, getattr(owner, attribute), error))
        with pytest.raises((error, ExportError)):  # as which an Exception of another kind is told
            delegate.to_backend(exported, [])
    assert _get_current_dispatch_mode_stack() == []
    assert torch.ops.aten.linear.default.py_kernels == kernels
    assert type(a + 1) is torch.Tensor
    torch.compile(nn.ReLU(), backend="eager")(a)  # takes torch.fx's patches off and puts them on again
    assert_same(delegate.to_backend(torch.export.export(Branches(), (a,)), [])(a), Branches()(a))


def disturb() -> None:
    with restore_torch_on_error():
        torch.set_grad_enabled(True)
        torch.overrides._pop_mode()
        raise KeyboardInterrupt


def test_what_was_there_before_stays():
    with torch.no_grad(), torch.device("cpu"):
        modes = torch.overrides._get_current_function_mode_stack()
        with pytest.raises(KeyboardInterrupt):
            disturb()
        assert not torch.is_grad_enabled()
        assert torch.overrides._get_current_function_mode_stack() == modes
