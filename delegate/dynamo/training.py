"""What is differentiated: a captured graph in autograd-safe ATen, verified."""

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
    """See that gradients pass every operator of a graph, also where none are wanted.

    Raises:
        DialectError: they do not; names the node.
    """
    try:
        traced = autograd_safe(module, inputs)
    except Exception as error:  # what AOTAutograd says of it will have to do
        logger.info("a graph to differentiate cannot be traced: %s", error)
        return
    AUTOGRAD_SAFE.check(traced)


def autograd_safe(module: GraphModule, inputs: Sequence[Any]) -> GraphModule:
    """A captured graph in ATen as autograd gets it, composite operators whole, of the sizes of its inputs."""
    mode = FakeTensorMode()
    fakes = [mode.from_tensor(x, static_shapes=True) if isinstance(x, torch.Tensor) else _number(x) for x in inputs]
    with tracing(None), _disable_current_modes(), preserve_node_meta(), mode:
        traced = make_fx(Interpreter(module).run, pre_dispatch=True, tracing_mode="real")(*fakes)
    for node in reversed(traced.graph.nodes):
        operator = isinstance(node.target, OpOverload | HigherOrderOperator)
        if node.op == "call_function" and not operator and not node.users:  # switches of autograd's modes
            traced.graph.erase_node(node)
    for node, value in zip(traced.graph.find_nodes(op="placeholder"), fakes, strict=True):
        node.meta.setdefault(META_VALUE, value)  # of numbers, torch has noted none
    return traced


def _number(value: Any) -> Any:
    return value.node.hint if isinstance(value, SYMBOLIC) else value
