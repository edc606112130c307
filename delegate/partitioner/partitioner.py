"""Partitioner: says for every node of a program whether one backend shall run it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

from torch.fx import Node

from delegate.edge.node import is_compute
from delegate.edge.program import EdgeProgram
from delegate.partitioner.capability import Check
from delegate.verdict import Verdict


class Partitioner(ABC):
    """What may stand where the name of a backend may stand, for those who choose the nodes themselves.

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

    @abstractmethod
    def partition(self, program: EdgeProgram, check: Check) -> Mapping[Node, Verdict]:
        """A verdict for every node of the program that computes (`delegate.edge.node.is_compute`).

        It is called once for the program's graph and once for every graph of its control flow. It can narrow what the
        backend takes, not widen it: a yes where `check` says no counts as that no, and a node that the mapping lacks
        is not taken. Nodes of different `Verdict.tag` never share a partition. It must not change the graph.

        Args:
            program: the method.
            check: the backend's own answer for a node, with the exclusions and pins of the configuration.
        """


class CapabilityPartitioner(Partitioner):
    """The default: the backend's own check of every node."""

    def partition(self, program: EdgeProgram, check: Check) -> Mapping[Node, Verdict]:
        return {node: check(node) for node in program.graph.nodes if is_compute(node)}
