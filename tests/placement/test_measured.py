"""Placement by measuring on real libraries, in processes that may crash or hang: right answers, a report that fits."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from torch import nn
from typer.testing import CliRunner

import delegate
from delegate.accuracy.samples import Sample
from delegate.cli.app import app
from delegate.compile import explain
from delegate.config import PlacementSection
from delegate.edge.export import to_edge
from delegate.errors import ConfigError, InputError
from delegate.placement.reference_comparator import ReferenceComparator, arrays_of
from delegate.placement.runtime.accuracy_check import check_accuracy
from delegate.placement.runtime.elimination import fixed_rounds, measure_rounds
from delegate.placement.runtime.trials import ProcessRunnerFactory, Trial
from delegate.report import Report
from delegate.testing import assert_same
from tests.support.availability import require
from tests.support.placing import Block, Looping, killed_midway
from tests.support.plugins import Site
from tests.support.sampling import only

MODEL = nn.Sequential(*(Block() for _ in range(3))).eval()
X = torch.randn(4, 16)
TWO = {
    "backends": [{"name": "xnnpack:one", "options": {"threads": 1}}, {"name": "xnnpack:two", "options": {"threads": 2}}]
}

SIZES = {"objective": "file size"}  # what other work on the cores does not disturb: a disturbed choice is not kept


def measuring(**placement: object) -> dict[str, object]:
    return {**TWO, "placement": {"policy": "measured", "budget": 30, **placement}}


@pytest.fixture(scope="module")
def exported() -> torch.export.ExportedProgram:
    return torch.export.export(MODEL, (X,))


@pytest.mark.extended
@pytest.mark.usefixtures("few_rounds")
def test_answers_and_report(exported, tmp_path) -> None:
    said: list[str] = []
    program = delegate.to_backend(exported, config=measuring(budget=600), progress=said.append)
    assert_same(program(X), MODEL(X))
    (placement,) = program.report.placements
    rows = {p.name: p for p in placement.plans}
    assert {"xnnpack:one", "xnnpack:two"} <= set(rows)
    assert placement.chosen in rows
    assert not any(p.why for p in rows.values())
    assert all(p.cost > 0 and p.rounds > 0 and p.sqnr_db > 80 for p in rows.values())
    backends = {p.backend for p in program.report.partitions}
    assert backends == {s.backend for s in program.program.delegates} == {p.backend for p in program.plan.partitions}
    assert backends == set(placement.chosen.partition(" (")[0].split(" | "))
    assert any(text.startswith("forward: measuring xnnpack:one, xnnpack:two") for text in said)
    assert Report.from_json(program.report.to_json()) == program.report
    assert placement.chosen in str(program.report)
    program.save(tmp_path / "model.dlg")
    with delegate.load(tmp_path / "model.dlg") as loaded:
        assert loaded.report.placements == (placement,)
    again = delegate.to_backend(exported, config=TWO, placement=program.plan)
    assert again.plan.places() == program.plan.places()


def test_preference_and_a_plan_measure_nothing(exported) -> None:
    """Whatever the configuration says of measuring."""
    program = delegate.to_backend(exported, config=TWO)
    assert program.report.placements == ()
    for placement in (delegate.ByPreference(), program.plan):
        again = delegate.to_backend(exported, config=measuring(), placement=placement)
        assert (again.report.placements, again.plan) == ((), program.plan)


@pytest.mark.extended
def test_what_was_measured_is_kept(exported, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("DELEGATE_CACHE", str(tmp_path))
    first = delegate.to_backend(exported, config=measuring(**SIZES))
    second = delegate.to_backend(exported, config=measuring(**SIZES, budget=50))
    assert first.report.placements[0].spent > 0
    assert second.report.placements[0].spent == 0
    assert second.report.placements[0].plans == first.report.placements[0].plans
    assert second.plan.places() == first.plan.places()
    assert_same(second(X), MODEL(X))
    other = torch.export.export(nn.Sequential(*(Block() for _ in range(2))).eval(), (X,))
    assert delegate.to_backend(other, config=measuring(**SIZES)).report.placements[0].spent > 0
    assert delegate.to_backend(exported, config=measuring(objective="memory")).report.placements[0].spent > 0
    assert delegate.to_backend(exported, config=measuring(**SIZES), cache=False).report.placements[0].spent > 0
    for entry in [file for file in tmp_path.rglob("*") if file.is_file()]:  # programs and choices
        entry.write_bytes(entry.read_bytes()[:-3] + b"bad")
    assert delegate.to_backend(exported, config=measuring(**SIZES)).report.placements[0].spent > 0


def test_a_choice_is_kept_for_a_method_by_its_name(exported, tmp_path, monkeypatch) -> None:
    """A plan names the graphs that its nodes are of: for another method it would have all of them on kernels."""
    monkeypatch.setenv("DELEGATE_CACHE", str(tmp_path))
    for name in ("first", "second", "second"):
        program = delegate.to_backend({name: exported}, config=measuring(**SIZES))
        assert [p.method for p in program.report.placements] == [name]
        assert [n for n in program.report.nodes if n.backend == "portable"] == []
    assert program.report.placements[0].spent == 0


def test_control_flow_several_methods_and_states() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Looping()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            return self.inner(x) + self.count

    x, module = torch.randn(2, 8), Counter().eval()
    with torch.no_grad():
        methods = {"run": torch.export.export(module, (x,)), "plain": torch.export.export(Block().eval(), (X,))}
        program = delegate.to_backend(methods, config=measuring(**SIZES))
        assert [p.method for p in program.report.placements] == ["run", "plain"]
        for count in (1, 2):
            assert_same(program.method("run")(x), module.inner(x) + count)
    assert program.method("plain")(X).shape == X.shape


def test_states_and_written_inputs_are_compared_call_by_call() -> None:
    """Each call begins with the states as they are at the start; while it is measured a counter does not run over."""

    class Cache(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()
            self.register_buffer("kept", torch.zeros(4, 4, 16))
            self.register_buffer("count", torch.zeros(1, dtype=torch.int64))

        def forward(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
            self.kept.index_copy_(0, self.count, self.block(x)[None])
            self.count.add_(1)
            out.copy_(x * 2)
            return self.kept.sum(0)

    arguments = (X, torch.zeros_like(X))
    with torch.no_grad():
        exported = torch.export.export(Cache().eval(), arguments)
    calls = [arguments, (torch.randn_like(X), torch.zeros_like(X)), arguments]
    program = delegate.to_backend(
        exported, config=measuring(**SIZES, accuracy={"sqnr_db": 80}), verify=calls, cache=False
    )
    (placement,) = program.report.placements
    assert placement.plans
    assert not [p.why for p in placement.plans if p.why]
    assert all(p.sqnr_db > 80 for p in placement.plans)


@pytest.mark.parametrize("what", ["state", "written input"])
def test_a_wrong_state_is_a_wrong_result(tmp_path, what: str) -> None:
    """Though what the call gives is right."""

    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("kept", torch.ones(4, 16))

        def forward(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
            self.kept.copy_(x * 3)
            out.copy_(x * 2)
            return x + 1

    class Other(Writing):
        def forward(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
            self.kept.copy_(x * (4 if what == "state" else 3))
            out.copy_(x * (2 if what == "state" else 5))
            return x + 1

    arguments = (X, torch.zeros_like(X))
    right, wrong = (torch.export.export(module().eval(), arguments) for module in (Writing, Other))
    programs = {name: delegate.to_backend(ep, "xnnpack").program for name, ep in (("right", right), ("wrong", wrong))}
    comparator = ReferenceComparator(right, to_edge(right), [Sample(arguments)], 40.0, is_random=False)
    factory = ProcessRunnerFactory(tmp_path, arrays_of(comparator.calls[0]), None, 20.0)
    trials = [Trial(name, program, "forward") for name, program in programs.items()]
    inaccurate: dict[str, str] = {}

    def check(runners):
        checked = check_accuracy(runners, lambda n, runner: comparator.sqnr_db(n, runner, programs[n]), 40.0)
        inaccurate.update(checked.inaccurate)
        return {}

    measure_rounds(trials, factory, fixed_rounds(0), lambda: True, check)
    assert list(inaccurate) == ["wrong"]


def test_sizes_that_differ_and_numbers_among_the_inputs() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()

        def forward(self, x: torch.Tensor, times: int, options: dict) -> dict:
            return {"y": self.block(x) * times + options["shift"]}

    module = Scaled().eval()
    arguments = (X, 3, {"shift": torch.ones(16, dtype=torch.bfloat16)})
    dims = ({0: torch.export.Dim("n", min=2, max=64)}, None, {"shift": None})
    exported = torch.export.export(module, arguments, dynamic_shapes=dims)
    program = delegate.to_backend(exported, config=measuring(**SIZES))
    assert program.report.placements[0].plans[0].cost is not None
    more = (torch.randn(9, 16), *arguments[1:])
    assert_same(program(*more)["y"], module(*more)["y"])


def test_explaining_measures_nothing_and_says_so(exported) -> None:
    report = explain(exported, config=measuring())
    assert report.notes[0] == "nodes are placed by estimates here: the plans are measured when the model is lowered"
    assert not report.placements


@pytest.mark.extended
def test_the_page_shows_what_works(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "placement.md").read_text()
    by_estimates, example, policy = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, object] = {}
    exec(by_estimates, names)
    assert any("placed by estimates" in note for note in names["program"].report.notes)
    exec(example, names)
    assert names["program"].report.placements[0].chosen == "xnnpack"
    exec(policy, names)
    assert [n.backend for n in names["program"].report.nodes] == ["xnnpack", "portable", "xnnpack"]
    for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL):
        PlacementSection.model_validate(yaml.safe_load(block)["placement"])


@pytest.mark.parametrize("objective", only(["memory"], ["memory", "file size"]))
def test_objectives(exported, objective) -> None:
    (placement,) = delegate.to_backend(exported, config=measuring(objective=objective, budget=4)).report.placements
    assert placement.objective == objective
    assert placement.plans
    assert all(p.cost is not None for p in placement.plans)
    if objective == "memory":  # the library alone takes more
        assert all(p.cost > 2**20 for p in placement.plans)


class Sum(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.tanh(a + b) + (a + b)


CRASH = "import os; os.kill(os.getpid(), 11)"
HANG = "import time; time.sleep(1000)"
WRONG = "outputs[0][...] = 1.0"
RAISES = "raise ValueError('out of luck')"
RIGHT_ONCE = "outputs[0][...] = inputs[0] + inputs[1] * (inputs[0].flat[0] < 1)"


@pytest.mark.extended
@pytest.mark.parametrize(
    ("does", "why"),
    [
        (CRASH, "was killed by SIGSEGV while measured"),
        pytest.param(HANG, "gave no answer in 10 s", marks=pytest.mark.slow),
        (WRONG, "less than the program's own precision"),
        (RAISES, "out of luck"),
        (RIGHT_ONCE, "less than the program's own precision"),
    ],
    ids=["crash", "hang", "wrong", "raises", "right on the first sample alone"],
)
def test_a_candidate_that_fails_is_out(site: Site, does: str, why: str) -> None:
    for name, body in (("bad", does), ("good", "np.add(*inputs, out=outputs[0])")):
        site.backend(name)
        halves = Path(site.root / f"{name}_halves.py")
        halves.write_text(halves.read_text().replace("np.add(*inputs, out=outputs[0])", body))

    a, b = torch.zeros(64, 64), torch.randn(64, 64)
    config = {
        "backends": ["bad", "good"],
        "placement": {"policy": "measured", "budget": 20, "candidates": ["bad", "good"]},
        "partitioning": {"min_partition_size": 0},
    }
    calls = [(a, b), (torch.ones(64, 64), b)]
    program = delegate.to_backend(torch.export.export(Sum(), (a, b)), config=config, verify=calls, cache=False)
    (placement,) = program.report.placements
    assert placement.chosen == "good"
    assert why in {p.name: p for p in placement.plans}["bad"].why
    assert_same(program(a, b), Sum()(a, b))


NOTHING = {"empty": lambda x: x[:0], "not finite": lambda x: x * float("nan")}


@pytest.mark.parametrize("name", NOTHING)
def test_results_that_say_nothing_put_nobody_out(name: str) -> None:
    class Saying(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return NOTHING[name](self.block(x))

    program = delegate.to_backend(torch.export.export(Saying().eval(), (X,)), config=measuring(objective="file size"))
    (placement,) = program.report.placements
    assert placement.plans
    assert all(p.cost is not None and not p.why for p in placement.plans)
    assert "results: not compared, because torch's results are empty or have no finite numbers" in placement.not_tried


def test_a_bound_lets_less_precision_in(exported) -> None:
    quantized = {"name": "xnnpack:two", "quantization": {"scheme": "dynamic_int8"}}
    arguments = {**SIZES, "policy": "measured", "budget": 60, "candidates": ["xnnpack:one", quantized]}
    loose = delegate.to_backend(
        exported, config={**TWO, "placement": {**arguments, "accuracy": {"sqnr_db": 10}}}, verify=X
    )
    rows = {p.name: p for p in loose.report.placements[0].plans}
    assert set(rows) == {"xnnpack:one", "xnnpack:two dynamic_int8"}
    assert 10 < rows["xnnpack:two dynamic_int8"].sqnr_db < 70 < rows["xnnpack:one"].sqnr_db
    strict = delegate.to_backend(exported, config={**TWO, "placement": {**arguments, "accuracy": {"sqnr_db": 90}}})
    (placement,) = strict.report.placements
    assert placement.chosen == "xnnpack:one"
    row = {p.name: p for p in placement.plans}["xnnpack:two dynamic_int8"]
    assert row.cost is not None  # the front has it all the same
    assert "but 90 dB is required" in row.why
    assert_same(strict(X), MODEL(X))


def test_accuracy_is_measured_on_data_that_is_named(exported, tmp_path) -> None:
    np.savez(tmp_path / "data.npz", np.zeros((4, 16), np.float32))
    asked = {**SIZES, "accuracy": {"sqnr_db": 30, "inputs": str(tmp_path / "data.npz")}}
    program = delegate.to_backend(exported, config=measuring(**asked))
    assert program.report.placements[0].chosen
    with pytest.raises(InputError, match="there is no file"):
        delegate.to_backend(exported, config=measuring(accuracy={"sqnr_db": 30, "inputs": "nothing.npz"}))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"placement": delegate.Measured(), "backends": []}, "without a backend"),
        ({"config": measuring(budget=0)}, "placement.budget: should be greater than 0"),
        ({"config": measuring(budget="soon")}, "should be a number of seconds"),
        ({"config": measuring(candidates=["xnnpack:too"])}, "did you mean 'xnnpack:two'"),
        ({"config": measuring(candidates=[])}, "name some"),
        ({"config": measuring(objective="speed")}, "placement.objective: should be"),
        ({"config": measuring(candidates=[{"name": "xnnpack:one", "quantization": {}}])}, "requires accuracy"),
        ({"config": measuring(candidates=["xnnpack:one", "xnnpack:one"])}, "one of them is named twice"),
        ({"config": measuring(threads=[0])}, "should be greater than 0"),
        *(
            ({"config": measuring(accuracy={"sqnr_db": bound})}, "sqnr_db: should be")
            for bound in (0, -5, float("nan"), float("inf"), "forty", True)
        ),
        ({"placement": "measured"}, "placement cannot be a str .*: give delegate.Estimated"),
        ({"placement": delegate.Measured(budget=-1)}, "the placement is invalid: .*budget"),
        ({"placement": delegate.Measured(objective="speed")}, "the placement is invalid: .*objective"),
    ],
)
def test_bad_input(exported, given, message) -> None:
    with pytest.raises(ConfigError, match=message):
        delegate.to_backend(exported, **given)


def test_the_request_changes_the_configuration(exported) -> None:
    config = measuring(objective="latency", budget=1e9)
    placement = delegate.Measured(objective="file size", budget=20)
    (measured,) = delegate.to_backend(exported, config=config, placement=placement).report.placements
    assert (measured.objective, measured.budget) == ("file size", 20)


def test_without_inputs_there_is_nothing_to_measure_on(exported) -> None:
    bare = torch.export.export(MODEL, (X,))
    bare._example_inputs = None
    with pytest.raises(InputError, match="has no example inputs"):
        delegate.to_backend(bare, config=measuring())


def test_a_process_that_is_killed_midway(exported, tmp_path) -> None:
    """What was measured until then stays, and the others go on."""
    program = delegate.to_backend(exported, "xnnpack").program
    factory = ProcessRunnerFactory(tmp_path, [X.numpy()], None, 20.0)
    died = killed_midway(factory, program, lambda runner: runner._process.process.kill())
    assert died.failure == "was killed by SIGKILL while measured"


def test_steps_are_timed_by_partition(exported, tmp_path) -> None:
    program = delegate.to_backend(exported, "xnnpack")
    factory = ProcessRunnerFactory(tmp_path, [X.numpy()], None, 20.0)
    records = measure_rounds(
        [Trial("a", program.program, "forward", is_watched=True)], factory, fixed_rounds(2), lambda: True
    )
    (name,) = (p.name for p in program.report.partitions)
    assert [set(step) for step in records["a"].steps] == [{name}, {name}]
    assert all(step[name] > 0 for step in records["a"].steps)


@pytest.mark.extended
def test_the_command(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.export.save(torch.export.export(MODEL, (X,)), "net.pt2")
    Path("c.yaml").write_text(
        "backends: [xnnpack, {name: 'xnnpack:one', options: {threads: 1}}]\nplacement: {budget: 0.05min}\n"
    )
    done = CliRunner().invoke(app, ["lower", "net.pt2", "-c", "c.yaml", "--measure", "-o", "net.dlg"])
    assert done.exit_code == 0, done.output
    assert "is chosen by latency, measured in" in done.stdout
    shown = CliRunner().invoke(app, ["explain", "net.dlg"])
    assert "is chosen by latency, measured in" in shown.stdout
    data = json.loads(CliRunner().invoke(app, ["explain", "net.dlg", "--json"]).stdout)
    assert {p["name"] for p in data["placements"][0]["plans"]} >= {"xnnpack", "xnnpack:one"}


@pytest.mark.extended
def test_what_a_backend_refuses_may_run_on_kernels() -> None:
    """By preference the next backend takes it, which may be slower than no backend: here a DSP played by the CPU."""
    require("dsp")
    model, tokens = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 16), nn.ReLU()).eval(), torch.arange(12)[None]
    config = {"backends": ["xnnpack", "dsp"], "placement": {"budget": 60}, "cache": {"enabled": False}}
    program = delegate.to_backend(torch.export.export(model, (tokens,)), config=config, placement=delegate.Measured())
    assert_same(program(tokens), model(tokens))
    (placement,) = program.report.placements
    assert placement.chosen == "xnnpack"
    assert {p.name for p in placement.plans} >= {"xnnpack", "dsp"}
    assert {n.op: n.backend for n in program.report.nodes}["aten.embedding.default"] == "portable"
