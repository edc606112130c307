"""The debugger on small models: right ones, NaN, quantized ranges, libraries that crash, budgets, and bad input."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from delegate_devtools import debug
from torch import nn

import delegate
from delegate.backend.selected import SelectedBackend
from delegate.errors import ConfigError, InputError, PartitionError
from delegate.kernels.table import KernelTable
from tests.support.planting import aten, followed_by, in_place_of, planted

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """A linear layer, a logarithm of its square, and a tanh."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        return torch.tanh((y * y).log() + y)


def export_model(x: torch.Tensor = X) -> torch.export.ExportedProgram:
    return torch.export.export(Net().eval(), (x,))


@pytest.mark.parametrize("backends", [["xnnpack"], []], ids=str)
def test_a_right_program_has_no_faults(backends: list[str]) -> None:
    diagnosis = debug(export_model(), backends)
    assert diagnosis.faults == ()
    (figures,) = diagnosis.figures.values()
    assert figures is not None
    assert figures.sqnr_db > 100
    assert "no operator is wrong by itself" in str(diagnosis)


def test_a_blocked_debugger_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    source = export_model()
    program = delegate.to_backend(source, [])
    monkeypatch.setenv("DELEGATE_BLOCK_PLUGINS", "debugger")
    with pytest.raises(ConfigError, match="'debugger' is blocked by the environment variable DELEGATE_BLOCK_PLUGINS"):
        program.debug(source)


def test_a_program_debugs_itself_with_its_plan(tmp_path: Path) -> None:
    source = export_model()
    program = delegate.to_backend(source, "xnnpack")
    with planted("xnnpack", "log", in_place_of(aten.tanh.default)):
        diagnosis = program.debug(source, (2 * X,), output=tmp_path)
    (fault,) = diagnosis.faults
    assert [node.operator for node in fault.nodes] == ["aten.log.default"]
    assert fault.kind.name == "wrong values"
    assert "log: portable" in fault.remedy
    ran = subprocess.run([sys.executable, fault.reproduction], capture_output=True, text=True, check=True)
    assert "output 0: greatest error" in ran.stdout


def test_a_wrong_operator_that_the_result_hides() -> None:
    class Hides(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 1000 + torch.tanh(x)

    program = torch.export.export(Hides(), (X,))
    with planted("xnnpack", "tanh", in_place_of(aten.sigmoid.default)):
        (fault,) = debug(program, "xnnpack", cache=False).faults
    assert fault.nodes[0].name == "tanh"
    assert fault.is_hidden


def test_the_first_nan_and_infinity_here_and_in_torch() -> None:
    class Roots(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x.abs() / 0).sum(1) + x.sqrt().sum(1)

    for backends in ("xnnpack", []):
        lines = debug(torch.export.export(Roots(), (X,)), backends).not_finite
        assert [line.partition(" at ")[0].partition(", in partition")[0] for line in lines] == [
            "first NaN here: aten.sqrt.default (sqrt)",
            "first NaN in torch: aten.sqrt.default (sqrt)",
            "first infinity here: aten.div.Tensor (div)",
            "first infinity in torch: aten.div.Tensor (div)",
        ]


def test_a_quantized_range_that_is_too_small() -> None:
    class Quantized(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q = torch.ops.quantized_decomposed
            small = q.quantize_per_tensor.default(x.relu() * 8, 0.01, 0, -128, 127, torch.int8)
            return q.dequantize_per_tensor.default(small, 0.01, 0, -128, 127, torch.int8)

    import torch.ao.quantization.fx._decomposed

    program = torch.export.export(Quantized(), (X,))
    (fault,) = debug(program, "xnnpack").faults
    assert (fault.place, fault.kind.name) == ("the quantization", "saturation")
    assert fault.nodes[0].operator == "aten.mul.Tensor"
    assert "would fit" in fault.kind.explanation


def test_the_remedy_of_a_range_that_does_not_fit_is_configuration(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", input=X.numpy())
    section = {"scheme": "static_int8", "calibration": str(tmp_path / "data.npz")}
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)).eval()
    program = torch.export.export(net, (X,))
    config = {"backends": ["xnnpack"], "quantization": section}
    faults = [f for f in debug(program, config=config, inputs=(30 * X,)).faults if not f.partition]
    assert {fault.kind.name for fault in faults} == {"saturation"}
    assert "to keep these layers in float:" in "\n".join(faults[0].lines())
    nodes = {name: "off" for fault in faults for name in _layers_off(fault.remedy)}
    assert "linear" in nodes
    config["quantization"] = {**section, "nodes": nodes}
    faults = debug(program, config=config, inputs=(30 * X,)).faults
    assert "linear" not in {name for fault in faults for name in _layers_off(fault.remedy)}


def _layers_off(remedy: str) -> dict[str, str]:
    section = (yaml.safe_load(remedy) or {}).get("quantization", {})
    nodes: dict[str, str] = section.get("nodes", {})
    return nodes


def test_no_time_gives_the_answer_so_far() -> None:
    with planted("xnnpack", "log", followed_by((aten.neg.default, (), {}))):
        diagnosis = debug(export_model(), "xnnpack", cache=False, budget=0)
    assert diagnosis.faults == ()
    assert any("0 s are over" in note for note in diagnosis.notes)


def test_json_has_only_plain_numbers() -> None:
    data = json.loads(debug(export_model(), "xnnpack").to_json(), parse_constant=pytest.fail)
    assert data["faults"] == []
    assert data["instructions"] == 1


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"inputs": (X[:, :3],)}, InputError, "input"),
        ({"inputs": []}, InputError, "there are no inputs"),
        ({"inputs": delegate.Verify(sqnr_db=math.nan)}, ConfigError, "sqnr_db"),
        ({"config": {"backends": ["absent"]}}, ConfigError, "no backend is named"),
    ],
    ids=str,
)
def test_bad_input_is_one_clear_error(arguments: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        debug(export_model(), **arguments)


class Same(nn.Module):
    """NaN, and a mask of minus infinity, which torch has too."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mask = torch.full_like(x, -math.inf)
        return torch.log(-x.abs() - 1).relu() + 1, torch.maximum(mask, x) * 2


@pytest.mark.parametrize("backends", [["xnnpack"], []], ids=str)
def test_nan_and_infinity_that_torch_has_too_are_right(backends: list[str]) -> None:
    assert debug(torch.export.export(Same(), (X,)), backends).faults == ()


def test_results_without_a_finite_element_have_no_figures() -> None:
    ep = torch.export.export(Net().eval(), (X * math.nan,))
    assert str(debug(ep, [])).startswith("forward against the float reference: no element is finite\n")


def test_random_numbers_are_not_compared() -> None:
    class Noisy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand_like(x)

    diagnosis = debug(torch.export.export(Noisy(), (X,)), "xnnpack")
    assert not diagnosis.figures
    assert any("draws random numbers" in note for note in diagnosis.notes)


def test_the_first_nan_in_a_branch() -> None:
    class Branches(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = torch.cond(x.sum() > 0, lambda x: (x - 99).log() * 2, lambda x: x - 1, (x,))
            return result

    exported_branches = torch.export.export(Branches(), (X,))
    for backends in ("xnnpack", []):
        here, there = debug(exported_branches, backends, inputs=(X.abs(),)).not_finite
        assert here.startswith("first NaN here: aten.log.default (log)")
        assert there.startswith("first NaN in torch: aten.log.default (log)")


def test_a_branch_that_does_not_run_is_a_note() -> None:
    class Branches(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = torch.cond(
                x.sum() > 0, lambda x: torch.tanh(x) * 2, lambda x: torch.sigmoid(x) - 1, (x,)
            )
            return result

    exported_branches = torch.export.export(Branches(), (X,))
    notes = debug(exported_branches, "xnnpack", inputs=(X.abs(),)).notes
    assert any(note.startswith("not reached by the inputs: xnnpack_") for note in notes)


def test_the_total_error_inside_control_flow() -> None:
    """Bodies have nodes whose names are those of other nodes, and loops run several times."""

    class Flow(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.sin() - 1, (x,))

            def is_small(i: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
                return i < 3

            def body(i: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                return i + 1, y.sin() + y

            return torch.ops.higher_order.while_loop(is_small, body, (torch.tensor(0), y), ())[1] + x

    ep = torch.export.export(Flow(), (X.abs(),))
    for backends, names in (([], {"while_loop_body_graph_0.add_1", "true_graph_0.sin"}), (["xnnpack"], set())):
        diagnosis = debug(ep, backends)
        assert names <= {row.node for row in diagnosis.errors}
        assert all(row.total_db is not None and row.total_db > 100 for row in diagnosis.errors), str(diagnosis)


def test_a_constant_result_is_not_saturation() -> None:
    class One(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sigmoid(x)

    with planted("xnnpack", "sigmoid", in_place_of(aten.tanh.default)):
        (fault,) = debug(torch.export.export(One(), (torch.ones(2, 2),)), "xnnpack", cache=False).faults
    assert fault.kind.name == "wrong values"


def test_a_bound_that_float32_cannot_meet_is_rounding() -> None:
    diagnosis = debug(export_model(), "xnnpack", inputs=delegate.Verify(sqnr_db=500))
    assert diagnosis.faults == ()
    assert any("float32 rounds like that" in note for note in diagnosis.notes)


def test_inputs_by_name() -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x * y

    program = torch.export.export(Two(), (X, X.clone()))
    assert debug(program, "xnnpack", inputs={"x": X, "y": 2 * X}).faults == ()


@pytest.mark.parametrize("budget", ["3", -1, math.nan, True], ids=str)
def test_a_budget_is_seconds(budget: object) -> None:
    with pytest.raises(InputError, match="budget should be seconds"):
        debug(export_model(), budget=budget)  # type: ignore[arg-type]


def test_a_folder_without_a_reproduction_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def notes(backends: list[str], **options: Any) -> str:
        return "\n".join(debug(export_model(), backends, cache=False, output=tmp_path / "out", **options).notes)

    wrong = KernelTable("wrong")
    wrong.kernel("aten.tanh.default")(lambda x, *, out: np.exp(x, out=out))
    assert "nothing is wrong that it could show" in notes(["xnnpack"])
    assert "no reproduction of tanh on portable kernels: it runs in Python" in notes([], kernels=[wrong, "portable"])
    monkeypatch.setattr(SelectedBackend, "reproduction", lambda self, artifact: None)
    with planted("xnnpack", "log", in_place_of(aten.tanh.default)):
        assert "no reproduction of log on xnnpack: the backend has no way to run an artifact" in notes(["xnnpack"])
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


def test_a_folder_that_cannot_be_written_is_an_error_before_the_search(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(InputError, match="cannot be written"):
        debug(export_model(), output=tmp_path / "file" / "below")


def layers() -> torch.export.ExportedProgram:
    torch.manual_seed(0)
    return torch.export.export(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)).eval(), (X,))


def test_a_program_with_a_float_reference() -> None:
    model = layers()
    program = delegate.to_backend(model, "xnnpack", verify=delegate.Verify((X,), reference=layers()))
    for inputs in (None, (X,), delegate.Verify((X,), reference=layers())):
        assert "forward against the float reference" in program.debug(model, inputs, budget=0).figures


def test_a_program_of_another_model(tmp_path: Path) -> None:
    torch.export.save(layers(), tmp_path / "model.pt2")
    program = delegate.to_backend(tmp_path / "model.pt2", "xnnpack", cache=False)
    with planted("xnnpack", "tanh", in_place_of(aten.sigmoid.default)):
        (fault,) = program.debug(tmp_path / "model.pt2").faults
    assert [node.name for node in fault.nodes] == ["tanh"]
    with pytest.raises(PartitionError):
        program.debug(export_model())


def test_a_quantized_program_is_debugged_with_the_layers_that_it_has() -> None:
    """The debugger quantizes the model again as the program was, whatever inputs it is given."""
    section = {"scheme": "dynamic_int8"}
    config = {"backends": ["xnnpack"], "quantization": section, "verify": {"sqnr_db": 40, "on_failure": "move"}}
    model = layers()
    program = delegate.to_backend(model, verify=(X,), cache=False, config=config)
    diagnosis = program.debug(model, (100 * X,))
    assert [row.node for row in diagnosis.layers] == [row.node for row in program.report.layers]
    assert {f.place for f in diagnosis.faults} <= {"the quantization"}
