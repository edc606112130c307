"""Defaults never refuse a model: what they do not fit has a scale per channel or stays in float, and notes say so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import delegate
from tests.support import unfortunate_sizes, zoo
from tests.support.quantized import settings_of
from tests.support.unfortunate_sizes import MODELS, check_defaults

with zoo.libraries():
    from delegate.quantization import convert, prepare, quantize

X = torch.randn(4, 48, generator=torch.Generator().manual_seed(0))
PORTABLE = {"xnnpack": (), "dsp": ("dynamic", "transposed")}
CASES = [
    (backend, scheme, name)
    for backend in PORTABLE
    for scheme, name in unfortunate_sizes.cases(backend)
    if (backend, name) != ("xnnpack", "transposed")  # which has groups: XNNPACK rejects it
]


@pytest.mark.parametrize(("backend", "scheme", "name"), CASES)
def test_no_default_refuses(backend: str, scheme: str, name: str) -> None:
    check_defaults(backend, scheme, name, PORTABLE[backend])


def exported() -> torch.export.ExportedProgram:
    """A model whose layers have 48, 64 and 7 inputs."""
    torch.manual_seed(0)
    layers = nn.Linear(48, 64), nn.Tanh(), nn.Linear(64, 7), nn.Tanh(), nn.Linear(7, 32), nn.Tanh(), nn.Linear(32, 0)
    return torch.export.export(nn.Sequential(*layers).eval(), (X,))


NOTES = (
    "dynamic_int4 has a scale per channel in 0 (48 inputs): groups of 32 do not divide these inputs",
    "dynamic_int4 leaves 4 in float: an odd number of inputs",
)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_notes_name_the_layers() -> None:
    sentences: list[str] = []
    quantize(exported(), settings_of("xnnpack", "dynamic_int4"), note=sentences.append)
    assert sentences == list(NOTES)
    config: dict[str, Any] = {"backends": ["xnnpack"], "quantization": {"scheme": "dynamic_int4"}}
    assert delegate.to_backend(exported(), config=config).report.notes == NOTES
    assert delegate.explain(exported(), config=config).notes == NOTES
    with torch.no_grad():
        methods = {name: exported() for name in ("a", "b")}
    assert delegate.to_backend(methods, config=config).report.notes == NOTES


def test_a_depthwise_convolution_is_named() -> None:
    model = MODELS["convolutions"]
    program = torch.export.export(model.build().eval(), (torch.randn(model.shape),))
    prepared = prepare(program, settings_of("xnnpack", "dynamic_int8"))
    assert prepared.notes == ("dynamic_int8 leaves 1 in float: a depthwise convolution",)


def test_training_has_a_scale_per_channel() -> None:
    program = torch.export.export(nn.Sequential(nn.Linear(64, 8)).train(), (torch.randn(2, 64),))
    prepared = prepare(program, settings_of("xnnpack", "dynamic_int4"), qat=True)
    (note,) = prepared.notes
    assert note == "dynamic_int4 has a scale per channel in 0 (64 inputs): training does not support groups of weights"
    prepared.module(torch.randn(2, 64))
    compiled = delegate.to_backend(convert(prepared), "xnnpack")
    assert len(compiled.report.partitions) == 1


class Recurrent(nn.Module):
    """A model of which no scheme quantizes an operator."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(8, 8, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.cell(x)[0]


QUANTIZATIONS: dict[str, dict[str, Any]] = {
    "a scheme": {"quantization": {"scheme": "dynamic_int8"}},
    "by measurement": {"quantization": {"scheme": "auto", "sqnr_db": 20, "budget": 60}},
    "a candidate": {
        "placement": {
            "policy": "measured",
            "accuracy": {"sqnr_db": 20},
            "candidates": ["xnnpack", {"name": "xnnpack", "quantization": {"scheme": "dynamic_int8"}}],
        }
    },
}


@pytest.mark.filterwarnings("ignore:The tensor attributes self.cell")
@pytest.mark.parametrize("name", QUANTIZATIONS)
def test_a_scheme_that_changes_nothing_is_a_warning(name: str) -> None:
    program = torch.export.export(Recurrent().eval(), (torch.randn(2, 5, 8),))
    config = {"backends": ["xnnpack"]} | QUANTIZATIONS[name]
    with pytest.warns(RuntimeWarning, match="no operator of the model is quantized") as caught:
        compiled = delegate.to_backend(program, config=config, cache=False)
    assert len(caught) == 1
    assert not compiled.report.partitions
    if name == "by measurement":
        (placement,) = compiled.report.placements
        assert {plan.name for plan in placement.plans} == {"portable"}  # the same program is not measured twice


@pytest.mark.filterwarnings("ignore:The tensor attributes self.cell")
def test_the_method_that_stays_as_it_was_is_named() -> None:
    methods = {
        "encode": torch.export.export(nn.Linear(48, 8).eval(), (X,)),
        "decode": torch.export.export(Recurrent().eval(), (torch.randn(2, 5, 8),)),
    }
    with pytest.warns(RuntimeWarning, match="no operator of method 'decode' is quantized"):
        delegate.to_backend(methods, config={"backends": ["xnnpack"], "quantization": {"scheme": "dynamic_int8"}})
