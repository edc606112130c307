"""The AOT part of a backend: it checks which nodes it supports, and compiles a region to its vendor's blob."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from pydantic import BaseModel, ConfigDict
from torch.fx import Node

from delegate.backend.deviations import Deviation
from delegate.backend.quantizable import QuantizationScheme
from delegate.backend.region import ClaimedPattern, Region
from delegate.cache.runtime.environment import host_features
from delegate.common.field_checks import expect, is_texts
from delegate.verdict import YES, Verdict

__all__ = [
    "Backend", "Claim", "ClaimedPattern", "Options", "PreprocessResult", "Region", "RegionFailed", "RegionGivenUp",
    "RegionRefused", "Reproduction",
]  # fmt: skip


class Options(BaseModel):
    """Base of a backend's options; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def plain(options: Any) -> Any:
    """Return options as nested tuples, including the fields that their own text omits."""
    if isinstance(options, BaseModel):
        return (
            type(options).__qualname__,
            tuple((name, plain(value)) for name, value in sorted(vars(options).items())),
        )
    if isinstance(options, Mapping):
        return tuple(sorted((repr(name), plain(value)) for name, value in options.items()))
    if isinstance(options, list | tuple):
        return tuple(map(plain, options))
    return repr(options)


@dataclass(frozen=True, slots=True)
class Claim:
    """Nodes that a backend would run as one operation, or the reason why an almost fitting pattern is unsupported.

    Args:
        name: name of the pattern in reports and regions, e.g. "linear, relu".
        nodes: all nodes of the pattern in any order, including the node that `claims` received. They are in one
            partition together, or in none, and other nodes may use their intermediate values.
        verdict: yes, or no with a reason. The report shows the reason if the backend does not support the node alone.
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
        blob: bytes in the vendor's own format, which the runtime part receives unchanged.
        compile_specs: plain JSON values for the runtime part, which receives lists in place of tuples.
        notes: remarks for the report, e.g. "3 transposes".
        space: name of the device memory that inputs and outputs may be in besides host memory, e.g. "webgpu"; see
            `BackendRuntime.allocate`. Empty if the backend only supports NumPy arrays.
        data: bytes that belong to the blob and that partitions may share, such as weights. They are arguments of
            `BackendRuntime.init_with_data`. The file stores equal content once.
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
        expect(self, "notes", is_texts(self.notes), "a tuple of text values")
        expect(self, "space", isinstance(self.space, str), "text")
        holds_bytes = isinstance(self.data, tuple) and all(isinstance(d, bytes | memoryview) for d in self.data)
        expect(self, "data", holds_bytes, "a tuple of bytes")

    def to_data(self) -> tuple[dict[str, Any], tuple[bytes | memoryview, ...]]:
        """Return the fields as JSON values, and the bytes."""
        about = {"compile_specs": self.compile_specs, "notes": list(self.notes), "space": self.space}
        return about, (self.blob, *self.data)

    @classmethod
    def of_data(cls, about: Mapping[str, Any], parts: Sequence[bytes | memoryview]) -> PreprocessResult:
        """Return the result of `to_data`; raises KeyError, TypeError or ValueError for anything else."""
        blob, *data = parts
        return cls(blob, about["compile_specs"], tuple(about["notes"]), about["space"], tuple(data))

    def require_specs(self, expected: Mapping[str, Any]) -> None:
        """Raise ValueError or KeyError unless the compile specs have these values, of the same types."""
        found = {name: self.compile_specs[name] for name in expected}
        if json.dumps(found, sort_keys=True) != json.dumps(dict(expected), sort_keys=True):
            raise ValueError("its compile specs are not those of its region and its options")


@dataclass(frozen=True)
class Reproduction:
    """A way to run an artifact with the vendor's library alone, for a script that shows a fault of the library.

    Args:
        files: name -> content, such as the vendor's model. The script's folder has them.
        code: Python that defines `run(inputs)`: arrays in the order of the region's inputs -> a list of arrays. `HERE`
            is the folder of the script, a `pathlib.Path`, and `np` is NumPy, and inputs of bfloat16 are float32 arrays.
        packages: the distributions that it needs, besides NumPy.
    """

    files: Mapping[str, bytes]
    code: str
    packages: tuple[str, ...]


class RegionRefused(Exception):
    """Raised by `preprocess` if the vendor library rejects some nodes, so the program is planned again without them.

    Args:
        reasons: names of the rejected nodes, with the library's messages.
    """

    def __init__(self, reasons: Mapping[str, str]) -> None:
        self.reasons = dict(reasons)
        named = all(isinstance(text, str) for item in self.reasons.items() for text in item)
        expect(self, "reasons", bool(self.reasons) and named, "a mapping of names of nodes to reasons")
        super().__init__("; ".join(f"{n}: {why}" for n, why in self.reasons.items()))


class RegionGivenUp(RegionRefused):
    """A rejection for a fault that may be temporary, such as a slow compiler, which is not cached."""


class RegionFailed(Exception):
    """Raised by `preprocess` if the vendor library rejects a region without naming nodes.

    The framework finds the nodes by compiling parts of the region.

    Args:
        reason: the library's message.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class RegionCrashed(RegionFailed):
    """A region at which a compiler did not answer: its process ended, or it raised any other error."""


class Backend(ABC):
    """The AOT part of a backend. One object serves one `to_backend` call.

    - `__init__` raises BackendUnavailable if the options require something that this machine lacks.
    - A backend with a table of lowerings subclasses `delegate.backend.lowering.TableBackend` instead.

    Attributes:
        deviations: where results of the library differ from torch, each difference in one row.
        most_constants: most elements of constants in one partition; None for no limit, and larger partitions are cut.
        check_uses_library: whether `check` calls the library, so that it may crash or hang;
            see docs/reference/backends.md.
        may_crash: whether `preprocess` may end the process, as is assumed of every plugin.
    """

    Options: ClassVar[type[Options]] = Options
    name: ClassVar[str]
    deviations: ClassVar[Sequence[Deviation]] = ()
    most_constants: ClassVar[int | None] = None
    check_uses_library: ClassVar[bool] = True
    may_crash: ClassVar[bool] = False

    def __init__(self, options: Any) -> None:
        self.options = options

    @classmethod
    def conditions(cls, op: str) -> tuple[str, ...] | None:
        """Return the conditions of support for an operator, as sentences for `delegate ops`; empty for any node.

        Return None if the operator is unsupported, or if support depends on the node, which is the default.
        """
        return None

    @classmethod
    def quantization(cls) -> Sequence[QuantizationScheme]:
        """Return the supported quantization schemes, the default first; none if the backend runs no integers.

        `delegate.quantization` builds its quantizers from them.
        """
        return ()

    @property
    def float32_precision(self) -> torch.dtype:
        """Return the dtype whose digits the results of float32 have, so that the debugger expects its rounding."""
        return torch.float32

    @property
    def preserve_ops(self) -> Set[str]:
        """Compound operators to preserve for this backend, such as "aten.linear.default".

        If `check` refuses a preserved operator, it receives the operator's decomposition, and all other compound
        operators are decomposed first. The set of one backend does not affect another backend.
        """
        return frozenset()

    @abstractmethod
    def check(self, node: Node) -> Verdict:
        """Return the verdict on a node of an edge graph; a refusal has a reason. Must not change the graph."""

    def claims(self, node: Node) -> Sequence[Claim]:
        """Return the patterns around a node that the backend runs as one operation, the preferred first.

        - The framework calls this once for every node that calls an operator. It must not change the graph.
        - `check` may refuse nodes of a claim.
        - Accepted claims of one backend that share nodes are in one partition.
        """
        return ()

    def cache_key(self) -> str | None:
        """Return the inputs of `preprocess` and `check` that the framework does not know; None: results are not cached.

        The framework knows the region with its constants, the options, and the code of the plugin's package. It also
        knows the versions of the distribution's requirements, and the versions and devices of the probe. The default
        key is this machine. If results depend on anything else, such as an environment variable or the content of a
        file, return it here, which happens once in a lowering.
        """
        return host_features()

    def check_artifact(self, region: Region, artifact: PreprocessResult) -> None:  # noqa: B027 - most need none
        """Raise an exception if a cached artifact of a region is impossible, so that the region is compiled again.

        Its checksums and the types of its fields are already checked, so an override checks `compile_specs`. The
        default accepts every artifact.
        """

    def reproduction(self, artifact: PreprocessResult) -> Reproduction | None:
        """Return a way to run an artifact without this project; None, the default, if there is none.

        `delegate debug` writes it for a fault of the library, so that its vendor can run it.
        """
        return None

    @abstractmethod
    def preprocess(self, region: Region) -> PreprocessResult:
        """Compile a region.

        Raises:
            RegionRefused: the library rejects some nodes.
            RegionFailed: the library rejects the region without naming nodes.
            LoweringError: any other fault.
        """
