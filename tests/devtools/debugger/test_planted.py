"""Planted faults: the debugger finds the changed operator, and nothing else, on whole models and real backends."""

from __future__ import annotations

import pytest
import torch

import delegate
from tests.support.availability import require
from tests.support.planting import aten, changed_weight, followed_by, in_place_of, planted
from tests.support.sampling import only
from tests.support.zoo import export

HALF = (aten._to_copy.default, (), {"dtype": torch.float16})
FLOAT = (aten._to_copy.default, (), {"dtype": torch.float32})

# Name -> the operators that it is planted at, the change, the kind that is expected.
FAULTS = {
    "wrong row": (("aten.relu.default", "aten.gelu.default", "aten.hardswish.default", "aten.silu.default",
                   "aten.hardtanh.default"), in_place_of(aten.tanh.default), "wrong values"),
    "weight layout": (("aten.convolution.default", "aten.linear.default"),
                      changed_weight(lambda w: w.flip(0)), "wrong values"),
    "scaled weight": (("aten.linear.default", "aten.convolution.default"),
                      changed_weight(lambda w: w * 1.5), "wrong values"),
    "saturation": (("aten.add.Tensor",), followed_by((aten.clamp.default, (-0.25, 0.25), {})), "saturation"),
    "NaN": (("aten.add.Tensor",), followed_by((aten.log.default, (), {})), "NaN"),
    "overflow": (("aten.add.Tensor",), followed_by((aten.mul.Tensor, (6e38,), {}), (aten.mul.Tensor, (1 / 6e38,), {})),
                 "infinity"),
}  # fmt: skip
MODELS = ("resnet18", "bert_mini", "mobilenet_v2", "mobilenet_v3_small", "vit_tiny", "distilbert_mini", "llama_mini",
          "tf_efficientnet_lite0")  # fmt: skip
BACKENDS = ("xnnpack", "openvino", "onnxruntime", "dsp")
# A fault of each kind per backend, at another model each.
CASES = [
    (backend, MODELS[(place + 3 * number) % len(MODELS)], fault)
    for place, backend in enumerate(BACKENDS)
    for number, fault in enumerate(FAULTS)
]


@pytest.mark.parametrize(
    ("backend", "model", "fault"),
    [pytest.param(*c.values[0], marks=c.marks) if hasattr(c, "marks") else c for c in only(CASES[:3], CASES)],
)
def test_the_changed_operator_is_found(backend: str, model: str, fault: str) -> None:
    require(backend)
    operators, change, kind = FAULTS[fault]
    config = {"backends": [{"name": backend, "isolate": "none"}]}
    program = export(model)
    plan = delegate.to_backend(program, config=config, cache=False)
    nodes = [n for n in plan.report.nodes if n.op in operators and n.backend == backend]
    name = nodes[len(nodes) // 2].name
    with planted(backend, name, change):
        diagnosis = delegate.debug(program, config=config, cache=False, budget=300)
    assert [[node.name for node in found.nodes] for found in diagnosis.faults] == [[name]], str(diagnosis)
    (found,) = diagnosis.faults
    assert found.kind.name == kind
    assert found.is_minimal
    assert found.is_confirmed
