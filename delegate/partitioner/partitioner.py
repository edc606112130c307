"""Partitioner: selects the nodes of a program that one backend runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

from torch.fx import Node

from delegate.edge.node import is_compute
from delegate.edge.program import EdgeProgram
from delegate.partitioner.support_query import Check
from delegate.verdict import Verdict


class Partitioner(ABC):
    """A choice of nodes for a backend; accepted wherever the name of a backend is.

    Example::

        class NoSoftmax(delegate.Partitioner):
            def partition(self, program, check):
                nodes = (n for n in program.graph.nodes if n.op == "call_function")
                return {n: check(n) for n in nodes if "softmax" not in n.name}


        program = delegate.to_backend(exported, NoSoftmax("xnnpack"))

    Args:
        backend: name of the backend that runs the nodes.
        options: options of that backend, as in the configuration.
        isolate: a key of the configuration: "auto", "compile" or "none".
        time_limit: seconds of that process for the support checks of a graph, and for each region.
    """

    isolate: Literal["auto", "compile", "none"] = "auto"
    time_limit: float = 600.0

    def __init__(
        self,
        backend: str,
        options: Mapping[str, Any] | None = None,
        *,
        isolate: Literal["auto", "compile", "none"] = "auto",
        time_limit: float = 600.0,
    ) -> None:
        self.backend = backend
        self.options: Mapping[str, Any] = dict(options or {})
        self.isolate, self.time_limit = isolate, time_limit

    def __repr__(self) -> str:
        options = f", options={dict(self.options)}" if self.options else ""
        return f"{type(self).__name__}({self.backend!r}{options})"

    @abstractmethod
    def partition(self, program: EdgeProgram, check: Check) -> Mapping[Node, Verdict]:
        """Return a verdict for every node of the program that computes (`delegate.edge.node.is_compute`).

        The method is called once for the program's graph and once for every graph of its control flow. It can only
        narrow the selection of the backend. A yes to a node that `check` refuses counts as this refusal, and nodes
        without a verdict are refused, and nodes of different `Verdict.tag` never share a partition. The method must not
        change the graph.

        Args:
            program: the method.
            check: the backend's own verdict on a node, after the exclusions and pins of the configuration.
        """


class CapabilityPartitioner(Partitioner):
    """The default partitioner: the backend's own check decides on every node."""

    def partition(self, program: EdgeProgram, check: Check) -> Mapping[Node, Verdict]:
        return {node: check(node) for node in program.graph.nodes if is_compute(node)}
