"""The ahead-of-time half of a backend: says what it can run, and turns a region into its vendor's blob."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict
from torch.fx import Node

from delegate.backends.quantizable import QuantizationScheme
from delegate.backends.region import ClaimedPattern, Region
from delegate.cache.environment import host_features
from delegate.field_checks import expect, is_texts
from delegate.verdict import YES, Verdict

__all__ = [
    "Backend", "Claim", "ClaimedPattern", "Options", "PreprocessResult", "Region", "RegionFailed", "RegionGivenUp",
    "RegionRefused",
]  # fmt: skip


class Options(BaseModel):
    """Base of a backend's options; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, slots=True)
class Claim:
    """Nodes that a backend would run as one, or why a pattern that almost fits does not.

    Args:
        name: of the pattern, for reports and for the region that holds it, e.g. "linear, relu".
        nodes: all of it in any order, the node around which it was looked for among them. They come into one partition
            together, or not at all; values in between may be used by others too.
        verdict: yes; or no with the reason, which stands in the report where the backend does not take the node alone.
    """

    name: str
    nodes: tuple[Node, ...]
    verdict: Verdict = YES

    def __post_init__(self) -> None:
        expect(self, "name", isinstance(self.name, str), "text")
        given = isinstance(self.nodes, tuple) and all(
            isinstance(n, Node) and n.op == "call_function" for n in self.nodes
        )
        expect(self, "nodes", given and bool(self.nodes), "a tuple of nodes that call operators")
        expect(self, "verdict", isinstance(self.verdict, Verdict), "a Verdict")


@dataclass(frozen=True)
class PreprocessResult:
    """The result of compiling a region.

    Args:
        blob: the vendor's own format, given unchanged to the runtime half.
        compile_specs: plain JSON values for the runtime half, which gets what JSON makes of them: lists for tuples.
        notes: for the report, e.g. "3 transposes".
        space: the memory of the device that inputs and outputs may lie in besides the host's, as the runtime half knows
            it (`BackendRuntime.allocate`), e.g. "webgpu"; empty where it takes NumPy arrays alone.
        data: what belongs to the blob and partitions may share, such as weights, for `BackendRuntime.init_with_data`.
            The file holds the same content once.
    """

    blob: bytes | memoryview
    compile_specs: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    space: str = ""
    data: tuple[bytes | memoryview, ...] = ()

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
        plain = isinstance(self.data, tuple) and all(isinstance(d, bytes | memoryview) for d in self.data)
        expect(self, "data", plain, "a tuple of bytes")


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


class RegionGivenUp(RegionRefused):
    """A region is refused for a fault that may be of the moment, such as a compiler that takes too long: not kept."""


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
    most_constants: ClassVar[int | None] = None  # elements that one partition may hold: what has more is cut
    check_uses_library: ClassVar[bool] = True  # `check` may crash or hang: see "A compile that crashes" in the docs
    may_crash: ClassVar[bool] = False  # `preprocess` may end the process; this is assumed of every plugin

    def __init__(self, options: Any) -> None:
        self.options = options

    @classmethod
    def conditions(cls, op: str) -> tuple[str, ...] | None:
        """Under which conditions it takes an operator, as sentences for `delegate ops`; none for any node.

        None where it never does, or cannot say without a node, as this method does where it is not overridden.
        """
        return None

    @classmethod
    def quantization(cls) -> Sequence[QuantizationScheme]:
        """The ways of quantizing that it takes, its default first; none where it runs no integers.

        `delegate.quantization` makes its quantizers of them.
        """
        return ()

    @property
    def preserve_ops(self) -> Set[str]:
        """Compound operators (such as "aten.linear.default") that it wants to be offered whole.

        One that it refuses whole, and every other compound operator, is offered in parts. What one backend wants
        changes nothing for another.
        """
        return frozenset()

    @abstractmethod
    def check(self, node: Node) -> Verdict:
        """Return the verdict on a node of an edge graph: a refusal has its reason. Must not change the graph."""

    def claims(self, node: Node) -> Sequence[Claim]:
        """Patterns of several nodes around this one that it runs as one, the preferred first.

        It is called once for every node that calls an operator, and must not change the graph. Nodes of a claim need
        not be accepted by `check`.
        Where an accepted claim shares nodes with another of the same backend, both come into one partition.
        """
        return ()

    def cache_key(self) -> str | None:
        """Return the inputs of `preprocess` and `check` that the framework does not know; None: results are not cached.

        Known are the region with its constants, the options, the code of the plugin's package, the versions of what its
        distribution asks for, and the versions and devices that its probe tells. The default is this machine. Where
        results depend on anything else, such as an environment variable or the content of a file, it belongs in here.
        It is called once in a lowering.
        """
        return host_features()

    def check_artifact(self, region: Region, artifact: PreprocessResult) -> None:  # noqa: B027 - most need none
        """Raise an exception if a cached artifact of a region is impossible, so that the region is compiled again.

        Its checksums are right, and its fields have the right types. An override checks `compile_specs`. The default
        accepts every artifact.
        """

    @abstractmethod
    def preprocess(self, region: Region) -> PreprocessResult:
        """Compile a region; raises RegionRefused for nodes that the library turns down, RegionFailed where it does not
        name them, LoweringError for a fault."""
