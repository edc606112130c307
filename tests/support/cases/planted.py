"""Planted faults: operators, changes and kinds, for the tests of the debugger on several backends."""

from __future__ import annotations

import torch
from delegate_devtools import debug

import delegate
from tests.support.planting import aten, changed_weight, followed_by, in_place_of, planted
from tests.support.zoo import export

_ACTIVATIONS = ("relu", "gelu", "hardswish", "silu", "hardtanh", "hardsigmoid")
_HUGE, _TINY = ((aten.mul.Tensor, (factor,), {}) for factor in (1e30, 1e-30))

# Name -> the operators that it is planted at, the change, and the kinds that may be reported. In float16, the DSP
# returns numbers for logarithms of negative numbers. Its overflow is planted in the model: see `assert_overflow_found`.
FAULTS = {
    "wrong row": ([f"aten.{name}.default" for name in _ACTIVATIONS], in_place_of(aten.tanh.default), {"wrong values"}),
    "weight layout": (["aten.convolution.default", "aten.linear.default"], changed_weight(lambda w: w.flip(0)),
                      {"wrong values"}),
    "scaled weight": (["aten.linear.default", "aten.convolution.default"], changed_weight(lambda w: w * 1.5),
                      {"wrong values"}),
    "saturation": (["aten.add.Tensor"], followed_by((aten.clamp.default, (-0.25, 0.25), {})), {"saturation"}),
    "NaN": (["aten.add.Tensor"], followed_by((aten.log.default, (), {})), {"NaN", "wrong values"}),
    "overflow": (["aten.add.Tensor"], followed_by(_HUGE, _HUGE, _TINY, _TINY),
                 {"infinity", "overflow", "NaN", "saturation"}),
}  # fmt: skip
MODELS = ("resnet18", "bert_mini", "mobilenet_v2", "mobilenet_v3_small", "vit_tiny", "distilbert_mini", "llama_mini",
          "tf_efficientnet_lite0")  # fmt: skip


# The debugger compiles parts of vit_tiny for the emulated DSP for more than 15 minutes.
INSTEAD = {("dsp", "vit_tiny"): "bert_mini"}


def cases(backend: str, first: int) -> list[tuple[str, str, str]]:
    """Return (backend, model, fault) for each fault, on models in turn from the first one on."""
    models = [MODELS[(first + 3 * n) % len(MODELS)] for n in range(len(FAULTS))]
    return [(backend, INSTEAD.get((backend, m), m), fault) for m, fault in zip(models, FAULTS, strict=True)]


def assert_found(backend: str, model: str, fault: str, budget: float = 300) -> None:
    """Assert that the debugger finds a fault that is planted in the middle of a model, and nothing else."""
    if (backend, fault) == ("dsp", "overflow"):
        assert_overflow_found(backend, model, budget)
        return
    operators, change, kinds = FAULTS[fault]
    config = {"backends": [{"name": backend, "isolate": "none"}]}
    exported = export(model)
    program = delegate.to_backend(exported, config=config, cache=False)
    # A sum with one element for each row is that of a norm with its epsilon, which the changes may leave as it is.
    nodes = [
        n for n in program.report.nodes if n.op in operators and n.backend == backend and not n.result.endswith(", 1]")
    ]
    name = nodes[len(nodes) // 2].name
    with planted(backend, name, change):
        diagnosis = debug(exported, config=config, cache=False, budget=budget)
    assert [[node.name for node in found.nodes] for found in diagnosis.faults] == [[name]], str(diagnosis)
    (found,) = diagnosis.faults
    assert found.kind.name in kinds, str(diagnosis)
    assert found.is_minimal


def assert_overflow_found(backend: str, model: str, budget: float) -> None:
    """Assert that the debugger finds an operator of the model whose result exceeds float16, and calls it overflow.

    The next operator has that result as input, so it is a fault of its own.
    """
    exported = export(model)
    module = exported.module()
    adds = [node for node in module.graph.nodes if str(node.target).startswith("aten.add")]
    last = adds[len(adds) // 2]
    users = list(last.users)
    for factor in (1e6, 1e-6):
        with module.graph.inserting_after(last):
            last = module.graph.call_function(aten.mul.Tensor, (last, factor))
    for user in users:
        user.replace_input_with(adds[len(adds) // 2], last)
    module.recompile()
    config = {"backends": [{"name": backend, "isolate": "none"}]}
    changed = torch.export.export(module, *exported.example_inputs)
    faults = debug(changed, config=config, cache=False, budget=budget).faults
    assert faults
    assert [(len(f.nodes), f.nodes[0].operator, f.kind.name) for f in faults][:1] == [
        (1, "aten.mul.Tensor", "overflow")
    ]
    assert {f.nodes[0].operator for f in faults} == {"aten.mul.Tensor"}, faults
