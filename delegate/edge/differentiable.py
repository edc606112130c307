"""A check if torch has a formula for the gradients of an operator, by a trial on values without data."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node
from torch.fx.node import map_arg

from delegate.edge.build import fake_mode
from delegate.edge.node import tensors
from delegate.edge.program import META_VALUE

# Torch's messages if it has no formula: for its own operators, for custom ones in Python, for custom ones in C++.
_NO_FORMULA = ("derivative for", "no autograd formula", "autograd kernel was not registered")


def differentiable(node: Node) -> bool:
    """Return true if gradients pass a node, from all its float results to all its float arguments.

    An operator whose results need no gradients by nature, such as a comparison, is differentiable. So is anything
    but an operator.
    """
    taken = [t for source in node.all_input_nodes for t in tensors(source) if t.is_floating_point() or t.is_complex()]
    if not isinstance(node.target, OpOverload) or not taken:
        return True
    mode: Any = fake_mode(node.all_input_nodes) or contextlib.nullcontext()
    try:
        with mode, warnings.catch_warnings():
            warnings.simplefilter("error")
            _differentiate(node.target, node)
    except Exception as error:  # torch has many words for what it cannot do with values that have no data
        return not is_without_formula(error)
    return True


def is_without_formula(error: BaseException) -> bool:
    """Return true for torch's error that it cannot differentiate an operator."""
    return any(words in str(error) for words in _NO_FORMULA)


def _differentiate(function: Callable[..., Any], node: Node) -> None:
    leaves: dict[Node, Any] = {source: _leaf(source.meta[META_VALUE]) for source in node.all_input_nodes}
    sources = [v for v in leaves.values() if isinstance(v, torch.Tensor) and v.requires_grad]
    with torch.enable_grad():
        copies = {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in leaves.items()}  # it may write to them
        outputs = function(*map_arg(node.args, copies.__getitem__), **map_arg(node.kwargs, copies.__getitem__))
        outputs = outputs if isinstance(outputs, tuple | list) else (outputs,)
        results = [r for r in outputs if isinstance(r, torch.Tensor) and r.requires_grad]
        if results and sources:
            torch.autograd.grad(results, sources, [torch.ones_like(r) for r in results], allow_unused=True)


def _leaf(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex()):
        return value.detach().requires_grad_()
    return value
