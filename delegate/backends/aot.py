"""The ahead-of-time half of a backend: says what it can run, and turns a region into its vendor's blob."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from pydantic import BaseModel, ConfigDict
from torch.fx import Graph, Node

from delegate.edge.graphs import copy_node
from delegate.typed import expect, is_texts
from delegate.verdict import Verdict


class Options(BaseModel):
    """Base of a backend's options; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True)
class Region:
    """A partition cut out of its program, as the backend gets it.

    Args:
        name: unique in the program, e.g. "xnnpack_0"; used for the delegate and in messages.
        graph: a graph of its own: placeholders (inputs, then constants), call_function nodes in topological order,
            and one output node whose argument is the tuple of results. Every node keeps its name and `meta`.
        inputs: the placeholders that are given at run time, in the order of the delegate's inputs.
        constants: placeholder -> its tensor, contiguous or not.
        outputs: the nodes whose values leave, in the order of the delegate's outputs; each gives one tensor.
    """

    name: str
    graph: Graph
    inputs: tuple[Node, ...]
    constants: Mapping[Node, torch.Tensor]
    outputs: tuple[Node, ...]

    def copy(self) -> Region:
        """The same with a graph of its own, for a backend that rewrites it: the one that it was given must stay."""
        graph, copies = Graph(), dict[Node, Node]()
        for node in self.graph.nodes:
            copies[node] = copy_node(graph, node, copies)
        return Region(
            self.name,
            graph,
            tuple(copies[n] for n in self.inputs),
            {copies[n]: value for n, value in self.constants.items()},
            tuple(copies[n] for n in self.outputs),
        )

    def part(self, nodes: Sequence[Node]) -> Region:
        """Some of its nodes as a region, in the order of the graph, with all its inputs: they may tell sizes.

        Nodes that give tuples must be there together with their getitems.
        """
        inside, graph, copies = set(nodes), Graph(), dict[Node, Node]()
        used = (s for node in nodes for s in node.all_input_nodes if s not in inside)
        for source in dict.fromkeys((*self.inputs, *used)):
            copies[source] = graph.create_node("placeholder", source.name, name=source.name)
            copies[source].meta = dict(source.meta)
        given = tuple(copies.items())
        for node in nodes:
            copies[node] = copy_node(graph, node, copies)
        outputs = tuple(copies[n] for n in nodes if any(user not in inside for user in n.users))
        graph.output(outputs)
        return Region(
            self.name,
            graph,
            tuple(copied for node, copied in given if node not in self.constants),
            {copied: self.constants[node] for node, copied in given if node in self.constants},
            outputs,
        )


@dataclass(frozen=True)
class PreprocessResult:
    """What a backend makes of a region.

    Args:
        blob: the vendor's own format, given unchanged to the runtime half.
        compile_specs: plain JSON values for the runtime half, which gets what JSON makes of them: lists for tuples.
        notes: for the report, e.g. "3 transposes".
        space: the memory of the device that inputs and outputs may lie in besides the host's, as the runtime half knows
            it (`BackendRuntime.allocate`), e.g. "webgpu"; empty where it takes NumPy arrays alone.
    """

    blob: bytes
    compile_specs: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    space: str = ""

    def __post_init__(self) -> None:
        expect(self, "blob", isinstance(self.blob, bytes | bytearray | memoryview), "bytes")
        expect(self, "compile_specs", isinstance(self.compile_specs, Mapping), "a mapping")
        try:
            specs = json.loads(json.dumps(dict(self.compile_specs), allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"PreprocessResult.compile_specs should be plain JSON values: {error}") from error
        object.__setattr__(self, "compile_specs", specs)
        expect(self, "notes", is_texts(self.notes), "a tuple of texts")
        expect(self, "space", isinstance(self.space, str), "text")


class RegionRefused(Exception):
    """Raised by `preprocess` when the vendor library does not take some nodes after all: the program is planned again
    without them.

    Args:
        reasons: names of the nodes that it does not take -> the library's own words.
    """

    def __init__(self, reasons: Mapping[str, str]) -> None:
        self.reasons = dict(reasons)
        named = all(isinstance(text, str) for item in self.reasons.items() for text in item)
        expect(self, "reasons", bool(self.reasons) and named, "names of nodes with the words on each")
        super().__init__("; ".join(f"{n}: {why}" for n, why in self.reasons.items()))


class RegionFailed(Exception):
    """Raised by `preprocess` when the vendor library does not take a region and does not say because of which nodes:
    they are found by compiling parts of it.

    Args:
        reason: the library's own words.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Backend(ABC):
    """The AOT half. One object serves one `to_backend` call.

    It may raise BackendUnavailable when it is made, where what its options ask for is not here.

    A backend on a table of lowerings subclasses `delegate.backends.lowering.TableBackend` instead.
    """

    Options: ClassVar[type[Options]] = Options
    name: ClassVar[str]

    def __init__(self, options: Any) -> None:
        self.options = options

    @classmethod
    def conditions(cls, op: str) -> tuple[str, ...] | None:
        """Under which conditions it takes an operator, as sentences for `delegate ops`; none for any node.

        None where it never does, or cannot say without a node, as this method does where it is not overridden.
        """
        return None

    @property
    def preserve_ops(self) -> Set[str]:
        """Operators (such as "aten.linear.default") to keep whole until partitioning has been decided."""
        return frozenset()

    @abstractmethod
    def check(self, node: Node) -> Verdict:
        """Whether it can run this node of an edge graph, and if not, why. Must not change the graph."""

    @abstractmethod
    def preprocess(self, region: Region) -> PreprocessResult:
        """Compile a region; raises RegionRefused for nodes that the library turns down, RegionFailed where it does not
        name them, LoweringError for a fault."""
