"""Regions in Prims: what they are made of, the verifier, and the example backend that runs them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.fx import GraphModule, Node

import delegate
from delegate.backends.aot import PreprocessResult, Region, RegionRefused
from delegate.backends.lowering import LoweringTable
from delegate.backends.prims import PrimsBackend
from delegate.edge.node import op_name
from delegate.edge.verifier import PRIMS
from delegate.errors import DialectError
from delegate.testing import assert_same
from delegate.verdict import YES, Reason, Verdict, no
from tests.support.functions import NamedFunction
from tests.support.plugins import Site

T = torch.Tensor
F = nn.functional


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.SiLU(), nn.Linear(8, 3), nn.Softmax(-1))


MODULES: dict[str, nn.Module] = {
    "network": mlp(),
    "broadcasting": NamedFunction(lambda x: x + x[:1] * x.sum(1, keepdim=True)),
    "promotion": NamedFunction(lambda x: x + (x > 0) * 2),
    "clamp": NamedFunction(lambda x: x.clamp(0, 1).abs().sqrt()),
    "where": NamedFunction(lambda x: torch.where(x > 0, x, 0.5)),
    "statistics": NamedFunction(lambda x: (x.mean(0), x.var(1), x.amax(0))),
    "products": NamedFunction(lambda x: (x @ x.T).tanh()),
    "attention": NamedFunction(lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None])),
    "gelu": NamedFunction(lambda x: F.gelu(x, approximate="tanh")),
}


class Seen(PrimsBackend):
    """Keeps the regions that it gets."""

    name = "seen"
    library = "Seen"
    table: ClassVar = LoweringTable()
    regions: ClassVar[list[Region]] = []

    def takes(self, node: Node) -> Verdict:
        return no(Reason.OPERATOR, "no") if op_name(node) == "prims.erf.default" else YES

    def compile(self, region: Region) -> PreprocessResult:
        self.regions.append(region)
        if any(op_name(n) == "prims.tanh.default" for n in region.calls):
            raise RegionRefused({n.name: "no tanh" for n in region.calls if op_name(n) == "prims.tanh.default"})
        return PreprocessResult(b"")


HERE = {"backends": [{"name": "seen", "isolate": "none"}]}  # its class keeps the regions in this process


@pytest.fixture
def seen(site: Site) -> type[Seen]:
    site.module(
        "seen_plugin",
        """
        from delegate.backends.info import Availability, BackendInfo
        INFO = BackendInfo("seen", "Keeps regions", "tests.backends.test_prims:Seen",
                           "delegate.runtime.backend:BackendRuntime", lambda: Availability(True), "pip install seen")
        """,
    )
    site.distribution("seen-dist", "1.0", {"seen": "seen_plugin:INFO"})
    Seen.regions = []
    return Seen


@pytest.mark.parametrize("module", MODULES.values(), ids=MODULES.keys())
def test_a_region_in_prims(module: nn.Module, seen: type[Seen]) -> None:
    """It holds Prims and what has none, and gives what the operators give."""
    x = torch.randn(4, 6)
    delegate.to_backend(torch.export.export(module, (x,)), config=HERE)
    assert seen.regions
    for region in seen.regions:
        graph = GraphModule(nn.Module(), region.graph)
        PRIMS.check(graph)
        assert any(op_name(n).startswith("prims.") for n in region.calls)
        placeholders = {n for n in region.graph.nodes if n.op == "placeholder"}
        assert placeholders == {*region.constants, *region.inputs}
    if len(seen.regions) == 1:
        (region,) = seen.regions
        placeholders = [n for n in region.graph.nodes if n.op == "placeholder"]
        given = [region.constants.get(n, x) for n in placeholders]
        with torch.no_grad():
            found = graph(*given)
        wanted = module(x)
        for mine, theirs in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
            assert_same(mine, theirs)


def test_verdicts_are_on_prims(seen: type[Seen]) -> None:
    report = delegate.to_backend(torch.export.export(NamedFunction(F.gelu), (torch.randn(3),)), config=HERE).report
    (node,) = report.nodes
    assert node.backend == "portable"
    assert node.verdicts["seen"].message == "no"


def test_refusals_name_the_programs_own_nodes(seen: type[Seen]) -> None:
    """What the compiler refuses of a Prim is planned elsewhere with the operator that it comes of."""
    module = NamedFunction(lambda x: F.gelu(x.exp(), approximate="tanh").exp())
    report = delegate.to_backend(torch.export.export(module, (torch.randn(3),)), config=HERE).report
    assert {n.op: n.backend for n in report.nodes} == {
        "aten.exp.default": "seen",
        "aten.gelu.default": "portable",
    }


def graph_of(function: Callable[..., T], *inputs: T) -> GraphModule:
    """A graph of Prims as the function writes them."""
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(function, tracing_mode="fake")(*inputs)


prims = torch.ops.prims


def test_the_verifier() -> None:
    x = torch.randn(2, 3)
    PRIMS.check(graph_of(lambda x: prims.mul(x, prims.broadcast_in_dim(prims.sum(x, [0]), [2, 3], [1])), x))
    with pytest.raises(DialectError, match=r"aten\.add\.Tensor is not an operator of the dialect"):
        PRIMS.check(graph_of(torch.ops.aten.add.Tensor, x, x.clone()))
    for what, meta in (("shape", torch.empty(3)), ("dtype", torch.empty(2, 3, dtype=torch.float64))):
        module = graph_of(prims.mul.default, x, x.clone())
        module.graph.find_nodes(op="placeholder")[1].meta["val"] = meta
        with pytest.raises(DialectError, match=f"not Prims: operands of a Prim must have one {what}"):
            PRIMS.check(module)


EXAMPLE = Path(__file__).parents[2] / "examples" / "prims"


@pytest.mark.parametrize("name", ["network", "broadcasting", "where", "products", "statistics"])
def test_the_example(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, site: Site) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.delitem(__import__("sys").modules, "backend", raising=False)
    import backend  # noqa: F401

    x, module = torch.randn(4, 6), MODULES[name].eval()
    program = delegate.to_backend(torch.export.export(module, (x,)), "prims-example")
    assert sum(n.backend == "prims-example" for n in program.report.nodes) >= len(program.report.nodes) / 2
    program.save(tmp_path / "p.dlg")
    loaded = delegate.load(tmp_path / "p.dlg")
    wanted = module(x)
    for found in (program(x), loaded(x.numpy())):
        pairs = zip(*(v if isinstance(v, tuple) else (v,) for v in (found, wanted)), strict=True)
        for mine, theirs in pairs:
            assert_same(torch.as_tensor(mine), theirs)


def test_patterns_and_whole_operators_in_prims(monkeypatch: pytest.MonkeyPatch, site: Site) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.delitem(__import__("sys").modules, "backend", raising=False)
    import backend  # noqa: F401

    module = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4), nn.SiLU())
    x = torch.randn(3, 6)
    program = delegate.to_backend(torch.export.export(module, (x,)), "prims-example")
    (partition,) = program.report.partitions
    assert [(p.name, p.nodes) for p in partition.patterns] == [("linear, relu", ("linear", "relu"))]
    assert partition.nodes == ("linear", "relu", "linear_1", "silu")
    calls = json.loads(bytes(program.program.segments[program.program.delegates[0].segment])[64:])["calls"]
    assert [name for name, _ in calls][:2] == ["linear_relu", "linear"]
    assert {"exp", "div"} <= {name for name, _ in calls}, "the rest is in Prims"
    with torch.no_grad():
        assert_same(program(x), module(x))


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*is deprecated:FutureWarning")  # of torch, by torch
@pytest.mark.parametrize("module", MODULES.values(), ids=MODULES.keys())
def test_portable_kernels_run_programs_in_prims(module: nn.Module) -> None:
    from torch._decomp import decomposition_table

    x = torch.randn(4, 6)
    from delegate.edge.prims import _table

    exported = torch.export.export(module, (x,)).run_decompositions(
        {**torch.export.default_decompositions(), **{op: decomposition_table[op] for op in _table()}}
    )
    used = {str(n.target) for n in exported.graph.nodes}
    assert any(name.startswith("prims.") for name in used)
    program = delegate.to_backend(exported, [])
    assert any(n.op.startswith("prims.") for n in program.report.nodes)
    with torch.no_grad():
        found, wanted = program(x), module(x)
    for mine, theirs in zip(*(v if isinstance(v, tuple) else (v,) for v in (found, wanted)), strict=True):
        assert_same(mine, theirs)
