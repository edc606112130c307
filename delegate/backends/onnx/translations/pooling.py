"""Pools over windows, and over as many windows as the result has elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.fx import Node

from delegate.backends.lowering import every, first_result_only
from delegate.backends.onnx.translations.own import ops
from delegate.backends.onnx.translations.row import Translation, floating, floating_inputs
from delegate.edge.node import arguments, tensor
from delegate.verdict import YES, Reason, Verdict, no


def _divisor(node: Node) -> Verdict:
    """No divisor of its own."""
    divisor = arguments(node).get("divisor_override")
    return YES if divisor is None else no(Reason.ATTRIBUTE, f"divisor_override={divisor}")


def _whole_windows(node: Node) -> Verdict:
    """With ceil_mode, every window lies inside the input: ONNX Runtime's providers differ at windows that reach out."""
    given = arguments(node)
    if not given["ceil_mode"]:
        return YES
    sizes = tensor(node.all_input_nodes[0]).shape[-len(given["kernel_size"]) :]
    dilation = given.get("dilation") or [1]
    for i, size in enumerate(sizes):
        kernel, pad = _at(given["kernel_size"], i), _at(given["padding"], i)
        stride = _at(given["stride"] or given["kernel_size"], i)
        if (size + 2 * pad - _at(dilation, i) * (kernel - 1) - 1) % stride:
            return no(Reason.ATTRIBUTE, f"ceil_mode=True with a window that reaches out of {list(sizes)}")
    return YES


def _at(values: Sequence[int], position: int) -> int:
    return values[position] if len(values) > 1 else values[0]


def _even_windows(node: Node) -> Verdict:
    """The input divides evenly into the windows."""
    sizes = arguments(node)["output_size"]
    given = tensor(node.all_input_nodes[0]).shape[-len(sizes) :]
    if all(wanted == 1 for wanted in sizes):
        return YES
    if all(isinstance(s, int) and s % wanted == 0 for s, wanted in zip(given, sizes, strict=True)):
        return YES
    return no(Reason.ATTRIBUTE, f"output_size={list(sizes)} does not divide {list(given)}")


def adaptive_average(x: Any, output_size: Sequence[int]) -> Any:
    """An average pool whose windows lie side by side."""
    op = ops()
    if all(size == 1 for size in output_size):
        return op.GlobalAveragePool(x)
    windows = _windows(x, output_size)
    return op.AveragePool(x, kernel_shape=windows, strides=windows)


def _windows(x: Any, output_size: Sequence[int]) -> list[int]:
    return [s // wanted for s, wanted in zip(x.shape[-len(output_size) :], output_size, strict=True)]


_AVERAGE = every(floating, _divisor, _whole_windows)
_MAXIMUM = every(floating_inputs, first_result_only, _whole_windows)
_ADAPTIVE = every(floating, _even_windows)

ROWS = (
    *(Translation(f"aten.avg_pool{n}d.default", ("AveragePool",), _AVERAGE) for n in (2, 3)),
    *(Translation(f"aten.max_pool{n}d_with_indices.default", ("MaxPool",), _MAXIMUM) for n in (2, 3)),
    *(
        Translation(
            f"aten.{name}.default",
            ("GlobalAveragePool", "AveragePool"),
            _ADAPTIVE,
            keep=not name.startswith("_"),
            translate=adaptive_average,
        )
        for name in (
            "adaptive_avg_pool2d", "_adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool3d",
            "adaptive_avg_pool1d",
        )
    ),
)  # fmt: skip
