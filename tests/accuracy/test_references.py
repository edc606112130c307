"""The float reference: bounds are on results against it. A partition or the quantization is named if it misses them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest
import torch
from torch import nn
from torch.export import export

import delegate
from delegate.accuracy import program_run
from delegate.errors import AccuracyError, DelegateError, InputError

pytest.importorskip("torchao")

from delegate.quantization import quantize
from tests.support.quantized import settings_of
from tests.support.sampling import every

# Some models of these tests end in float as a whole, and one has a layer that no scale fits.
pytestmark = pytest.mark.filterwarnings("ignore:no operator of the model is quantized", "ignore:values are too small")


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.body, self.head = nn.Conv2d(16, 16, 3, padding=1), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = torch.relu(self.body(x)) + x
        return self.head(x.mean((2, 3)))


class Separable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 12, 1),
            nn.ReLU6(),
            nn.Conv2d(12, 12, 3, groups=12, padding=1),
            nn.Hardswish(),
            nn.Conv2d(12, 4, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).flatten(1)


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)[:, :16]
        return x + self.down(nn.functional.relu(self.up(x)))


class OneBadLayer(nn.Module):
    """A layer whose outputs differ by ten thousand in size, which one scale cannot hold, and its reader."""

    def __init__(self) -> None:
        super().__init__()
        self.good, self.bad, self.last = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 8)
        with torch.no_grad():
            self.bad.weight[0] *= 1e4
            self.last.weight[:, 0] *= 1e-4

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.good(x.flatten(1)[:, :16]))
        return self.last(self.bad(x))


MODELS = {cls.__name__: cls for cls in (Convolutions, Separable, Perceptron, OneBadLayer)}
BACKENDS = {"xnnpack": 60.0, "dsp": 45.0}  # a bound that int8 misses and that the backend's floats keep


def calibration() -> list[tuple[torch.Tensor]]:
    return [(torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0)),)]


def exported(name: str) -> torch.export.ExportedProgram:
    torch.manual_seed(1)
    model = MODELS[name]().eval()
    return export(model, calibration()[0])


def config(backend: str, **verify: object) -> dict[str, object]:
    data = f"{__name__}:calibration"
    section = {"scheme": "static_int8", "calibration": data}
    return {"backends": [backend], "quantization": section, "verify": verify}


def sqnr_db(program: delegate.CompiledProgram, ep: torch.export.ExportedProgram) -> float:
    """Return the figure against the float program, computed here."""
    (x,) = calibration()[0]
    expected = ep.module()(x).detach()
    return float(10 * torch.log10(expected.square().sum() / (program(x) - expected).square().sum()))


@pytest.mark.parametrize(("name", "backend"), every(3, itertools.product(MODELS, BACKENDS)))
def test_a_quantized_model_that_misses_its_bound(name: str, backend: str) -> None:
    """It is an error that names the layers; with `move`, layers go back to float until the bound holds."""
    bound, ep = BACKENDS[backend], exported(name)
    with pytest.raises(AccuracyError) as caught:
        delegate.to_backend(ep, config=config(backend, sqnr_db=bound, on_failure="error"))
    text = str(caught.value)
    assert "against the float reference" in text
    assert "the quantization is at fault, not a backend" in text
    assert "keep these layers in float:\nquantization:\n  nodes:\n" in text
    program = delegate.to_backend(ep, config=config(backend, sqnr_db=bound, on_failure="move"))
    assert sqnr_db(program, ep) >= bound
    against_floats, against_quantized = program.report.accuracy
    assert against_floats.reference == "the float reference"
    assert against_floats.figures.sqnr_db == pytest.approx(sqnr_db(program, ep), abs=1e-3)
    assert against_quantized.reference in ("the quantized reference", "the model that was given")
    assert [note for note in program.report.notes if "in float, so that" in note]
    assert any(n.backend == backend for n in program.report.nodes)


@pytest.mark.extended
def test_only_the_bad_layers_go_back_to_float() -> None:
    ep = exported("OneBadLayer")
    program = delegate.to_backend(ep, config=config("xnnpack", sqnr_db=30, on_failure="move"))
    (note,) = (note for note in program.report.notes if "in float, so that" in note)
    assert "2 layers stay in float" in note
    assert "(bad, aten.linear.default" in note
    assert "(last, aten.linear.default" in note
    assert "(good, " not in note


def test_nothing_is_moved_where_the_bound_against_floats_holds() -> None:
    """A partition may differ from the quantized reference by a step; that is no reason to move its nodes."""
    ep = exported("Convolutions")
    program = delegate.to_backend(ep, config=config("xnnpack", sqnr_db=40, on_failure="move"))
    assert {n.backend for n in program.report.nodes} == {"xnnpack"}
    assert not [note for note in program.report.notes if "in float, so that" in note]


@pytest.mark.extended
def test_measured_placement_of_a_quantized_model_has_the_float_reference() -> None:
    ep = exported("Perceptron")
    settings = config("xnnpack", sqnr_db=20) | {"placement": {"policy": "measured", "budget": 5}}
    program = delegate.to_backend(ep, config=settings, verify=calibration())
    assert [a.reference for a in program.report.accuracy] == ["the float reference", "the quantized reference"]
    assert program.report.accuracy[0].figures.sqnr_db == pytest.approx(sqnr_db(program, ep), abs=1e-3)


class Halves(nn.Module):
    """What float16 cannot hold: a small difference of great values."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + 3000) - 3000


@pytest.mark.extended
def test_without_a_bound_there_is_a_warning_by_precision() -> None:
    ep = export(Halves(), (torch.randn(2, 64),))
    with pytest.warns(
        RuntimeWarning, match=r"40 dB or more is usual for float32; the worst partition is dsp_0: .*--verify"
    ):
        delegate.to_backend(ep, "dsp", verify=(torch.randn(2, 64),))


class Logarithm(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 2).log() + 1


def test_results_without_numbers_are_a_warning() -> None:
    x = torch.linspace(-1, 1, 8).reshape(2, 4)
    with pytest.warns(RuntimeWarning, match="no finite numbers .* the program and the reference return NaN"):
        delegate.to_backend(export(Logarithm(), (x,)), [], verify=[(x - 5,)])


@pytest.mark.parametrize("on_failure", ["error", "move"])
@pytest.mark.parametrize("backends", [[], ["xnnpack"]], ids=str)
def test_a_reference_without_numbers_is_no_fault_of_a_backend(backends: list[str], on_failure: str) -> None:
    x = torch.linspace(-3, -1, 8).reshape(2, 4)
    verify = {"sqnr_db": 30, "on_failure": on_failure}
    with pytest.raises(AccuracyError) as caught:
        delegate.to_backend(export(Logarithm(), (x,)), config={"backends": backends, "verify": verify})
    text = str(caught.value)
    assert "the program and the reference return NaN" in text
    assert text.endswith("verify on inputs whose results are finite in torch")


class Masked(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full_like(x, -torch.inf), torch.relu(x)


def test_a_result_that_is_finite_nowhere_leaves_the_others_their_figures() -> None:
    x = torch.linspace(-1, 1, 8).reshape(2, 4)
    program = delegate.to_backend(export(Masked(), (x,)), config={"backends": ["xnnpack"], "verify": {"sqnr_db": 30}})
    (accuracy,) = program.report.accuracy
    assert accuracy.figures.max_error == 0
    assert "result 0 has no finite number" in accuracy.why


class Relu(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)


class Cut(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)[:, :2]


class Sum(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) + y


@pytest.mark.parametrize(
    ("reference", "inputs", "error", "text"),
    [
        (Cut(), 1, AccuracyError, r"is float32\[2, 4\], but its reference's is float32\[2, 2\]"),
        (Sum(), 2, InputError, "the program takes 1 inputs, but its reference 2"),
    ],
)
def test_a_reference_of_another_form(reference: nn.Module, inputs: int, error: type[DelegateError], text: str) -> None:
    x = torch.linspace(-1, 1, 8).reshape(2, 4)
    with pytest.raises(error, match=text):
        delegate.to_backend(
            export(Relu(), (x,)), [], verify=delegate.Verify([(x,)], reference=export(reference, (x,) * inputs))
        )


def test_the_float_reference_runs_once_for_all_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `move` a model is quantized again and again, and its float results stay the same."""
    ep = exported("Convolutions")
    floats = 0
    original = program_run.torch_results

    def count(programs: Mapping[str, object], samples: Mapping[str, object]) -> object:
        nonlocal floats
        floats += programs["forward"] is ep
        return original(programs, samples)

    monkeypatch.setattr("delegate.lowering.quantized.torch_results", count)
    program = delegate.to_backend(ep, config=config("xnnpack", sqnr_db=45.0, on_failure="move"))
    assert [note for note in program.report.notes if "in float, so that" in note]
    assert floats == 1


@pytest.mark.parametrize("on_failure", ["error", "move"])
def test_the_remedy_for_a_model_that_was_quantized_before(on_failure: str) -> None:
    """Nothing can move back to float here."""
    ep = exported("Perceptron")
    coded = quantize(ep, settings_of("xnnpack", "static_int8"), calibration())
    verify = {"sqnr_db": 60.0, "on_failure": on_failure}
    with pytest.raises(AccuracyError, match="quantize it again, and keep these layers in float") as caught:
        delegate.to_backend(
            coded, config={"backends": ["xnnpack"], "verify": verify}, verify=delegate.Verify(reference=ep)
        )
    assert "set verify.on_failure" not in str(caught.value)
