"""Three backends with wishes of their own over real models: patterns, parts, refusals at the last moment."""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Iterator, Sequence
from typing import ClassVar

import pytest
import torch
import torch.utils._pytree as pytree
from torch.fx import Node

import delegate
from delegate.backend.aot import Claim, PreprocessResult, Region, RegionRefused
from delegate.backend.info import Availability, BackendInfo
from delegate.backend.region import content_of
from delegate.backends.xnnpack.aot.backend import XnnpackBackend
from delegate.edge.graphs import identity
from delegate.edge.node import is_compute, op_name
from delegate.registry import default_registry
from delegate.testing import assert_same
from delegate.verdict import Reason, Verdict, no
from tests.support import zoo
from tests.support.sampling import every


class Counted(XnnpackBackend):
    """XNNPACK under another name, which notes what it compiles."""

    compiled: ClassVar[list[Hashable]] = []

    def preprocess(self, region: Region) -> PreprocessResult:
        self.compiled.append((self.name, content_of(region)))
        return super().preprocess(region)


class Fused(Counted):
    """Takes a linear layer together with what follows it, and nothing else."""

    name = "fused"

    def check(self, node: Node) -> Verdict:
        return no(Reason.OPERATOR, "it takes linear layers with what follows them")

    def claims(self, node: Node) -> Sequence[Claim]:
        source = node.args[0] if node.args else None
        after = op_name(node) in ("aten.gelu.default", "aten.silu.default") and isinstance(source, Node)
        if not after or op_name(source) != "aten.linear.default":
            return ()
        checks = (super(Fused, self).check(n) for n in (source, node))
        return (Claim("linear, activation", (source, node), next((v for v in checks if not v), Verdict())),)

    def preprocess(self, region: Region) -> PreprocessResult:
        claimed = {n for p in region.patterns for n in p.nodes}
        assert claimed == set(region.calls), "a pattern came apart"
        return super().preprocess(region)


class InParts(Counted):
    """Wants every operator in parts, and multiplies nothing."""

    name = "parts"

    @property
    def preserve_ops(self) -> frozenset[str]:
        return frozenset()

    def check(self, node: Node) -> Verdict:
        if op_name(node) in ("aten.mm.default", "aten.bmm.default", "aten.addmm.default", "aten.convolution.default"):
            return no(Reason.OPERATOR, "it multiplies nothing")
        return super().check(node)


class Picky(Counted):
    """Finds only when it compiles that it does not take one node in ten."""

    name = "picky"

    def preprocess(self, region: Region) -> PreprocessResult:
        refused = [n for n in region.calls if is_compute(n) and zlib.crc32(identity(n).encode()) % 10 == 0]
        if refused:
            self.compiled.append((self.name, content_of(region)))
            raise RegionRefused({n.name: "one in ten" for n in refused})
        return super().preprocess(region)


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    default_registry.cache_clear()
    for half in (Fused, InParts, Picky):
        runtime = "delegate.backends.xnnpack.runtime.delegate:XnnpackRuntime"
        info = BackendInfo(half.name, "", f"{__name__}:{half.__name__}", runtime, lambda: Availability(True), "")
        default_registry().register(info)
    Counted.compiled.clear()
    yield
    default_registry.cache_clear()


@pytest.mark.parametrize("model", every(2, ["llama_mini", "swin_t"]))
def test_three_backends(model: str) -> None:
    module, inputs = zoo.make(model)
    with zoo.libraries():
        program = delegate.to_backend(zoo.export(model), ["fused", "parts", "picky"])
    places = {n.backend for n in program.report.nodes}
    assert places >= {"fused", "parts", "picky", "portable"}
    assert len(Counted.compiled) == len(set(Counted.compiled)), "a region was compiled twice"
    words = {n.verdicts["picky"].message for n in program.report.nodes if n.backend == "portable"}
    assert "one in ten" in words
    with torch.no_grad():
        expected = [leaf for leaf in pytree.tree_leaves(module(*inputs)) if isinstance(leaf, torch.Tensor)]
    for result, wanted in zip(pytree.tree_leaves(program(*inputs)), expected, strict=True):
        assert_same(result, wanted, 3e-6)


class Steps(torch.nn.Module):
    """What is in parts for one backend, between activations that another refuses, one in each round."""

    def __init__(self) -> None:
        super().__init__()
        self.linears = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for linear in self.linears:
            x = torch.nn.functional.gelu(linear(x)).sin()
        return x


class OneByOne(Counted):
    """Refuses one node at a time, when it compiles."""

    name = "fused"

    def check(self, node: Node) -> Verdict:
        return Verdict() if op_name(node) == "aten.gelu.default" else no(Reason.OPERATOR, "it takes gelu alone")

    def claims(self, node: Node) -> Sequence[Claim]:
        return ()

    def preprocess(self, region: Region) -> PreprocessResult:
        self.compiled.append((self.name, content_of(region)))
        raise RegionRefused({region.calls[0].name: "one by one"})


class Products(InParts):
    """Takes linear layers in parts, where their weights are folded constants."""

    def check(self, node: Node) -> Verdict:
        product = op_name(node) in ("aten.mm.default", "aten.addmm.default")
        return XnnpackBackend.check(self, node) if product else no(Reason.OPERATOR, "it takes products alone")


def test_what_later_backends_refuse_compiles_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.Fused", OneByOne)
    monkeypatch.setattr(f"{__name__}.InParts", Products)
    module, x = Steps().eval(), torch.randn(3, 8)
    config = {"backends": ["parts", "fused"], "partitioning": {"min_partition_size": 0}}
    program = delegate.to_backend(torch.export.export(module, (x,)), config=config)
    mine = [where for name, where in Counted.compiled if name == "parts"]
    assert mine
    assert len(mine) == len({n.partition for n in program.report.nodes if n.backend == "parts"})
    assert_same(program(x), module(x))
