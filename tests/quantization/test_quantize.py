"""The flow: quantized models run entirely on the backend, in integers, as accurate as in eager."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import delegate
from delegate.backend.quantizable import TABLES
from delegate.config import Quantization
from delegate.edge.passes.folding import fold_parameters
from delegate.testing import assert_same
from tests.quantization.models import Encoder, Residual, build_with_batches
from tests.support import zoo
from tests.support.quantized import floats_within, require_whole, settings_of, sqnr
from tests.support.sampling import every

pytest.importorskip("torchao", reason="torchao quantizes the models of these tests")
with zoo.libraries():
    from delegate.quantization import OFF, convert, prepare, quantize, schemes


def quantized(
    build: Callable[[], nn.Module], shape: tuple[int, ...], settings: Quantization, dynamic: Any = None
) -> tuple[nn.Module, torch.export.ExportedProgram, delegate.CompiledProgram, tuple[torch.Tensor, ...]]:
    module, batches = build_with_batches(build, *shape)
    program = quantize(torch.export.export(module, batches[0], dynamic_shapes=dynamic), settings, batches)
    return module, program, delegate.to_backend(program, settings.backend), batches[0]


BUILDS: Mapping[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "residual": (Residual, (2, 3, 24, 20)),
    "encoder": (Encoder, (2, 6, 64)),
}
# Model, scheme -> dB against floats at least; 8 to 11 more are measured.
CASES = {
    ("residual", "static_int8"): 32,
    ("residual", "dynamic_int8"): 35,
    ("residual", "weight_only_int8"): 35,
    ("encoder", "static_int8"): 27,
    ("encoder", "dynamic_int8"): 40,
    ("encoder", "dynamic_int4"): 22,
    ("encoder", "weight_only_int8"): 46,
    ("encoder", "weight_only_int4"): 22,
}


@pytest.mark.parametrize(("name", "scheme"), every(3, CASES), ids=str)
def test_whole_and_as_exact_as_in_eager(name: str, scheme: str, tmp_path: Path) -> None:
    build, shape = BUILDS[name]
    batch = torch.export.Dim("batch", min=1, max=8)
    module, program, compiled, inputs = quantized(build, shape, settings_of("xnnpack", scheme), ({0: batch},))
    require_whole(compiled)
    compiled.save(tmp_path / "model.dlg")
    loaded = delegate.load(tmp_path / "model.dlg")
    for count in (shape[0], 1, 3):
        x = torch.cat([inputs[0]] * 2)[:count]
        exact, reference = module(x).detach(), program.module()(x).detach()
        assert sqnr(exact, compiled(x)) >= max(CASES[name, scheme], sqnr(exact, reference) - 1.5)
        assert_same(loaded(x.numpy()), compiled(x))


def test_a_network_of_integers_has_no_floats_within() -> None:
    _, program, compiled, _ = quantized(Residual, (2, 3, 24, 20), settings_of("xnnpack"))
    assert not floats_within(compiled)
    (delegate_spec,) = compiled.program.delegates
    operators = _operators(bytes(compiled.program.segments[delegate_spec.segment]))
    assert operators.count("DEQUANTIZE") == 1
    assert operators.count("QUANTIZE") <= 2  # torchao gives the second part of a chunk parameters of its own
    assert sum("dequantize" in str(n.target) for n in program.graph.nodes) > 10


def _operators(blob: bytes) -> list[str]:
    """Return the operators of a TFLite model."""
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(blob, 0))
    names = {code: name for name, code in vars(schema.BuiltinOperator).items() if isinstance(code, int)}
    return [names[model.operatorCodes[op.opcodeIndex].builtinCode] for op in model.subgraphs[0].operators]


# What the edge dialect decomposes; the schemes quantize it before.
DECOMPOSED = {
    *(f"aten.{border}_pad{rank}d.default" for border in ("reflection", "replication") for rank in (1, 2)),
    *("aten.transpose.int", "aten.t.default", "aten.split.Tensor", "aten.pad.default"),
}


def test_every_scheme_consists_of_rows_of_the_backends_table() -> None:
    from delegate.backends.xnnpack.aot.lowerings import TABLE

    by_name = schemes("xnnpack")
    assert next(iter(by_name)) == "static_int8"
    for scheme in by_name.values():
        assert scheme.operators
        for row in scheme.operators:
            assert row is TABLES or TABLE.get(row.op) is not None or row.op in DECOMPOSED, row.op


def _coded(program: torch.export.ExportedProgram) -> dict[str, set[str]]:
    """Return module path -> the kinds of its decoded inputs: "static", "run time" or "weight"."""
    sources: dict[str, set[str]] = {}
    for node in program.graph.nodes:
        if str(node.target) not in ("aten.linear.default", "aten.conv2d.default"):
            continue
        path = next(reversed(node.meta["nn_module_stack"].values()))[0]
        kinds = sources.setdefault(path.rpartition(".")[2] or path, set())
        for source in node.all_input_nodes:
            name = str(source.target)
            if "dequantize" in name:
                is_weight = source.all_input_nodes[0].op == "placeholder"
                kinds.add("weight" if is_weight else "run time" if ".tensor" in name else "static")
    return sources


HYBRIDS: Mapping[str, tuple[dict[str, Any], dict[str, set[str]]]] = {
    "all": ({}, {"up": {"static", "weight"}, "down": {"static", "weight"}}),
    "a path off": ({"modules": {"up": OFF}}, {"up": set(), "down": {"static", "weight"}}),
    "a path of another scheme": ({"modules": {"d*": "dynamic_int8"}}, {"down": {"run time", "weight"}}),
    "a type": ({"module_types": {"Linear": "weight_only_int8"}}, {"up": {"weight"}, "down": {"weight"}}),
    "a type by its whole name": ({"module_types": {"torch.nn.modules.linear.Linear": OFF}}, {"up": set()}),
    "an operator": ({"operators": {"aten.linear*": OFF}}, {"up": set(), "down": set()}),
    "a path before a type": (
        {"modules": {"up": "static_int8"}, "module_types": {"Linear": OFF}},
        {"up": {"static", "weight"}, "down": set()},
    ),
    "nothing but a path": ({"scheme": OFF, "modules": {"up": "dynamic_int4"}}, {"up": {"run time", "weight"}}),
}


@pytest.mark.parametrize("name", every(4, HYBRIDS))
def test_hybrid(name: str) -> None:
    options, expected = HYBRIDS[name]
    module, program, compiled, inputs = quantized(Encoder, (2, 6, 64), settings_of(**{"backend": "xnnpack", **options}))
    sources = _coded(program)
    for path, kinds in expected.items():
        assert {k.replace("weights", "weight") for k in sources[path]} == kinds, path
    require_whole(compiled)
    assert sqnr(module(*inputs).detach(), compiled(*inputs)) >= 27


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1584, 10)),
        pytest.param(Residual, marks=pytest.mark.slow),
    ],
    ids=["convolution", "batch norm"],
)
def test_training(make: Callable[[], nn.Module]) -> None:
    """Train fake quantization: the loss falls, and the trained module runs entirely on the backend, as in eager."""
    torch.manual_seed(0)
    module = make().train()
    x, y = torch.randn(8, 3, 24, 20), torch.randint(0, 10, (8,))
    prepared = prepare(torch.export.export(module, (x,)), settings_of("xnnpack"), qat=True)
    optimizer = torch.optim.SGD(prepared.module.parameters(), 0.05)
    losses = []
    for _ in range(12):
        loss = nn.functional.cross_entropy(prepared.module(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    program = convert(prepared)
    compiled = delegate.to_backend(program, "xnnpack")
    require_whole(compiled)
    assert sqnr(program.module()(x).detach(), compiled(x)) >= 27


class NormFirst(nn.Module):
    """A norm before its convolution, which cannot be folded."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(self.norm(x).relu())


def test_norms_before_convolutions_are_not_compared_with_patterns_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchao.quantization.pt2e import qat_utils

    monkeypatch.delattr(qat_utils, "_get_aten_graph_module_for_pattern")  # exports a pattern; there are 96
    module, program, compiled, inputs = quantized(NormFirst, (2, 8, 12, 12), settings_of("xnnpack"))
    assert "aten.batch_norm.default" in [str(node.target) for node in program.graph.nodes]
    require_whole(compiled)
    assert sqnr(module(*inputs).detach(), compiled(*inputs)) >= 30


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["weight_only_int8", "dynamic_int8"])
def test_training_of_convolutions_with_norms_whose_activations_are_floats(scheme: str) -> None:
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).train(), torch.randn(2, 3, 8, 8)
    prepared = prepare(torch.export.export(module, (x,)), settings_of("xnnpack", scheme), qat=True)
    for _ in range(3):
        prepared.module(x).square().mean().backward()
    program = convert(prepared)
    assert any("dequantize_per_channel" in str(n.target) for n in program.graph.nodes)
    compiled = delegate.to_backend(program, "xnnpack")
    require_whole(compiled)
    assert sqnr(program.module()(x).detach(), compiled(x)) >= 30


class Words(nn.Module):
    """A language model whose last layer may use the embedding table as its weight."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(500, 128), nn.Embedding(32, 128)
        self.middle, self.head = nn.Linear(128, 128), nn.Linear(128, 500, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        return self.head(nn.functional.layer_norm(x + self.middle(x).relu(), (128,)))


@pytest.mark.parametrize(("scheme", "tied"), every(3, schemes("xnnpack"), [False, True]), ids=str)
def test_tables_of_embeddings(scheme: str, tied: bool, tmp_path: Path) -> None:
    """Check that tables are integers in the file and in memory; those that are off stay in floats."""
    torch.manual_seed(0)
    module, batches = Words(tied=tied).eval(), [(torch.randint(0, 500, (2, 8)),) for _ in range(4)]
    exported = torch.export.export(module, batches[0])
    sizes = {}
    for name, tables in (("floats", OFF), ("tables", "weight_only_int8")):
        settings = settings_of("xnnpack", scheme, operators={"aten.embedding*": tables})
        program = quantize(exported, settings, batches)
        compiled = delegate.to_backend(program, "xnnpack")
        assert len(compiled.report.partitions) == 1
        portable = {n.op.split(".")[1] for n in compiled.report.nodes if n.backend == "portable"}
        assert portable == ({"embedding"} if tables == OFF else {"embedding", "dequantize_per_channel"})
        exact, reference = module(*batches[0]).detach(), program.module()(*batches[0]).detach()
        assert sqnr(exact, compiled(*batches[0])) >= max(18, sqnr(exact, reference) - 1.5)
        compiled.save(tmp_path / name)
        sizes[name] = os.path.getsize(tmp_path / name)
    saved = 532 * 128 * 3 - 532 * 16  # of four bytes a number one is left, and each row has a scale and a zero point
    assert sizes["floats"] - sizes["tables"] >= 0.9 * saved


def test_a_decoded_weight_with_several_readers() -> None:
    """Check that a layer with a decoded weight that others read, which XNNPACK lacks, is no failure."""

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.layer(x), torch.sort(self.layer.weight).values

    module, x = Shared().eval(), torch.randn(4, 64)
    program = quantize(torch.export.export(module, (x,)), settings_of("xnnpack"), [(torch.randn(4, 64),)])
    decoding = "quantized_decomposed.dequantize_per_channel.default"
    for config in ({}, {"partitioning": {"exclude": [decoding]}}):
        compiled = delegate.to_backend(program, config={"backends": ["xnnpack"], **config})
        for got, reference in zip(compiled(x), program.module()(x), strict=True):
            assert sqnr(reference.detach(), got) >= 50


class Twice(nn.Module):
    """A layer that is called twice, with another operator in between."""

    def __init__(self, between: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.out, self.between = nn.Linear(64, 64), nn.Linear(64, 64), between

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.layer(self.between(self.layer(x))))


@pytest.mark.parametrize("scheme", list(schemes("xnnpack")))
@pytest.mark.parametrize("between", [torch.relu, torch.erfinv], ids=["delegated", "portable"])
def test_a_layer_that_is_called_twice(between: Callable[[torch.Tensor], torch.Tensor], scheme: str) -> None:
    torch.manual_seed(0)
    module, x = Twice(lambda x: between(torch.sigmoid(x))).eval(), torch.randn(4, 64)
    program = quantize(
        torch.export.export(module, (x,)), settings_of("xnnpack", scheme), [torch.randn(4, 64) for _ in range(16)]
    )
    compiled = delegate.to_backend(program, "xnnpack")
    if between is torch.relu:
        require_whole(compiled)
    portable = {n.op.split(".")[1] for n in compiled.report.nodes if n.backend == "portable"}
    assert not {"linear", "choose_qparams"} & portable
    exact, reference = module(x).detach(), program.module()(x).detach()
    assert sqnr(exact, compiled(x)) >= sqnr(exact, reference) - 3  # ranges of rows, not of all, are others


def test_files_are_small(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)).eval()
    exported = torch.export.export(module, (torch.randn(4, 512),))
    sizes = {}
    for scheme in ("", "static_int8", "dynamic_int4"):
        program = quantize(exported, settings_of("xnnpack", scheme), [(torch.randn(4, 512),)]) if scheme else exported
        delegate.to_backend(program, "xnnpack").save(tmp_path / "model")
        sizes[scheme] = os.path.getsize(tmp_path / "model")
    assert sizes["static_int8"] <= 0.3 * sizes[""]
    assert sizes["dynamic_int4"] <= 0.17 * sizes[""]


class Gated(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.wide, self.out, self.dim = nn.Conv1d(8, 16, 3, padding=1), nn.Conv1d(8, 4, 1), dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gated = nn.functional.glu(self.wide(x), self.dim)
        return self.out(gated if self.dim in (1, -2) else torch.cat([gated, gated], 1)[:, :8])


@pytest.mark.parametrize("dim", [1, -2, 2])
def test_gates_are_integers(dim: int) -> None:
    module, program, compiled, inputs = quantized(lambda: Gated(dim), (2, 8, 20), settings_of("xnnpack"))
    require_whole(compiled)
    assert not floats_within(compiled)
    assert sqnr(module(*inputs).detach(), compiled(*inputs)) >= 25
    assert sqnr(program.module()(*inputs).detach(), compiled(*inputs)) >= 30  # two steps, as of SiLU


class Parted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(16, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.wide(x).chunk(3, -1)
        return query + key - value


def test_constants_of_two_folds_have_different_names() -> None:
    """Check that the second fold uses new names: once, Swin's masks became weights."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.full((3,), 5.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a, b = self.a.exp(), self.b.neg()
            return x + a * x + b

    x = torch.ones(3)
    module = torch.export.export(Net(), (x,)).module()
    for target in (torch.ops.aten.exp.default, torch.ops.aten.neg.default):
        fold_parameters(module, lambda node, target=target: node.target is target)
        module.graph.lint()
        assert_same(module(x), Net()(x))
    assert {"exp", "neg"}.isdisjoint(node.name for node in module.graph.nodes)


def test_parts_share_the_parameters_of_the_whole() -> None:
    _, program, compiled, _ = quantized(Parted, (4, 16), settings_of("xnnpack"))
    (delegate_spec,) = compiled.program.delegates
    assert _operators(bytes(compiled.program.segments[delegate_spec.segment])).count("QUANTIZE") == 1
    rounding = [n.args[1:3] for n in program.graph.nodes if "dequantize_per_tensor" in str(n.target)]
    assert len(set(rounding)) == 4  # of the input, of the parts, of the sum, of the result


class Steps(nn.Module):
    """A module that counts its calls and sums up its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(8))
        self.register_buffer("sum", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        self.sum.copy_(self.sum + x.mean(0))
        return self.layer(x) + self.calls * 2 + self.sum


@pytest.mark.parametrize("scheme", ["dynamic_int8", "weight_only_int8", "static_int8"])
def test_states_begin_as_they_were(scheme: str) -> None:
    """Check that neither calibration nor constant folding counts as a call of the program."""
    torch.manual_seed(0)
    module, x = Steps().eval(), torch.randn(4, 8)
    exported = torch.export.export(module, (x,))
    sums = {"operators": {"aten.add*": OFF, "aten.mul*": OFF, "aten.mean*": OFF}}
    program = quantize(exported, settings_of("xnnpack", scheme, **sums), [(torch.randn(4, 8),) for _ in range(5)])
    assert not exported.state_dict["calls"].any()
    for backends in ("xnnpack", []):
        compiled, fresh = delegate.to_backend(program, backends), Steps().eval()
        fresh.load_state_dict(exported.state_dict)
        for _ in range(3):
            assert sqnr(fresh(x).detach(), compiled(x)) >= 35


@pytest.mark.parametrize(
    ("dtype", "words"),
    [
        (torch.float16, "computes in float16: quantize it in float32"),
        (torch.float32, "quantizes none of its operators"),
    ],
)
def test_nothing_to_quantize(dtype: torch.dtype, words: str) -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).to(dtype) if dtype is torch.float16 else nn.Softmax(-1)
    program = torch.export.export(module.eval(), (torch.randn(4, 8, dtype=dtype),))
    with pytest.warns(RuntimeWarning, match=f"no operator of the model is quantized.*{words}"):
        quantize(program, settings_of("xnnpack", "weight_only_int8"))
    quantize(program, settings_of("xnnpack", OFF))
