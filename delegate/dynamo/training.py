"""Verification that a captured graph can be differentiated: it must be autograd-safe ATen."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch._guards import tracing
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Interpreter
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta
from torch.utils._python_dispatch import _disable_current_modes

from delegate.edge.node import SYMBOLIC
from delegate.edge.program import META_VALUE
from delegate.edge.verifier import AUTOGRAD_SAFE

logger = logging.getLogger(__name__)


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
    with tracing(None), _disable_current_modes(), preserve_node_meta(), mode:
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
