"""Functions of tensors as modules, and torch's operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._ops import OpOverload


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


def functional_operators() -> Iterator[OpOverload]:
    """Yield torch's own operators that write to no argument and return tensors."""
    for name in torch._C._dispatch_get_all_op_names():
        packet, _, overload = name.removeprefix("aten::").partition(".")
        op = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
        if not isinstance(op, OpOverload) or op._schema.is_mutable:
            continue
        if any("Tensor" in str(result.type) for result in op._schema.returns):
            yield op
