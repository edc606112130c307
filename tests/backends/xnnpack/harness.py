"""A harness that runs a module on XNNPACK only: export, check every node, preprocess, execute, compare with eager."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.fx import Graph, Node

from delegate.backend.aot import PreprocessResult, Region
from delegate.backends.xnnpack.aot.backend import XnnpackBackend, XnnpackOptions
from delegate.backends.xnnpack.runtime.delegate import XnnpackRuntime
from delegate.edge.export import to_edge
from delegate.edge.node import META_CONSTANT, is_static, tensors
from delegate.edge.program import EdgeProgram
from delegate.runtime.backend import Delegate
from delegate.testing import assert_same
from delegate.verdict import Verdict

Inputs = tuple[torch.Tensor, ...]


def export(module: torch.nn.Module, inputs: Inputs, dynamic_shapes: Any = None) -> EdgeProgram:
    """Export a program and bring it to edge dialect with the operators that the backend preserves."""
    exported = torch.export.export(module.eval(), inputs, dynamic_shapes=dynamic_shapes)
    return to_edge(exported, preserve_ops=XnnpackBackend(XnnpackOptions()).preserve_ops)


def fold(graph: Graph, values: dict[str, torch.Tensor]) -> None:
    """Fold nodes that depend on constants only, as edge does: they become placeholders of known values."""
    first = next(iter(graph.nodes))
    for node in [n for n in graph.nodes if isinstance(n.target, torch._ops.OpOverload)]:
        if all(n.name in values for n in node.all_input_nodes) and len(tensors(node)) == 1 and is_static(node):
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: values[n.name])
            with graph.inserting_before(first):
                constant = graph.placeholder(f"folded_{node.name}")
            values[constant.name] = node.target(*args, **kwargs)
            constant.meta["val"] = node.meta["val"]
            node.replace_all_uses_with(constant)
            graph.erase_node(node)


def region_of(program: EdgeProgram) -> Region:
    """Return the whole program as one region; placeholders of constants are marked as edge marks them."""
    graph: Graph = program.graph_module.graph
    values = dict(program.constants)
    fold(graph, values)
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    for node in placeholders:
        node.meta[META_CONSTANT] = node.name in values
    (output,) = (n for n in graph.nodes if n.op == "output")
    return Region(
        name="xnnpack_0",
        graph=graph,
        inputs=tuple(n for n in placeholders if n.name not in values),
        constants={n: values[n.name] for n in placeholders if n.name in values},
        outputs=tuple(output.args[0]),
    )


def verdicts(region: Region) -> dict[str, Verdict]:
    """Return the backend's verdict on each node of a region that returns tensors."""
    backend = XnnpackBackend(XnnpackOptions())
    return {n.name: backend.check(n) for n in region.graph.nodes if n.op == "call_function" and tensors(n)}


@dataclass
class Lowered:
    """A module that was lowered completely."""

    region: Region
    result: PreprocessResult
    delegate: Delegate

    @property
    def transposes(self) -> int:
        """Number of TRANSPOSE operators in the model."""
        return next((int(n.split()[0]) for n in self.result.notes if "transpose" in n), 0)

    @property
    def operators(self) -> int:
        """Number of operators in the model."""
        return int(self.result.notes[0].split()[0])

    def __call__(self, *inputs: torch.Tensor, shapes: Sequence[Sequence[int]] = ()) -> list[torch.Tensor]:
        """Run the module. `shapes`: of the results, if they are dynamic."""
        sizes = shapes or [tuple(n.meta["val"].shape) for n in self.region.outputs]
        results = [np.full(s, np.nan, np.float32) for s in sizes]
        arrays = [x.contiguous().numpy() for x in inputs]
        self.delegate.prepare([(x.shape, x.dtype) for x in arrays], [(r.shape, r.dtype) for r in results])
        self.delegate.execute(arrays, results)
        return [torch.from_numpy(r) for r in results]


def open_delegate(result: PreprocessResult) -> Delegate:
    """Open a delegate of the AOT part's result."""
    return XnnpackRuntime().init_with_data(memoryview(result.blob), result.data, result.compile_specs)


def lower(module: torch.nn.Module, inputs: Inputs, dynamic_shapes: Any = None, threads: int = 1) -> Lowered:
    """Lower a module completely; fail if a check rejects a node or XNNPACK rejects an operator."""
    region = region_of(export(module, inputs, dynamic_shapes))
    refusals = {name: str(v) for name, v in verdicts(region).items() if not v}
    assert not refusals, f"{refusals}\n{region.graph}"
    result = XnnpackBackend(XnnpackOptions(threads=threads)).preprocess(region)
    return Lowered(region, result, open_delegate(result))


def assert_as_eager(module: torch.nn.Module, inputs: Inputs, lowered: Lowered, rtol: float, atol: float) -> None:
    """Assert that the lowered module gives the results of eager; errors are relative to each value."""
    with torch.no_grad():
        expected = module(*inputs)
    expected = pytree.tree_leaves(expected)
    results = lowered(*inputs, shapes=[w.shape for w in expected])
    assert_same(results, expected, rtol, each=True, at_least=atol / rtol if rtol else 0.0)


def run(module: torch.nn.Module, inputs: Inputs, rtol: float = 1e-5, atol: float = 1e-6) -> Lowered:
    """Lower a module completely, run it, and compare it with eager; return the lowered module."""
    lowered = lower(module, inputs)
    assert_as_eager(module, inputs, lowered, rtol, atol)
    assert_as_eager(module, inputs, lowered, rtol, atol)  # a second run: nothing is left over from the first
    return lowered


def refusal(module: torch.nn.Module, inputs: Inputs, op: str, dynamic_shapes: Any = None) -> Verdict:
    """Return the backend's verdict on the first node of an operator, e.g. "aten.add.Tensor"."""
    region = region_of(export(module, inputs, dynamic_shapes))
    backend = XnnpackBackend(XnnpackOptions())
    node: Node = next(n for n in region.graph.nodes if str(n.target) == op)
    return backend.check(node)


class AfterConv(nn.Module):
    """A function of the result of a convolution."""

    """A function of a feature map in NHWC."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.function = nn.Conv2d(3, 6, 3, padding=1), function

    def forward(self, x):
        return self.function(self.conv(x))
