"""Faults of a quantization itself: ranges that are too small for the values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from delegate.accuracy.bounds import DEFAULTS
from delegate.accuracy.figures import difference
from delegate.accuracy.reference import NodeRunner, flat_arguments
from delegate.accuracy.samples import Sample
from delegate.edge.node import float_node, op_name
from delegate_devtools.diagnosis import FaultKind, FaultyNode
from delegate_devtools.faults import faulty_node

_QUANTIZE = tuple(f"quantized_decomposed.quantize_per_tensor.{overload}" for overload in ("default", "tensor"))
_LEAST = DEFAULTS["int8"]  # dB of the values against themselves, cut off at the range


@dataclass(frozen=True, slots=True)
class ClippedRange:
    """A quantize node whose range cuts off much of its input.

    Args:
        nodes: the node of its input, if that computes, and itself.
        kind: has the range that would fit.
        layers: the nodes of the float program that write the value or read it as integers.
    """

    nodes: tuple[FaultyNode, ...]
    kind: FaultKind
    layers: tuple[str, ...]

    def remedy(self, floats: ExportedProgram) -> str:
        """Return the configuration that keeps the value in float; empty if the float program has no such nodes."""
        known = {node.name for node in floats.graph.nodes if node.op == "call_function"}
        rules = "".join(f"\n    {name}: off" for name in self.layers if name in known)
        return f"quantization:\n  nodes:{rules}" if rules else ""


def find_clipped_ranges(program: ExportedProgram, sample: Sample) -> list[ClippedRange]:
    """Return the quantize nodes of a program whose range cuts off much of their input.

    A range is too small if cutting off alone leaves less than 20 dB. Raises AccuracyError if torch cannot run it.
    """
    run = _Ranges(program)
    run.results(flat_arguments(program, sample.args, sample.kwargs))
    return run.found


class _Ranges(NodeRunner):
    """A run that compares the input of each quantize node with its range."""

    def __init__(self, program: ExportedProgram) -> None:
        super().__init__(program, lambda node, result: result)
        self.found: list[ClippedRange] = []

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
        writers = (source,) if isinstance(source, Node) and source.op == "call_function" else ()
        readers = (reader for decoded in node.users for reader in decoded.users)
        layers = dict.fromkeys(map(float_node, (*writers, *readers)))
        nodes = tuple(map(faulty_node, (*writers, node)))
        self.found.append(ClippedRange(nodes, FaultKind("saturation", explanation), tuple(layers)))
