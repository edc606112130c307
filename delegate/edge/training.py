"""Operators that behave differently in training: a program may have them, with a warning when it is lowered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, Node

from delegate.common.user_warnings import warn_user
from delegate.edge.node import arguments, op_name
from delegate.edge.torch_private import OpOverload

_FLAGS = ("train", "training")
_RECURRENT = {
    torch.ops.aten.lstm.input: 2,  # states: h and c
    torch.ops.aten.gru.input: 1,
    torch.ops.aten.rnn_tanh.input: 1,
    torch.ops.aten.rnn_relu.input: 1,
}


def warn_of_training(graph: Graph, name: str) -> None:
    """Warn about operators of a method that were exported in training mode, by name."""
    counts = Counter(op_name(node).split(".")[1] for node in graph.nodes if trains(node))
    if counts:
        what = ", ".join(op if count == 1 else f"{op} ({count} times)" for op, count in counts.items())
        warn_user(
            f"method {name} was exported in training mode: {what} will run as in training; for inference, call "
            "model.eval() before torch.export.export",
            UserWarning,
        )


def trains(node: Node) -> bool:
    """Return true if the operator is in training mode: it drops elements at random, or uses statistics of its batch."""
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return False
    args = arguments(node)
    if "dropout_p" in args:
        return bool(args["dropout_p"])
    if "running_mean" in args and args["running_mean"] is None:
        return False  # a norm that keeps no statistics takes those of its batch in eval mode too
    rate = args.get("p", args.get("dropout", 1))
    return rate != 0 and any(args.get(flag) is True for flag in _FLAGS)


def with_dropout(node: Node) -> Callable[..., Any] | None:
    """Return a recurrent operator with dropout between layers as a function of its arguments; None for other nodes.

    Torch 2.13's own decomposition omits the dropout.
    """
    target = node.target
    if target not in _RECURRENT or not trains(node) or arguments(node)["num_layers"] == 1:
        return None
    count = _RECURRENT[target]

    def run(x: Any, states: Any, params: Any, biases: bool, layers: int, rate: float, train: bool, *form: bool) -> Any:
        bidirectional, batch_first = form
        all_states = list(states) if count == 2 else [states]
        per_layer, directions = len(params) // layers, 2 if bidirectional else 1
        last: list[list[Any]] = []
        for layer in range(layers):
            own = [s[layer * directions : (layer + 1) * directions] for s in all_states]
            weights = params[layer * per_layer : (layer + 1) * per_layer]
            x, *new_states = target(
                x, own if count == 2 else own[0], weights, biases, 1, 0.0, False, bidirectional, batch_first
            )
            last.append(new_states)
            if layer < layers - 1:
                x = torch.dropout(x, rate, True)
        return (x, *(torch.cat(parts) for parts in zip(*last, strict=True)))

    return run
