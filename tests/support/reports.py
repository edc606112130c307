"""Reports made by hand: a model of two blocks, with everything that a page shows."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from delegate.program.memory_picture import MemoryBlock, MemoryPicture, PartitionMemory
from delegate.report import Report
from delegate.report.measured import Interval, Placement, PlanCost
from delegate.report.rows import Accuracy, LayerAccuracy, MethodAccuracy, NodeReport, PartitionReport
from delegate.verdict import YES, Reason, no

HOSTILE = "</script><script>alert(1)</script><!-- \u202e\x1b[31m & ' \" <img src=x onerror=alert(1)>"
REFUSAL = no(Reason.RANK, "5 dimensions are too many", "reshape it to 4")


def node(name: str, op: str, module: str, inputs: tuple[str, ...], *, portable: bool = False) -> NodeReport:
    """Return a node on xnnpack, or a portable one that xnnpack refuses."""
    verdicts = {"xnnpack": REFUSAL if portable else YES}
    backend, partition = ("portable", "") if portable else ("xnnpack", "xnnpack_0")
    return NodeReport(
        "forward", name, f"aten.{op}.default", backend, partition, verdicts, "float32[1, 8]", f"model.py:{len(name)}",
        module, 0.125, 0.125, inputs, 32,
    )  # fmt: skip


def report(*, moved: bool = False) -> Report:
    """Return a report of eight nodes; with `moved`, the last node is portable."""
    nodes = [node("embed", "embedding", "embed", ("input x", "constant embed.weight"))]
    before = "embed"
    for block in range(2):
        for op in ("linear", "relu", "sort"):
            name = f"{op}_{block}"
            nodes.append(node(name, op, f"blocks.{block}.{op}", (before,), portable=op == "sort"))
            before = name
    nodes.append(node("head", "linear", "head", (before,), portable=moved))
    names = tuple(n.name for n in nodes if n.partition)
    accuracy = Accuracy(31.5, 0.01, 0.001, None)
    placement = Placement(
        "forward", "latency", "xnnpack",
        (
            PlanCost("xnnpack", 1, 0.001, 5, None, 42.0),
            PlanCost("portable", 0, 0.002, 5, Interval(2.0, 1.5, 2.5), 60.0),
        ),
        ("a third plan",),
    )  # fmt: skip
    blocks = (MemoryBlock("sort_0", 0, 0, 64, 1, 3), MemoryBlock("sort_1", 0, 64, 64, 2, 4))
    return Report(
        methods=("forward",),
        nodes=tuple(nodes),
        partitions=(PartitionReport("forward", "xnnpack_0", "xnnpack", names, 32, 32, 0.75, ("5 operators",),
                                    accuracy=accuracy),),
        notes=("a note for people",),
        accuracy=(MethodAccuracy("forward", "the float reference", accuracy),),
        placements=(placement,),
        layers=(
            LayerAccuracy("forward", "linear_0", "blocks.0.linear, aten.linear.default", 45.0, 45.0),
            LayerAccuracy("forward", "conv2d", "blocks.0.relu, aten.conv2d.default", math.inf, 44.0),
            LayerAccuracy("forward", "linear_1", "blocks.1.linear, aten.linear.default", 30.5, 29.0),
            LayerAccuracy("forward", "gone", "elsewhere, aten.mean.dim", 50.0, 33.0),
            LayerAccuracy("forward", "head", "head, aten.linear.default", 41.0, 31.5),
        ),
        memory=(MemoryPicture("forward", ("host",), (128,), 6, blocks, (("table", 256),),
                              (PartitionMemory("xnnpack_0", "xnnpack", 3584, 512, 256),)),),
    )  # fmt: skip


def data_of(text: str) -> dict[str, Any]:
    """Return the data of a page."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])
