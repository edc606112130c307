"""Faults of a quantization itself: ranges that are too small, and the error of each layer along the depth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from delegate.accuracy.bounds import DEFAULTS
from delegate.accuracy.figures import difference
from delegate.accuracy.reference import NodeRunner, flat_arguments
from delegate.accuracy.samples import Sample
from delegate.devtools.debugger.diagnosis import ErrorRow, FaultKind, FaultyNode
from delegate.devtools.debugger.faults import faulty_node
from delegate.edge.node import op_name
from delegate.lowering.layer_noise import FloatRun, layer_errors

_QUANTIZE = tuple(f"quantized_decomposed.quantize_per_tensor.{overload}" for overload in ("default", "tensor"))
_LEAST = DEFAULTS["int8"]  # dB of the values against themselves, cut off at the range


def clipped_ranges(program: ExportedProgram, sample: Sample) -> list[tuple[tuple[FaultyNode, ...], FaultKind]]:
    """Return the quantize nodes of a program whose range cuts off much of their input, with the node of the input.

    A range is too small if cutting off alone leaves less than 20 dB. Raises AccuracyError if torch cannot run it.
    """
    run = _Ranges(program)
    run.results(flat_arguments(program, sample.args, sample.kwargs))
    return run.found


class _Ranges(NodeRunner):
    """A run that compares the input of each quantize node with its range."""

    def __init__(self, program: ExportedProgram) -> None:
        super().__init__(program, lambda node, result: result)
        self.found: list[tuple[tuple[FaultyNode, ...], FaultKind]] = []

    def run_node(self, n: Node) -> Any:
        """Run one node."""
        if n.op == "call_function" and op_name(n) in _QUANTIZE:
            (values, scale, zero_point, least, most, *_), _ = self.fetch_args_kwargs_from_env(n)
            self._compare(n, values, float(scale), int(zero_point), int(least), int(most))
        return super().run_node(n)

    def _compare(self, node: Node, values: torch.Tensor, scale: float, zero: int, least: int, most: int) -> None:
        low, high = (least - zero) * scale, (most - zero) * scale
        figures = difference([values.clamp(low, high)], [values])
        if figures is None or figures.sqnr_db >= _LEAST or not values.isfinite().all():
            return
        share = float(((values < low) | (values > high)).float().mean())
        small, large = min(0.0, float(values.min())), max(0.0, float(values.max()))
        fit = (large - small) / (most - least)
        explanation = (
            f"{share:.0%} of the values are outside of {low:.4g} to {high:.4g}; {small:.4g} to {large:.4g} would fit: "
            f"scale {fit:.4g} in place of {scale:.4g}"
        )
        source = node.args[0]
        nodes = (source, node) if isinstance(source, Node) and source.op == "call_function" else (node,)
        self.found.append((tuple(map(faulty_node, nodes)), FaultKind("saturation", explanation)))


def layer_rows(
    float_program: ExportedProgram, quantized: ExportedProgram, sample: Sample, method: str
) -> Iterator[ErrorRow]:
    """Return the error of each quantized layer: the error that it adds, and the total against the float program.

    Args:
        float_program: the float reference.
        quantized: the program made of it.
        sample: the call.
        method: the name of the method; empty if there is only one.
    """
    run = FloatRun.of(float_program, sample, method)
    for layer in layer_errors(run, quantized, frozenset()):
        yield ErrorRow(layer.node, layer.place, layer.added.sqnr_db, layer.total.sqnr_db)
