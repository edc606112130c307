"""How long the partitioner takes for graphs of 1,000 to 100,000 nodes, and next to it torch.fx's own at 1,000.

    python benchmarks/partitioner.py

The graph is a chain of relu, add and mul over two live tensors; every 50th node is one that no backend takes. "three":
backends in order of preference: pairs of add and mul that one claims as patterns, what is left of add, the rest.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import create_op_support

from delegate.backend.aot import Claim, PreprocessResult
from delegate.backend.selected import SelectedBackend
from delegate.edge.program import EdgeInput, EdgeProgram
from delegate.partitioner.extraction import LoweredDelegate, lower
from delegate.partitioner.partitioner import CapabilityPartitioner
from delegate.partitioner.plan import Plan
from delegate.partitioner.planning import plan
from delegate.verdict import YES, Reason, Verdict, no
from tests.support.planning import part, regions, selected

SIZES = (1_000, 10_000, 100_000)
COMPARED = 1_000  # torch.fx's partitioner takes minutes for more
EVERY = 50
OPERATORS = (torch.ops.aten.relu.default, torch.ops.aten.add.Tensor, torch.ops.aten.mul.Tensor)
UNSUPPORTED = torch.ops.aten.sin.default


def check(node: Node) -> Verdict:
    """The support check of the backend."""
    return no(Reason.OPERATOR, "no lowering of sin") if node.target is UNSUPPORTED else YES


def sums(node: Node) -> Verdict:
    """The check of a backend that adds."""
    return YES if node.target is OPERATORS[1] else no(Reason.OPERATOR, "it only adds")


def pairs(node: Node) -> tuple[Claim, ...]:
    """The claims of a backend: a product with the sum that feeds it, one time in ten."""
    sources = [n for n in node.all_input_nodes if n.target is OPERATORS[1]]
    fits = node.target is OPERATORS[2] and sources and node.name.endswith("7")
    return (Claim("add, mul", (sources[0], node)),) if fits else ()


def nothing(node: Node) -> Verdict:
    """The check of a backend that takes patterns alone."""
    return no(Reason.OPERATOR, "only as part of a pattern")


ONE = selected({"toy": part(check)})
THREE = selected({"pairs": part(nothing, claims=pairs), "sums": part(sums), "toy": part(check)})


def planned(program: EdgeProgram, backends: Mapping[str, SelectedBackend]) -> Plan:
    """The plan of a program on these backends."""
    return plan(program, [CapabilityPartitioner(name) for name in backends], backends)


def build(size: int) -> EdgeProgram:
    """A program of so many nodes."""
    graph = Graph()
    value = torch.empty(64, 1024, device="meta")
    live = [graph.placeholder("x"), graph.placeholder("y")]
    for i in range(size):
        operator = UNSUPPORTED if i % EVERY == EVERY - 1 else OPERATORS[i % len(OPERATORS)]
        inputs = tuple(live) if operator in OPERATORS[1:] else (live[-1],)
        live = [live[-1], graph.call_function(operator, inputs)]
    graph.output(tuple(live))
    for node in graph.nodes:
        node.meta["val"] = value
    inputs = (EdgeInput("x", "x"), EdgeInput("y", "y"))
    return EdgeProgram("forward", GraphModule({}, graph), inputs, {}, {}, {}, (), None, None, {})


def lowered(made: Plan) -> int:
    """Cut all partitions out and rebuild the graph; the number of its nodes."""
    delegates = {name: LoweredDelegate("toy", PreprocessResult(b""), r) for name, r in regions(made).items()}
    return len(lower(made, delegates).program.graph.nodes)


def seconds(function: Callable[[], object]) -> float:
    """The least of three runs."""
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - start)
    return best


def torch_fx(program: EdgeProgram) -> int:
    """The number of partitions that torch.fx's partitioner proposes."""
    support = create_op_support(lambda _, node: node.op == "call_function" and bool(check(node)))
    partitioner = CapabilityBasedPartitioner(program.graph_module, support, allows_single_node_partition=True)
    return len(partitioner.propose_partitions())


def main() -> int:
    """Print the table."""
    columns = f"{'nodes':>8}  {'partitions':>10}  {'plan s':>8}  {'us/node':>8}  {'three s':>8}"
    print(f"{columns}  {'cut and rebuild s':>18}  {'torch.fx s':>10}")
    for size in SIZES:
        program = build(size)
        made = planned(program, ONE)
        planning, three = (seconds(lambda p=program, b=b: planned(p, b)) for b in (ONE, THREE))
        rebuild = seconds(lambda m=made: lowered(m))
        other = f"{seconds(lambda p=program: torch_fx(p)):10.3f}" if size <= COMPARED else f"{'-':>10}"
        row = f"{size:8}  {len(made.partitions):10}  {planning:8.3f}  {planning / size * 1e6:8.1f}  {three:8.3f}"
        print(f"{row}  {rebuild:18.3f}  {other}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
