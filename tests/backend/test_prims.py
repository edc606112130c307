"""Regions in Prims: what they are made of, the verifier, and the example backend that runs them."""

from __future__ import annotations

import importlib
import json
import operator
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.fx import GraphModule, Node

import delegate
from delegate.backend.aot import PreprocessResult, Region, RegionRefused
from delegate.backend.exported import plain_graph
from delegate.backend.lowering import LoweringTable
from delegate.backend.prims import PRIMS, PrimsBackend
from delegate.edge.node import is_number, op_name, tensor
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
    "scalars": NamedFunction(lambda x: torch.where(x > x.amax() / 2, x + x.sum(), x.amin()) * torch.tensor(2.0)),
    "scalars of another dtype": NamedFunction(lambda x: x * (x > 0).sum() + torch.tensor(3)),
    "batch norm": nn.BatchNorm1d(6).eval(),
    "log softmax": nn.LogSoftmax(-1),
    "normalized": NamedFunction(F.normalize),
    "more dimensions": NamedFunction(lambda x: x[:, None].expand(-1, 3, -1) * x[:, :3, None]),
    "running sums": NamedFunction(lambda x: x.cumsum(0)),
    "a size as a number": NamedFunction(lambda x: x * (x.shape[0] * 0.5)),
    "tensors of a size": NamedFunction(lambda x: x + x.new_ones(x.shape[0], 1)),
}
IN_REGIONS = MODULES | {
    "gamma functions": NamedFunction(lambda x: torch.special.gammainc(x.abs(), x.abs().amax())),  # no kernel
}
SIZES = ({0: torch.export.Dim("n", min=0, max=64)},)


def placeholders_of(graph: torch.fx.Graph) -> list[Node]:
    return [n for n in graph.nodes if n.op == "placeholder"]


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
        from delegate.backend.info import Availability, BackendInfo
        INFO = BackendInfo("seen", "Keeps regions", "tests.backend.test_prims:Seen",
                           "delegate.runtime.backend:BackendRuntime", lambda: Availability(True), "pip install seen")
        """,
    )
    site.distribution("seen-dist", "1.0", {"seen": "seen_plugin:INFO"})
    Seen.regions = []
    return Seen


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("module", IN_REGIONS.values(), ids=IN_REGIONS.keys())
def test_a_region_in_prims(module: nn.Module, dynamic: bool, seen: type[Seen]) -> None:
    """It holds Prims and what has none, and gives what the operators give. Sizes are no nodes."""
    x = torch.randn(4, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        delegate.to_backend(torch.export.export(module, (x,), dynamic_shapes=SIZES if dynamic else None), config=HERE)
    assert seen.regions
    for region in seen.regions:
        graph = GraphModule(nn.Module(), region.graph)
        PRIMS.check(graph)
        assert any(op_name(n).startswith("prims.") for n in region.calls)
        placeholders = {n for n in region.graph.nodes if n.op == "placeholder"}
        assert placeholders == {*region.constants, *region.inputs}
        for node in region.calls:
            assert op_name(node).startswith(("prims.", "aten.")) or node.target is operator.getitem
            assert not is_number(node)
            if torch.Tag.pointwise in getattr(node.target, "tags", ()) or op_name(node) == "prims.where.default":
                assert {str(tensor(n).shape) for n in node.all_input_nodes} == {str(tensor(node).shape)}
    if len(seen.regions) == 1 and len(seen.regions[0].inputs) == 1:
        (region,) = seen.regions
        plain, _ = plain_graph(region, any_number=True)
        given = [next((v for c, v in region.constants.items() if c.name == n.name), x) for n in placeholders_of(plain)]
        with torch.no_grad():
            found = GraphModule(nn.Module(), plain)(*given)
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


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, site: Site) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.delitem(sys.modules, "backend", raising=False)
    importlib.import_module("backend")


@pytest.mark.parametrize("name", ["network", "broadcasting", "where", "products", "statistics"])
def test_the_example(name: str, tmp_path: Path, example: None) -> None:

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


NOT_EMPTY = {"statistics", "scalars", "broadcasting"}  # a maximum of nothing, and the first of no rows
# What the example refuses with a dynamic size and takes without: a number that is computed from sizes.
NUMBERS = {"statistics": {"aten.mean.dim"}, "a size as a number": {"aten.mul.Tensor"}}


@pytest.mark.parametrize("name", MODULES)
def test_dynamic_sizes(name: str, example: None) -> None:
    """The example takes with a dynamic size what it takes without, and computes any size."""
    module, x = MODULES[name].eval(), torch.randn(4, 6)
    static, program = (
        delegate.to_backend(torch.export.export(module, (x,), dynamic_shapes=sizes), "prims-example")
        for sizes in (None, SIZES)
    )
    taken = {n.op for n in static.report.nodes if n.verdicts["prims-example"]}
    refused = {n.op: n.verdicts["prims-example"] for n in program.report.nodes if not n.verdicts["prims-example"]}
    assert taken & refused.keys() == NUMBERS.get(name, set())
    assert all(
        "is a number that is computed from the inputs' sizes" in str(refused[op]) for op in taken & refused.keys()
    )
    for n in (4, 1, 9, *(() if name in NOT_EMPTY else (0,))):
        x = torch.randn(n, 6)
        with torch.no_grad():
            assert_same(program(x), module(x))


def test_patterns_and_whole_operators_in_prims(example: None) -> None:
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
    from delegate.backend.prims import _table

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
