"""Placement by what another machine measures: bundles, their costs, the choice that is made of them, and bad files."""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from delegate_remote.aot import RemoteRunnerFactory, _Measurement
from delegate_remote.runtime import bundle as bundles
from delegate_remote.runtime.accuracy import sqnr_db, widen_bfloat16
from delegate_remote.runtime.costs import Costs, MethodCosts, ProgramCosts
from delegate_remote.runtime.measuring import measure
from typer.testing import CliRunner

import delegate
from delegate.accuracy.figures import difference
from delegate.cli.app import app
from delegate.compiled import to_array
from delegate.edge.node import dtype_of
from delegate.errors import ConfigError, PartitionError, ProgramError
from delegate.placement.runtime.elimination import Measurement, Record, choose_winner
from delegate.placement.runtime.trials import ProgramRunner, RoundResult, Trial, TrialFailed
from delegate.report import Report
from delegate.report.measured import PlanCost
from delegate.testing import assert_same
from tests.support.placing import Block
from tests.support.plugins import Site

MODEL = Block().eval()
X = torch.randn(4, 16)
NAMES = ("xnnpack:one", "xnnpack:two")
ONE = {
    "backends": [{"name": "xnnpack:one", "options": {"threads": 1}}],
    "placement": {"candidates": ["xnnpack:one"]},
}
TWO = {
    "backends": [{"name": name, "options": {"threads": n}} for n, name in enumerate(NAMES, 1)],
    "placement": {"candidates": list(NAMES)},
}


def lower(exported: Any, **given: Any) -> delegate.CompiledProgram:
    return delegate.to_backend(exported, **{"config": TWO, **given})


@pytest.fixture(scope="module")
def exported() -> torch.export.ExportedProgram:
    return torch.export.export(MODEL, (X,))


@pytest.fixture(scope="module")
def bundle(exported: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "model.bundle"
    lower(exported, placement=delegate.Remote(bundle=path))
    return path


@pytest.fixture
def costs(bundle: Path, tmp_path: Path) -> Costs:
    """As if the second took half of the first's time."""
    (task,) = bundles.read(bundle, tmp_path)
    programs = {
        entry.name: ProgramCosts(bundles.digest(entry.program), Record([0.02 / (n + 1)] * 9), 100.0)
        for n, entry in enumerate(e for e in task.trials if not e.is_watched)
    }
    return Costs("an abacus", {"forward": MethodCosts("latency", ("float32[4, 16]",), 60.0, 1.5, programs)})


def rows(program: delegate.CompiledProgram) -> dict[str, PlanCost]:
    return {p.name: p for p in program.report.placements[0].plans}


def test_a_bundle_is_measured_without_torch_and_planned_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.export.save(torch.export.export(MODEL, (X,)), "net.pt2")
    Path("c.yaml").write_text(json.dumps({**TWO, "placement": {"budget": 300, "candidates": list(NAMES)}}))
    made = CliRunner().invoke(app, ["lower", "net.pt2", "-c", "c.yaml", "--measure", "--bundle", "net.bundle"])
    assert made.exit_code == 0, made.output
    assert "xnnpack:one is chosen by latency, not measured" in made.stdout
    absent = "sys.modules.update(torch=None, yaml=None)"
    code = f"import sys; {absent}\nfrom delegate.cli.main import main\nmain()"
    command = [sys.executable, "-c", code, "measure", "net.bundle", "-o", "costs.json"]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "forward: measured by latency" in done.stdout
    known = Costs.load("costs.json").methods["forward"].programs
    whole = {name: costs for name, costs in known.items() if not costs.record.steps}
    assert set(whole) == set(NAMES)
    assert set(known) - set(whole) == {f"{name}, in parts" for name in NAMES}
    assert all(len(p.record.rounds) >= 3 and not p.record.failure for p in known.values())
    assert all(p.sqnr_db > 80 for p in whole.values())
    lower = ["lower", "net.pt2", "-c", "c.yaml", "--measure", "--costs", "costs.json", "-o", "net.dlg", "--json"]
    planned = CliRunner().invoke(app, lower)
    assert planned.exit_code == 0, planned.output
    with delegate.load("net.dlg") as loaded:
        (placement,) = loaded.report.placements
        assert Report.from_json(planned.stdout).placements == (placement,)
        assert_same(loaded(X.numpy()), MODEL(X))
    found = {p.name: p for p in placement.plans}
    assert found.keys() == whole.keys()
    # A choice from costs ends when it is decided, which may be before the measurement did on a busy machine.
    used = {n: Record(whole[n].record.rounds[: p.rounds]) for n, p in found.items()}
    assert all(len(record.rounds) >= 3 for record in used.values())
    rounded = partial(pytest.approx, rel=1e-3)  # a plan has four digits
    assert {n: p.cost for n, p in found.items()} == rounded({n: used[n].cost for n in whole})
    assert {n: p.sqnr_db for n, p in found.items()} == rounded({n: whole[n].sqnr_db for n in whole})
    assert placement.chosen == choose_winner(used, NAMES)
    assert f"on another machine: {placement.machine}" in "\n".join(map(str, placement.blocks()))


class Chain(torch.nn.Sequential):
    def __init__(self) -> None:
        super().__init__(*(Block() for _ in range(4)))


def costing(tmp_path: Path, path: Path, cost: Callable[[str, Trial], float]) -> Path:
    """Costs of a bundle, as if a machine had found these for its plans; a step takes its partition's share."""
    (task,) = bundles.read(path, tmp_path)
    programs = {}
    for entry in task.trials:
        seconds = cost(entry.name, entry)
        record = Record([seconds] * 9)
        if entry.is_watched:
            names = [spec.name for spec in entry.program.delegates]
            record.steps += [{name: seconds / len(names) for name in names}] * 9
        programs[entry.name] = ProgramCosts(bundles.digest(entry.program), record, None if entry.is_watched else 100.0)
    made = tmp_path / f"{path.name}.costs"
    Costs("an abacus", {"forward": MethodCosts("latency", ("float32[4, 16]",), 60.0, 1.5, programs)}).save(made)
    return made


def test_plans_of_several_parts_take_two_visits(tmp_path: Path) -> None:
    """The first tells what parts cost, the second whether the plans that promise more keep that."""
    module = Chain().eval()
    exported = torch.export.export(module, (X,))
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    lower(exported, placement=delegate.Remote(bundle=tmp_path / "first"))

    costs = costing(tmp_path / "one", tmp_path / "first", lambda name, entry: 1.0)
    data = json.loads(costs.read_text())  # the first is faster in the first half, the second in the other
    programs = data["methods"]["forward"]["programs"]
    for number, name in enumerate(NAMES):
        for step in programs[f"{name}, in parts"]["record"]["steps"]:
            names = list(step)
            step.update((n, 0.1 if (at < len(names) / 2) == (number == 0) else 0.2) for at, n in enumerate(names))
    costs.write_text(json.dumps(data))
    once = lower(exported, placement=delegate.Remote(costs=costs))
    assert once.report.placements[0].chosen == NAMES[0]
    assert any("--costs FILE --bundle FILE" in what for what in once.report.placements[0].not_tried)
    meanwhile = lower(exported, placement=delegate.Remote(bundle=tmp_path / "second", costs=costs))
    mixed = f"{NAMES[0]} | {NAMES[1]}"
    assert meanwhile.report.placements[0].chosen == NAMES[0]
    (task,) = bundles.read(tmp_path / "second", tmp_path / "two")
    assert {*NAMES, mixed} <= {e.name for e in task.trials}
    for wins in (True, False):
        folder = tmp_path / f"wins{wins}"
        folder.mkdir()
        more = costing(folder, tmp_path / "second", lambda name, e, w=wins: 0.5 if (name == mixed) == w else 1.0)
        (placement,) = (program := lower(exported, placement=delegate.Remote(costs=[costs, more]))).report.placements
        assert (placement.chosen == mixed) == wins
        assert len({p.backend for p in program.plan.partitions}) == 1 + wins
        assert (placement.machine, placement.spent) == ("an abacus", 3.0)
        assert_same(program(X), module(X))


def test_a_second_bundle_of_nothing_is_an_error(exported: Any, costs: Costs, tmp_path: Path) -> None:
    costs.save(tmp_path / "c")
    lower(exported, config=ONE, placement=delegate.Remote(bundle=tmp_path / "first"))
    (tmp_path / "one").mkdir()
    known = costing(tmp_path / "one", tmp_path / "first", lambda name, entry: 1.0)
    with pytest.raises(PartitionError, match="no other plan promises to be better"):
        lower(exported, config=ONE, placement=delegate.Remote(bundle=tmp_path / "b", costs=known))
    costs = Costs("another", costs.methods)
    costs.save(tmp_path / "d")
    with pytest.raises(PartitionError, match="costs of two machines"):
        lower(exported, placement=delegate.Remote(costs=[tmp_path / "c", tmp_path / "d"]))


@pytest.mark.parametrize("number", [0, 1])
def test_the_cheapest_there_is_taken_here(exported: Any, costs: Costs, tmp_path: Path, number: int) -> None:
    programs = costs.methods["forward"].programs
    for n, name in enumerate(NAMES):
        programs[name].record.rounds[:] = [0.01 if n == number else 0.02] * 9
    costs.save(tmp_path / "costs.json")
    program = lower(
        exported, placement=delegate.Remote(costs=tmp_path / "costs.json", lockfile=tmp_path / "delegate.lock")
    )
    (placement,) = program.report.placements
    assert (placement.chosen, placement.machine, placement.spent) == (NAMES[number], "an abacus", 1.5)
    assert {p.backend for p in program.plan.partitions} == {NAMES[number]}
    assert any("plans on several candidates: `--costs" in what for what in placement.not_tried)
    assert_same(program(X), MODEL(X))
    again = lower(exported, placement=delegate.Replay(tmp_path / "delegate.lock"))
    assert again.report.placements[0].machine == "an abacus"
    assert again.plan == program.plan


def test_threads_go_there_and_back(exported: Any, tmp_path: Path) -> None:
    config = {"backends": ["xnnpack"], "placement": {"threads": [1, 2], "candidates": ["xnnpack"]}}
    lower(exported, config=config, placement=delegate.Remote(bundle=tmp_path / "b"))
    (task,) = bundles.read(tmp_path / "b", tmp_path)
    assert [e.options for e in task.trials if not e.is_watched] == [{"xnnpack": {"threads": n}} for n in (1, 2)]
    programs = {
        e.name: ProgramCosts(bundles.digest(e.program), Record([1.0 / e.options["xnnpack"]["threads"]] * 9))
        for e in task.trials
    }
    Costs("x", {"forward": MethodCosts("latency", ("float32[4, 16]",), 60.0, 1.5, programs)}).save(tmp_path / "c")
    (spec,) = lower(exported, config=config, placement=delegate.Remote(costs=tmp_path / "c")).program.delegates
    assert spec.compile_specs["threads"] == 2


def test_the_same_lowering_writes_the_same_bundle(exported: Any, bundle: Path, tmp_path: Path) -> None:
    lower(exported, placement=delegate.Remote(bundle=tmp_path / "again"))
    assert (tmp_path / "again").read_bytes() == bundle.read_bytes()


class Drawing:
    """A factory of programs with random costs; one fails in a round."""

    def __init__(self, seed: int) -> None:
        self.draw, self.means = random.Random(seed), {}

    def start(self, trial: Trial) -> ProgramRunner:
        mean, fails = self.draw.uniform(1, 1.3), self.draw.choice([1000, 1000, 4])
        factory, calls = self, iter(range(10_000))

        class Drawn:
            def ready(self) -> None: ...
            def close(self) -> None: ...
            def measure_round(self) -> RoundResult:
                if next(calls) == fails:
                    raise TrialFailed("was killed by SIGSEGV while measured")
                return RoundResult(mean * factory.draw.uniform(1, 1.2))

        return Drawn()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("most", [5, 1000])
def test_the_same_numbers_lead_to_the_same_choice(
    exported: Any, bundle: Path, tmp_path: Path, seed: int, most: int
) -> None:
    """Also where the time was over there after some rounds."""
    (task,) = bundles.read(bundle, tmp_path)
    program = task.trials[0].program
    trials = [Trial(name, program, "forward") for name in "abc"]
    left = iter(range(most))
    in_time = lambda: next(left, None) is not None  # noqa: E731
    measured = Measurement(Drawing(seed), in_time, None, None).race(trials, lambda: True)
    digest = bundles.digest(program)
    known = MethodCosts("latency", (), 60.0, 1.0, {n: ProgramCosts(digest, r) for n, r in measured.items()})
    factory = RemoteRunnerFactory([_Measurement(known, "")], collects=False)
    replayed = Measurement(factory, lambda: True, None, None).race(trials, lambda: True)
    assert {n: r.rounds for n, r in replayed.items()} == {n: r.rounds for n, r in measured.items()}
    assert choose_winner(replayed, "abc") == choose_winner(measured, "abc")


def test_candidates_that_are_missing_or_unknown_are_noted(exported: Any, costs: Costs, tmp_path: Path) -> None:
    programs = dict(costs.methods["forward"].programs)
    programs["openvino"] = programs.pop(NAMES[1])
    Costs("x", {"forward": MethodCosts("latency", ("float32[4, 16]",), 60.0, 1.5, programs)}).save(tmp_path / "c")
    program = lower(exported, placement=delegate.Remote(costs=tmp_path / "c"))
    (placement,) = program.report.placements
    assert placement.chosen == NAMES[0]
    assert rows(program)[NAMES[1]].why == "not among the costs of the other machine"
    assert "openvino: it was measured, but is not a candidate here" in placement.not_tried


class Noisy(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 + torch.rand_like(x)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "x", "is_compared"),
    [(Block().eval().bfloat16(), X.bfloat16(), True), (Noisy(), X, False)],
    ids=["bfloat16", "random"],
)
def test_results_are_compared_where_they_can_be(module: Any, x: Any, is_compared: bool, tmp_path: Path) -> None:
    exported = torch.export.export(module, (x,))
    lower(exported, placement=delegate.Remote(bundle=tmp_path / "b"))
    costs = measure(tmp_path / "b", budget=300)
    costs.save(tmp_path / "c")
    program = lower(exported, placement=delegate.Remote(costs=tmp_path / "c"))
    near = [p.sqnr_db for p in rows(program).values()]
    assert all(sqnr > 30 for sqnr in near) if is_compared else near == [None] * len(near)
    assert not rows(program)[NAMES[0]].why
    assert {p.cost is not None for p in rows(program).values() if not p.why} == {True}


def test_a_bound_holds_there_and_here(exported: Any, tmp_path: Path) -> None:
    """A candidate that misses it is measured for the table, and never taken. With a lower bound it may be."""
    quantized = {"name": NAMES[1], "quantization": {"scheme": "dynamic_int8"}}

    def bound_by(sqnr_db: float) -> dict[str, Any]:
        return {**TWO, "placement": {"candidates": [NAMES[0], quantized], "accuracy": {"sqnr_db": sqnr_db}}}

    lower(exported, config=bound_by(90), placement=delegate.Remote(bundle=tmp_path / "b"))
    costs = measure(tmp_path / "b", budget=300)
    programs = costs.methods["forward"].programs
    for name, cost in ((NAMES[0], 2e-9), (f"{NAMES[1]} dynamic_int8", 1e-9)):
        programs[name].record.rounds[:] = [cost] * 9
    costs.save(tmp_path / "c")
    strict = lower(exported, config=bound_by(90), placement=delegate.Remote(costs=tmp_path / "c"))
    assert strict.report.placements[0].chosen == NAMES[0]
    row = rows(strict)[f"{NAMES[1]} dynamic_int8"]
    assert (row.cost, "but 90 dB is required" in row.why) == (1e-9, True)
    loose = lower(exported, config=bound_by(10), placement=delegate.Remote(costs=tmp_path / "c"))
    assert loose.report.placements[0].chosen == f"{NAMES[1]} dynamic_int8"


def test_every_method_and_other_objectives(exported: Any, tmp_path: Path) -> None:
    methods = {"a": exported, "b": torch.export.export(Block().eval(), (X[:2],))}
    config = {**TWO, "placement": {"objective": "file size"}}
    lower(methods, config=config, placement=delegate.Remote(bundle=tmp_path / "b"))
    costs = measure(tmp_path / "b", budget=300)
    assert {name: m.inputs for name, m in costs.methods.items()} == {"a": ("float32[4, 16]",), "b": ("float32[2, 16]",)}
    costs.save(tmp_path / "c")
    program = lower(methods, config=config, placement=delegate.Remote(costs=tmp_path / "c"))
    assert [p.method for p in program.report.placements] == ["a", "b"]
    assert all(placement.plans for placement in program.report.placements)
    assert all(p.cost > 1000 for placement in program.report.placements for p in placement.plans)
    assert_same(program.method("a")(X), MODEL(X))


def test_too_few_rounds_decide_nothing_and_that_is_said(exported: Any, costs: Costs, tmp_path: Path) -> None:
    for name, cost in zip(NAMES, (0.02, 0.017), strict=True):
        costs.methods["forward"].programs[name].record.rounds[:] = [cost] * 3
    costs.save(tmp_path / "c")
    (placement,) = lower(exported, placement=delegate.Remote(costs=tmp_path / "c")).report.placements
    assert placement.chosen == NAMES[0]
    assert "more rounds: no more were run on the other machine" in placement.not_tried


RIGHT = "np.add(*inputs, out=outputs[0])"


class Sum(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.tanh(a + b) + (a + b)


@pytest.mark.parametrize(
    ("does", "why"),
    [
        ("outputs[0][...] = 1.0", "less than the program's own precision"),
        pytest.param("raise ValueError('no luck')", "no luck", marks=pytest.mark.slow),
    ],
    ids=["wrong", "raises"],
)
def test_what_fails_there_is_out_here(site: Site, tmp_path: Path, does: str, why: str) -> None:
    given = adding(site, {"bad": does, "good": RIGHT}, tmp_path / "b")
    costs = measure(tmp_path / "b", budget=300)
    assert why in costs.methods["forward"].programs["bad"].record.failure
    costs.save(tmp_path / "c")
    program = delegate.to_backend(**given, placement=delegate.Remote(costs=tmp_path / "c"))
    assert program.report.placements[0].chosen == "good"
    assert why in rows(program)["bad"].why


def test_machine_code_of_a_bundle_is_opened_where_it_is_trusted(site: Site, tmp_path: Path) -> None:
    adding(site, {"coded": RIGHT}, tmp_path / "b", "def runs_code(self, compile_specs): return True")
    for refused in measure(tmp_path / "b", budget=300).methods["forward"].programs.values():
        assert not refused.record.rounds
        assert "trust" in refused.record.failure
    for trusted in measure(tmp_path / "b", budget=300, trust_code=True).methods["forward"].programs.values():
        assert (trusted.record.failure, len(trusted.record.rounds) > 0) == ("", True)


def adding(site: Site, bodies: dict[str, str], path: Path, declared: str = "") -> dict[str, Any]:
    """Writes a bundle of backends that add; gives the arguments of that lowering."""
    for name, body in bodies.items():
        site.backend(name)
        halves = Path(site.root / f"{name}_halves.py")
        text = halves.read_text().replace(RIGHT, body)
        halves.write_text(text.replace("(BackendRuntime):", f"(BackendRuntime):\n    {declared}"))
    a, b = torch.randn(8, 8), torch.randn(8, 8)
    config = {"backends": [*bodies], "placement": {"candidates": [*bodies]}, "partitioning": {"min_partition_size": 0}}
    given = {"model": torch.export.export(Sum(), (a, b)), "config": config}
    delegate.to_backend(**given, placement=delegate.Remote(bundle=path))
    return given


def drawn(dtype: torch.dtype, seed: int) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.randint(-9, 9, (3, 5)).to(dtype) if not dtype.is_floating_point else torch.randn(3, 5).to(dtype)


def change_value(tensor: torch.Tensor, value: float) -> torch.Tensor:
    tensor = tensor.clone()
    tensor[0, 0] = value
    return tensor


A, B, COUNTS = drawn(torch.float32, 0), drawn(torch.float32, 1), drawn(torch.int32, 2)
NEAR: dict[str, tuple[list[torch.Tensor], list[torch.Tensor]]] = {
    "floats": ([A + 0.01 * B], [A]),
    "the same": ([A], [A]),
    "nothing like it": ([B], [A]),
    "zeros": ([A], [A * 0]),
    "the farthest counts": ([A, A + 0.1 * B], [A, A]),
    "integers": ([COUNTS + (COUNTS > 0).to(torch.int32)], [COUNTS]),
    "truth": ([A > 0.1], [A > 0]),
    "complex": ([torch.complex(A, B + 0.1)], [torch.complex(A, B)]),
    "bfloat16": ([(A + 0.01 * B).bfloat16()], [A.bfloat16()]),
    "float16": ([(A + 0.01 * B).half()], [A.half()]),
    "NaN in both": ([change_value(A + 0.01 * B, float("nan"))], [change_value(A, float("nan"))]),
    "NaN in one": ([change_value(A, float("nan"))], [A]),
    "infinities": ([change_value(A + 0.01 * B, float("inf"))], [change_value(A, float("inf"))]),
    "other infinities": ([change_value(A, float("-inf"))], [change_value(A, float("inf"))]),
    "nothing finite": ([A * float("nan")], [A * float("nan")]),
}


@pytest.mark.parametrize("name", NEAR)
def test_how_near_results_are_is_the_same_without_torch(name: str) -> None:
    actual, expected = NEAR[name]
    arrays = [[widen_bfloat16(to_array(t, ""), dtype_of(t.dtype)) for t in tensors] for tensors in (actual, expected)]
    assert sqnr_db(arrays[:1], arrays[1:]) == pytest.approx(difference(actual, expected).sqnr_db, nan_ok=True, abs=1e-6)


@pytest.mark.parametrize("says_nothing", [np.full(3, np.nan), np.full(3, -np.inf), np.zeros((0, 3))])
def test_an_output_that_says_nothing_hides_no_other(says_nothing: np.ndarray) -> None:
    """A mask of infinities beside results, for one: these have to be near."""
    right, wrong = np.ones(4), np.arange(4.0)
    expected = [[says_nothing, right]]
    assert np.isnan(sqnr_db([[says_nothing]], [[says_nothing]]))
    assert sqnr_db(expected, expected) == np.inf
    assert sqnr_db([[says_nothing, wrong]], expected) < 0


def test_other_shapes_are_wrong_results() -> None:
    assert sqnr_db([[np.ones((2, 3))]], [[np.ones((3, 2))]]) == -np.inf
    assert sqnr_db([[np.ones(2)]], [[np.ones(2), np.ones(2)]]) == -np.inf


# -- bad input ---------------------------------------------------------------------------------------------------------


def edit(data: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split("/")
    for key in parents:
        data = data[key]
    data[last] = value


PROGRAM = f"methods/forward/programs/{NAMES[0]}"
BAD_COSTS: dict[str, tuple[str, Any, str]] = {
    "another format": ("format", 9, "its format is 9, but only format 3 is"),
    "another artifact": (f"{PROGRAM}/digest", "0" * 64, "are of a different artifact than the one compiled here"),
    "another objective": ("methods/forward/objective", "memory", "by memory, but latency is requested"),
    "no objective": ("methods/forward/objective", "beauty", "'beauty' is not an objective"),
    "another method": ("methods", {}, "none of method 'forward'"),
    "other inputs": ("methods/forward/inputs", ["float32[8, 16]"], "called with float32.8, 16., not float32.4, 16."),
    "a negative cost": (f"{PROGRAM}/record/rounds", [-1.0], "rounds should be a finite number of 0 or more, not -1.0"),
    "no rounds": (f"{PROGRAM}/record/rounds", None, "rounds should be a list"),
    "methods in a list": ("methods", [], "methods should be a mapping"),
    "a cost in words": (f"{PROGRAM}/record/rounds", ["1"], "rounds should be a number, not '1'"),
    "a step below nothing": (f"{PROGRAM}/record/steps", [{"a": -1.0}], "a should be a finite number of 0 or more"),
}


@pytest.mark.parametrize("name", BAD_COSTS)
def test_costs_of_something_else_are_an_error(exported: Any, costs: Costs, tmp_path: Path, name: str) -> None:
    place, value, message = BAD_COSTS[name]
    data = json.loads(costs.to_json())
    edit(data, place, value)
    (tmp_path / "c").write_text(json.dumps(data))
    with pytest.raises(PartitionError, match=message):
        lower(exported, placement=delegate.Remote(costs=tmp_path / "c"))


def test_costs_that_cannot_be_read(exported: Any, tmp_path: Path) -> None:
    (tmp_path / "c").write_text("{")
    with pytest.raises(PartitionError, match="not measured costs"):
        lower(exported, placement=delegate.Remote(costs=tmp_path / "c"))
    with pytest.raises(PartitionError, match="No such file"):
        lower(exported, placement=delegate.Remote(costs=tmp_path / "none"))


def members(bundle: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(bundle) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def about(place: str, value: Any) -> Callable[[dict[str, bytes]], None]:
    def change(files: dict[str, bytes]) -> None:
        data = json.loads(files["bundle.json"])
        task = {"tasks": dict(enumerate(data["tasks"]))} if place.startswith("tasks/") else data
        if place.startswith("tasks/"):
            _, key = place.split("/")
            data["tasks"][0][key] = value(data["tasks"][0][key]) if callable(value) else value
        else:
            edit(task, place, value)
        files["bundle.json"] = json.dumps(data).encode()

    return change


def make_pickle() -> bytes:
    held = io.BytesIO()
    np.savez(held, **{"0": np.array([{}], dtype=object), "plain": np.array("[null]")})
    return held.getvalue()


def make_archive() -> bytes:
    held = io.BytesIO()
    np.savez_compressed(held, **{"0": np.zeros((4, 16), np.float32), "plain": np.array("[null]")})
    return held.getvalue()


def make_unended_file() -> bytes:
    held, header = io.BytesIO(), b"{'descr': '<f4', 'shape': (\n"
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("0.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
        archive.writestr("plain.npy", make_pickle())
    return held.getvalue()


def put(name: str, data: Callable[[], bytes] | bytes) -> Callable[[dict[str, bytes]], None]:
    return lambda files: files.update({name: data() if callable(data) else data})


def first(change: dict[str, Any]) -> Callable[[Sequence[dict[str, Any]]], list[dict[str, Any]]]:
    return lambda programs: [{**programs[0], **change}, *programs[1:]]


BAD_BUNDLES: dict[str, tuple[Callable[[dict[str, bytes]], Any], str]] = {
    "another format": (about("format", 9), "its format is 9, but only format 3 is"),
    "an earlier format": (about("format", 2), "its format is 2, but only format 3 is"),
    "nothing said": (put("bundle.json", b"{}"), "KeyError"),
    "nested without end": (put("bundle.json", b"[" * 100_000), "RecursionError"),
    "too much said": (put("bundle.json", b" " * (2**20 + 1)), "JSONDecodeError"),
    "no methods": (about("tasks", []), "has no methods"),
    "another method": (about("tasks/method", "decode"), "has no method 'decode'"),
    "no objective": (about("tasks/objective", "beauty"), "'beauty' is not an objective"),
    "no time": (about("tasks/budget", 0), "greater than 0"),
    "no programs": (about("tasks/programs", []), "has nothing to measure"),
    "one name": (
        about("tasks/programs", lambda p: [{**p[0], "name": p[1]["name"]}, p[1]]),
        "two programs of the same name",
    ),
    "another program": (
        about("tasks/programs", first({"digest": "0"})),
        "is not the program that bundle.json describes",
    ),
    "no such file": (about("tasks/programs", first({"file": 99})), "KeyError"),
    "a path for a file": (about("tasks/programs", first({"file": "../0"})), "ValueError"),
    "no threads": (about("tasks/programs", first({"threads": {"xnnpack": 0}})), "should be positive"),
    "a path for threads": (
        about("tasks/programs", first({"threads": {"xnnpack": "/x"}})),
        "xnnpack should be a whole number",
    ),
    "a bound that is no number": (about("tasks/bound", "nan"), "bound should be a finite number"),
    "more calls": (about("tasks/calls", 7), "KeyError"),
    "no calls": (about("tasks/calls", 0), "nothing to measure"),
    "a damaged program": (lambda f: f.update({"0/0.dlg": f["0/0.dlg"][:-1]}), "the file has"),
    "no program": (lambda f: f.pop("0/1.dlg"), "KeyError"),
    "a pickle": (put("0/call0.npz", make_pickle), "Object arrays cannot be loaded"),
    "a pickle among results": (put("0/expected0.npz", make_pickle), "Object arrays cannot be loaded"),
    "an array's header that ends too early": (put("0/call0.npz", make_unended_file), "TokenError|not a valid bundle"),
    "packed arrays": (put("0/call0.npz", make_archive), "its members are compressed"),
    "no arrays": (put("0/call0.npz", b"x"), "BadZipFile"),
}


@pytest.mark.parametrize("name", BAD_BUNDLES)
def test_a_bundle_that_is_unsound_is_an_error(bundle: Path, tmp_path: Path, name: str) -> None:
    change, message = BAD_BUNDLES[name]
    files = members(bundle)
    change(files)
    with zipfile.ZipFile(tmp_path / "b", "w") as archive:
        for member, data in files.items():
            archive.writestr(member, data)
    with pytest.raises(ProgramError, match=message):
        measure(tmp_path / "b")


def test_what_is_no_bundle_at_all(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(bundle.read_bytes()[:-40])
    for name, message in (("b", "not a valid bundle"), ("none", "No such file")):
        with pytest.raises(ProgramError, match=message):
            measure(tmp_path / name)
    with zipfile.ZipFile(tmp_path / "small", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bundle.json", "{}" + " " * 1000)
    with pytest.raises(ProgramError, match="its members are compressed"):
        measure(tmp_path / "small")
    for budget in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ProgramError, match=f"a budget of {budget:g} s"):
            measure(bundle, budget=budget)


def test_arguments_that_contradict_each_other(exported: Any, bundle: Path, tmp_path: Path) -> None:
    options = ["lower", "net.pt2", "-o", str(tmp_path / "net.dlg"), "--bundle", str(tmp_path / "b")]
    for other, message in (
        (("--locked", "l"), "--locked and --bundle both decide"),
        (("--ray", "auto"), "--bundle and --ray"),
    ):
        done = CliRunner().invoke(app, [*options, *other])
        assert done.exit_code == 2
        assert message in " ".join(done.output.replace("│", " ").split())
    with pytest.raises(ConfigError, match="neither a bundle nor costs"):
        lower(exported, placement=delegate.Remote())
    assert not (tmp_path / "b").exists()
    with pytest.raises(ProgramError, match="the bundle cannot be written"):
        lower(exported, placement=delegate.Remote(bundle=tmp_path / "none" / "b"))
    done = CliRunner().invoke(app, ["lower", "net.pt2"])
    assert done.exit_code == 2
    assert "Missing option '--output'" in done.output


def test_parts_are_measured_of_the_fastest_whatever_their_place_in_the_list(tmp_path: Path) -> None:
    """The first bundle cuts the first four plans, the next one those that turned out to be the fastest."""
    names = [f"xnnpack:{letter}" for letter in "abcde"]
    backends = [{"name": name, "options": {"threads": 1}} for name in names]
    config = {"backends": backends, "placement": {"candidates": names}}
    exported = torch.export.export(Chain().eval(), (X,))
    fastest = names[-1]
    known: list[Path] = []

    def visit_bundles(number: int) -> set[str]:
        """Lower with what is known, measure the bundle that this gives; the names of its programs."""
        path, folder = tmp_path / f"{number}.bundle", tmp_path / str(number)
        folder.mkdir()
        lower(exported, config=config, placement=delegate.Remote(bundle=path, costs=known))
        known.append(costing(folder, path, lambda name, entry: 0.9 if name.startswith(fastest) else 1.0))
        with zipfile.ZipFile(path) as archive:
            return {p["name"] for p in json.loads(archive.read("bundle.json"))["tasks"][0]["programs"]}

    assert visit_bundles(0) == {*names, *(f"{name}, in parts" for name in names[:4])}
    (placement,) = lower(exported, config=config, placement=delegate.Remote(costs=known)).report.placements
    assert placement.chosen == fastest
    assert any("--costs FILE --bundle FILE" in what for what in placement.not_tried)
    assert not any("budget" in what for what in placement.not_tried)
    assert f"{fastest}, in parts" in visit_bundles(1)
