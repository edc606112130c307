"""The report's rows of quantized layers: figures computed here, programs without rows, models that stay as they are."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.export import ExportedProgram, export

import delegate
from delegate.accuracy import verification
from delegate.errors import AccuracyError
from delegate.report import Report

pytest.importorskip("torchao", reason="torchao quantizes the models of these tests")

from delegate.quantization import quantize
from tests.support.quantized import settings_of


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.middle, self.down = nn.Linear(16, 64), nn.Linear(64, 64), nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.middle(torch.relu(self.up(x)))))


class Counter(nn.Module):
    """A layer that writes its result to a state and to its input."""

    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(16, 16)
        self.register_buffer("total", torch.zeros(4, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = torch.relu(self.up(x))
        self.total.add_(z)
        x.mul_(0.5)
        return self.up(z) + self.total


def calibration() -> list[tuple[torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(4, 16, generator=generator),) for _ in range(4)]


SAMPLE = calibration()[0]
CONFIG = {"backends": ["xnnpack"], "quantization": {"scheme": "static_int8", "calibration": f"{__name__}:calibration"}}


def exported(model: type[nn.Module] = Chain) -> ExportedProgram:
    torch.manual_seed(1)
    return export(model().eval(), SAMPLE)


def sqnr_db(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float(10 * torch.log10(expected.square().sum() / (actual - expected).square().sum()))


def test_the_rows_of_a_quantized_model() -> None:
    ep = exported()
    program = delegate.to_backend(ep, config=CONFIG, verify=SAMPLE)
    rows = program.report.layers
    assert [(r.method, r.node) for r in rows] == [
        ("forward", "linear"),
        ("forward", "linear_1"),
        ("forward", "linear_2"),
    ]
    assert [r.place for r in rows] == [f"{name}, aten.linear.default" for name in ("up", "middle", "down")]
    expected = ep.module()(*SAMPLE).detach()
    assert rows[-1].total_db == pytest.approx(sqnr_db(program(*SAMPLE), expected), abs=0.1)
    assert rows[0].total_db == pytest.approx(rows[0].added_db), "the first layer inherits no error"
    for row in rows[1:]:
        assert 20 < row.total_db < row.added_db < 80
    assert Report.from_json(program.report.to_json()) == program.report
    worst = min(rows, key=lambda row: row.added_db)
    assert f"forward: 3 quantized layers, the noisiest: {worst.node} ({worst.place}, " in str(program.report)


@pytest.mark.filterwarnings("ignore:method forward reaches")
def test_a_layer_with_a_wrong_scale_adds_its_error_and_the_next_inherits_it() -> None:
    ep = exported()
    spoiled = quantize(ep, settings_of("xnnpack"), calibration())
    roundings = [n for n in spoiled.graph.nodes if "quantize_per_tensor" in str(n.target)]
    for node in roundings[4:6]:  # after the input and the first layer, each quantized and decoded
        node.update_arg(1, node.args[1] * 50)
    program = delegate.to_backend(spoiled, "xnnpack", verify=delegate.Verify(SAMPLE, reference=ep))
    up, second, down = program.report.layers
    assert second.added_db < 20 < up.added_db
    assert second.added_db < down.added_db
    assert down.total_db < 20


@pytest.mark.parametrize("reason", ["floats", "no reference", "not verified", "torch cannot run it"])
def test_programs_without_rows(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ep, config, verify = exported(), CONFIG, SAMPLE
    if reason == "floats":
        config = {"backends": ["xnnpack"]}
    elif reason == "no reference":
        ep, config = quantize(ep, settings_of("xnnpack"), calibration()), {"backends": ["xnnpack"]}
    elif reason == "not verified":
        verify = None
    else:

        def fail(*_: object) -> None:
            raise AccuracyError("an operator fails")

        monkeypatch.setattr(verification, "layers_of", fail)
    report = delegate.to_backend(ep, config=config, verify=verify).report
    assert report.layers == ()
    assert bool(report.accuracy) == (reason != "not verified")


def test_methods_have_rows_of_their_own() -> None:
    methods = {"first": exported(), "second": exported()}
    data = dict.fromkeys(methods, f"{__name__}:calibration")
    config = {"backends": ["xnnpack"], "quantization": {"scheme": "static_int8", "calibration": data}}
    report = delegate.to_backend(methods, config=config, verify={"second": SAMPLE}).report
    assert [(r.method, r.place.partition(",")[0]) for r in report.layers] == [
        ("second", "up"), ("second", "middle"), ("second", "down")
    ]  # fmt: skip


def test_states_and_inputs_of_the_caller_stay() -> None:
    ep, (x,) = exported(Counter), SAMPLE
    before = x.clone()
    report = delegate.to_backend(ep, config=CONFIG, verify=(x,)).report
    rows = report.layers
    assert {partition.backend for partition in report.partitions} == {"xnnpack"}
    assert torch.equal(x, before)
    assert not ep.state_dict["total"].any()
    assert len(rows) > 2
    assert all(row.total_db > 20 for row in rows), "no run sees the state of another"
