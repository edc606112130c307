"""Autograd-safe ATen: the dialect of operators that pass gradients on, and the graphs that autograd gets."""

from __future__ import annotations

import contextlib
import functools
import logging
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg
from torch.fx.traceback import preserve_node_meta

from delegate.edge.build import fake_mode
from delegate.edge.decompose import find_preserved_composites
from delegate.edge.node import SYMBOLIC, tensors
from delegate.edge.program import META_VALUE
from delegate.edge.torch_private import FakeTensorMode, HigherOrderOperator, OpOverload, override_composites
from delegate.edge.verifier import ATEN_RULES, Dialect, DialectRule
from delegate_torch_compile.torch_private import disable_current_modes, tracing

logger = logging.getLogger(__name__)

# Torch's messages if it has no formula: for its own operators, for custom ones in Python, for custom ones in C++.
_NO_FORMULA = ("derivative for", "no autograd formula", "autograd kernel was not registered")


def differentiable(node: Node) -> bool:
    """Return true if gradients pass a node, from all its float results to all its float arguments.

    An operator whose results need no gradients by nature, such as a comparison, is differentiable, and so is anything
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


_DIFFERENTIABLE = DialectRule(
    "every operator must have a gradient",
    "register a formula (torch.library.register_autograd), or call it on x.detach()",
    differentiable,
)
AUTOGRAD_SAFE = Dialect("autograd-safe ATen", (*ATEN_RULES, _DIFFERENTIABLE))


@functools.cache
def _composites() -> dict[Any, Callable[..., Any]]:
    return find_preserved_composites(frozenset(map(str, torch.export.default_decompositions())))


def keep_composites() -> contextlib.AbstractContextManager[None]:
    """Return a context in which tracing preserves composite operators without side effects, as `torch.export` does."""
    context: contextlib.AbstractContextManager[None] = override_composites(_composites())
    return context


def require_autograd_safe(module: GraphModule, inputs: Sequence[Any]) -> None:
    """Check that every operator of a graph passes gradients on, even operators that need none.

    Raises:
        DialectError: an operator does not; the error names its node.
    """
    try:
        traced = autograd_safe(module, inputs)
    except Exception as error:  # AOTAutograd's own error remains
        logger.info("a graph to differentiate cannot be traced: %s", error)
        return
    AUTOGRAD_SAFE.check(traced)


def autograd_safe(module: GraphModule, inputs: Sequence[Any]) -> GraphModule:
    """Trace a captured graph to ATen as autograd gets it, with composite operators and the sizes of its inputs."""
    mode = FakeTensorMode()
    fakes = [mode.from_tensor(x, static_shapes=True) if isinstance(x, torch.Tensor) else _number(x) for x in inputs]
    with tracing(None), disable_current_modes(), preserve_node_meta(), mode:
        traced = make_fx(Interpreter(module).run, pre_dispatch=True, tracing_mode="real")(*fakes)
    for node in reversed(traced.graph.nodes):
        operator = isinstance(node.target, OpOverload | HigherOrderOperator)
        if node.op == "call_function" and not operator and not node.users:  # e.g. torch._C._set_grad_enabled
            traced.graph.erase_node(node)
    for node, value in zip(traced.graph.find_nodes(op="placeholder"), fakes, strict=True):
        node.meta.setdefault(META_VALUE, value)  # torch sets none for numbers
    return traced


def _number(value: Any) -> Any:
    return value.node.hint if isinstance(value, SYMBOLIC) else value
