"""Functions of tensors as modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Function(torch.nn.Module):
    """A function of any number of tensors as a module, e.g. `Function(torch.add, alpha=2)`.

    Args:
        function: of the inputs, followed by the other arguments.
        args, kwargs: the other arguments, the same in each call.
    """

    def __init__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.function, self.args, self.kwargs = function, args, kwargs

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs, *self.args, **self.kwargs)


class NamedFunction(torch.nn.Module):
    """A function of one or two tensors as a module whose arguments have the names x and y."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x, y=None):
        return self.function(x) if y is None else self.function(x, y)
