"""A stack of layers is exported as torch exports it, but each kind of layer is traced once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from delegate.testing import assert_same
from tests.support.zoo import libraries

with libraries():
    from delegate_llm.aot.decoder import Decoder
    from delegate_llm.aot.source import read
    from delegate_llm.aot.stack import export_stack
    from delegate_llm.aot.weights import quantize_weights


class Layer(nn.Module):
    """One of two kinds, with a buffer that is not saved, and a state of others that it writes to."""

    traced: ClassVar[int] = 0

    def __init__(self, slope: float) -> None:
        super().__init__()
        self.slope, self.linear = slope, nn.Linear(4, 4)
        self.register_buffer("own", torch.rand(4), persistent=False)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        Layer.traced += 1
        seen.add_(x.sum(0))
        return torch.where(x > 0, x, x * self.slope) + self.linear(x) * self.own


class Net(nn.Module):
    def __init__(self, slopes: list[float]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.layers = nn.Linear(3, 4), nn.ModuleList(map(Layer, slopes))
        self.seen = nn.ModuleList(nn.BatchNorm1d(4) for _ in slopes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer, seen in zip(self.layers, self.seen, strict=True):
            x = layer(x, seen.running_mean)
        return x * 2


def describe_export(ep: ExportedProgram) -> Any:
    """What two exports of a module have in common, whatever the names and the order of their nodes."""
    specs = sorted((str(s.target), s.kind.name, s.persistent) for s in ep.graph_signature.input_specs)
    calls = sorted((str(n.target), *paths(n.meta)) for n in ep.graph.nodes if n.op == "call_function")
    ranges = {str(symbol): str(values) for symbol, values in ep.range_constraints.items()}
    return specs, calls, set(ep.state_dict), set(ep.constants), ranges


def paths(meta: dict[str, Any]) -> list[str]:
    return [path for path, _ in meta.get("nn_module_stack", {}).values()]


@pytest.mark.parametrize(("slopes", "traced"), [([0.1], 1), ([0.1] * 5, 1), ([0.1, 0.1, 0.3, 0.1, 0.3], 3)])
def test_as_torch_exports_it(slopes: list[float], traced: int) -> None:
    net, x = Net(slopes).eval(), torch.randn(5, 3)
    sizes = ({0: Dim("rows", min=2, max=9)},)
    expected = torch.export.export(net, (x,), dynamic_shapes=sizes)
    Layer.traced = 0
    ep = export_stack(net, ("layers", "seen"), (x,), sizes)
    assert Layer.traced == traced
    assert describe_export(ep) == describe_export(expected)
    x = torch.randn(7, 3)
    ours, theirs = ep.module(), expected.module()
    for _ in range(2):
        assert_same(ours(x), theirs(x))
    assert_same(dict(sorted(ours.named_buffers())), dict(sorted(theirs.named_buffers())))
    assert len(net.layers) == len(net.seen) == len(slopes)


SMALL = {
    "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 8, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "head_dim": 16, "pad_token_id": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "traced"), [("qwen3", 1), ("gemma2", 2), pytest.param("gemma3_text", 6, marks=pytest.mark.slow)]
)
def test_layers_of_families_are_equal(family: str, traced: int, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family, **SMALL}))
    with libraries():
        model = read(tmp_path / "config.json").load()
        quantize_weights(model, "int4")
    decoder = Decoder(model, 16, 1, "int8").eval()
    calls: list[int] = []
    for layer in model.base_model.layers:
        layer.register_forward_hook(lambda *_: calls.append(1))
    one = torch.zeros(1, dtype=torch.int64)
    with torch.no_grad(), libraries():
        export_stack(decoder, ("model.model.layers", "keys", "values"), (one, one, one))
    assert len(calls) == traced
