"""Test which plan is chosen if costs come from a table: a partition costs its blocks on its backend, and its call."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

from delegate.costs.estimates import Estimates
from delegate.costs.profile import read_shipped
from delegate.edge.sources import read_programs
from delegate.kernels.selection import kernels_of
from delegate.lowering.compiler import Compiler
from delegate.partitioner.saved import BY_THE_PLAN, SavedPlan
from delegate.placement.placer import Placer
from delegate.placement.plans import Candidate, ChosenPlan, Task
from delegate.placement.runtime.trials import ProgramRunner, RoundResult, Trial, TrialFailed
from delegate.program.model import DelegateCall, Program
from delegate.registry import default_registry
from delegate.report.measured import PlanCost
from delegate.selection import select

BLOCKS, WIDTH, ON_KERNELS = 6, 16, 5.0
NAMES = ("xnnpack:a", "xnnpack:b", "xnnpack:c")
Table = Mapping[str, Sequence[float]]


def block(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width + 1), nn.Tanh())


@dataclass
class TableRunnerFactory:
    """Programs whose blocks have the costs of a table, with noise. The measured time advances the clock.

    While other processes use the cores, the costs of some backends are multiplied by a factor.
    """

    table: Table
    noise: float = 0.02
    call: float = 0.05
    crossing: float = 0.0
    faults: Mapping[str, int] = field(default_factory=dict)  # backend -> the turn in which what uses it fails
    busy: Callable[[float], bool] = lambda now: False
    slowed: Mapping[str, float] = field(default_factory=dict)  # backend -> factor
    tells: bool = True  # whether programs know how long they waited for a core
    now: float = 0.0
    draw: random.Random = field(default_factory=lambda: random.Random(0))
    opened: list[Trial] = field(default_factory=list)

    def start(self, trial: Trial) -> ProgramRunner:
        self.opened.append(trial)
        return TableRunner(self, trial)

    def clock(self) -> float:
        return self.now


class TableRunner:
    def __init__(self, factory: TableRunnerFactory, trial: Trial) -> None:
        self.factory, self.trial, self.rounds = factory, trial, 0
        self.costs = dict(partition_costs(trial.program, factory))

    def ready(self) -> None:
        self.factory.now += 0.1

    def measure_round(self) -> RoundResult:
        self.rounds += 1
        for spec in self.trial.program.delegates:
            if self.rounds >= self.factory.faults.get(spec.backend, 1000):
                raise TrialFailed("was killed by SIGSEGV while measured")
        is_busy = self.factory.busy(self.factory.now)
        self.factory.now += 0.05
        backends = {spec.backend for spec in self.trial.program.delegates} if is_busy else ()
        slower = max((self.factory.slowed.get(name, 1.0) for name in backends), default=1.0)
        steps = {n: c * slower * self.factory.draw.uniform(1, 1 + self.factory.noise) for n, c in self.costs.items()}
        waited = (0.6 if is_busy else 0.0) + 0.01 * (self.rounds % 5)
        return RoundResult(
            sum(steps.values()), steps if self.trial.is_watched else {}, waited if self.factory.tells else 0.0
        )

    def outputs(self, leaves: Sequence[Any]) -> list[Any]:
        raise AssertionError

    def close(self) -> None:
        pass


def partition_costs(program: Program, factory: TableRunnerFactory):
    """Yield the cost of each partition, with its name. The width of its result identifies its last block."""
    method = program.methods[0]
    done, last = 0, ""
    for call in method.instructions:
        if not isinstance(call, DelegateCall):  # what was not worth a call of its backend
            yield method.values[call.outputs[0]].name, ON_KERNELS
            done = method.values[call.outputs[0]].shape[-1] - WIDTH
            continue
        spec = program.delegates[call.delegate]
        end = method.values[call.outputs[0]].shape[-1] - WIDTH
        passing = factory.crossing if last not in ("", spec.backend) else 0.0
        yield spec.name, sum(factory.table[spec.backend][done:end]) + factory.call + passing
        done, last = end, spec.backend
    assert done == BLOCKS


@dataclass
class TableComparator:
    """A comparator that reads SQNR values from a table."""

    sqnr_db_of: Mapping[str, float] = field(default_factory=dict)
    bound: float = 40.0
    is_random: bool = False

    def sqnr_db(self, name: str, runner: ProgramRunner, program: Program) -> float | None:
        return self.sqnr_db_of.get(name)


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    torch.manual_seed(0)
    module = nn.Sequential(*(block(WIDTH + i) for i in range(BLOCKS))).eval()
    registry = default_registry()
    selection = select(None, {"backends": list(NAMES)}, registry)
    compiler = Compiler(selection, kernels_of(registry, None), costs=Estimates(read_shipped()))
    compiler.add_methods(read_programs(torch.export.export(module, (torch.randn(4, WIDTH),))))
    return compiler


def placer(
    compiler: Compiler,
    factory: TableRunnerFactory,
    comparator: TableComparator | None = None,
    **task: Any,
) -> Placer:
    def pause(seconds: float) -> None:
        factory.now += seconds

    candidates = [Candidate(name, name, compiler) for name in factory.table]
    placement_task = Task("forward", candidates, **{"objective": "latency", "budget": 1000.0, **task})
    return Placer(placement_task, factory, comparator or TableComparator(), clock=factory.clock, pause=pause)


def choose_plan(compiler: Compiler, factory: TableRunnerFactory, *arguments: Any, **task: Any) -> ChosenPlan:
    return placer(compiler, factory, *arguments, **task).place()


def rows(chosen: ChosenPlan) -> dict[str, PlanCost]:
    return {p.name: p for p in chosen.placement.plans}


def flat(cost: float) -> list[float]:
    return [cost] * BLOCKS


HALVES = {NAMES[0]: [1, 1, 1, 2, 2, 2], NAMES[1]: [2, 2, 2, 1, 1, 1]}
NEAR = {NAMES[0]: [1, 1, 1, 1.2, 1.2, 1.2], NAMES[1]: [1.2, 1.2, 1.2, 1.1, 1.1, 1.1]}
ONE_BLOCK = {NAMES[0]: flat(1.0), NAMES[1]: [2, 2, 0.5, 2, 2, 2]}
NOISY = {NAMES[0]: [1, 1, 1, 1.5, 1.5, 1.5], NAMES[1]: [1.5, 1.5, 1.5, 1, 1, 1], NAMES[2]: flat(1.4)}
FIRST, SECOND = NAMES[:2]
CHOICES: dict[str, tuple[Table, Mapping[str, Any], Sequence[str]]] = {  # the costs, and the backends of the partitions
    "the best": ({FIRST: flat(1.2), SECOND: flat(1.0), NAMES[2]: flat(1.5)}, {}, [SECOND]),
    "segments where they are fastest": ({**HALVES, NAMES[2]: flat(1.9)}, {}, [FIRST, SECOND]),
    "a cheap crossing": (NEAR, {}, [FIRST, SECOND]),
    "a dear crossing": (NEAR, {"crossing": 1.0}, [FIRST]),
    "a block that saves more than two calls": (ONE_BLOCK, {"call": 0.1}, [FIRST, SECOND, FIRST]),
    "a block that saves less than two calls": (ONE_BLOCK, {"call": 0.5}, [FIRST]),
    "a tie goes to the preferred": ({n: flat(1.0) for n in NAMES}, {"noise": 0.2}, [FIRST]),
    **{f"noise {seed}": (NOISY, {"noise": 0.2, "draw": random.Random(seed)}, [FIRST, SECOND]) for seed in range(3)},
}


@pytest.mark.parametrize("name", CHOICES)
def test_which_plan_is_taken(compiler: Compiler, name: str) -> None:
    table, given, expected = CHOICES[name]
    chosen = choose_plan(compiler, TableRunnerFactory(table, **given))
    assert [p.backend for p in chosen.plan.partitions] == expected
    assert chosen.placement.chosen == " | ".join(dict.fromkeys(expected))
    measured = rows(chosen)
    assert set(table) <= set(measured)
    assert measured[chosen.placement.chosen].against is None
    assert min(measured[n].against.ratio for n in table if n != chosen.placement.chosen) > 0.9


@pytest.mark.parametrize("seed", range(4))
def test_what_is_taken_is_never_worse_than_the_best_alone(compiler: Compiler, seed: int) -> None:
    draw = random.Random(seed)
    table = {name: [draw.uniform(0.5, 2) for _ in range(BLOCKS)] for name in NAMES}
    factory = TableRunnerFactory(table, noise=0.3, call=draw.uniform(0, 0.3), crossing=draw.uniform(0, 0.3), draw=draw)
    chosen = choose_plan(compiler, factory)
    exact = TableRunnerFactory(table, noise=0.0, call=factory.call, crossing=factory.crossing)

    def cost(plan: Any) -> float:
        fork = compiler.fork_with({})
        fork.apply(plan, BY_THE_PLAN)
        return sum(dict(partition_costs(fork.compile()[0], exact)).values())

    def prefer(name: str) -> SavedPlan:
        fork = compiler.fork_for_way("forward", name)
        fork.plan()
        return SavedPlan.of(fork.plans)

    single_backend = [cost(prefer(name)) for name in NAMES]
    assert cost(chosen.plan) <= min(single_backend) * 1.05  # equal within what noise of 30 % leaves open


@pytest.mark.parametrize("round_number", [1, 5])
def test_what_fails_is_out_with_the_reason(compiler: Compiler, round_number: int) -> None:
    factory = TableRunnerFactory(
        {NAMES[0]: flat(1.0), NAMES[1]: flat(0.5), NAMES[2]: flat(1.5)}, faults={NAMES[1]: round_number}
    )
    chosen = choose_plan(compiler, factory)
    assert chosen.placement.chosen == NAMES[0]
    assert rows(chosen)[NAMES[1]].why == "was killed by SIGSEGV while measured"


def test_where_all_fail_it_is_the_preferred(compiler: Compiler) -> None:
    factory = TableRunnerFactory({n: flat(1.0) for n in NAMES}, faults=dict.fromkeys(NAMES, 1))
    chosen = choose_plan(compiler, factory)
    assert chosen.placement.chosen == NAMES[0]
    assert chosen.placement.not_tried
    assert chosen.placement.plans
    assert all(p.why for p in chosen.placement.plans)


def test_a_small_budget_says_what_was_not_tried(compiler: Compiler) -> None:
    chosen = choose_plan(compiler, TableRunnerFactory(HALVES), budget=1.5)
    assert chosen.placement.chosen in HALVES
    assert any("budget" in what for what in chosen.placement.not_tried)
    none = choose_plan(compiler, TableRunnerFactory(HALVES), budget=1e-6)
    assert none.placement.chosen == NAMES[0]


def test_what_misses_the_bound_is_in_the_table_and_never_taken(compiler: Compiler) -> None:
    table = {NAMES[0]: flat(1.0), NAMES[1]: flat(0.2), NAMES[2]: flat(0.9)}
    chosen = choose_plan(compiler, TableRunnerFactory(table), TableComparator({NAMES[1]: 18.0, NAMES[2]: 60.0}))
    assert chosen.placement.chosen == NAMES[2]
    row = rows(chosen)[NAMES[1]]
    assert (row.sqnr_db, row.why) == (18.0, "18.0 dB, but 40 dB is required")
    assert row.cost is not None
    assert row.cost < rows(chosen)[NAMES[2]].cost


def test_where_none_keeps_the_bound_it_is_the_nearest(compiler: Compiler) -> None:
    table = {n: flat(1.0) for n in NAMES}
    chosen = choose_plan(
        compiler, TableRunnerFactory(table), TableComparator(dict(zip(NAMES, (10.0, 30.0, 20.0), strict=True)))
    )
    assert chosen.placement.chosen == NAMES[1]


@pytest.mark.parametrize("objective", ["memory", "file size"])
def test_other_objectives_compare_whole_plans(compiler: Compiler, objective: str) -> None:
    factory = TableRunnerFactory({NAMES[0]: flat(3.0), NAMES[1]: flat(1.0)}, noise=0.0)
    chosen = choose_plan(compiler, factory, objective=objective)
    assert chosen.placement.chosen == NAMES[1]
    assert all(t.objective == objective and not t.is_watched for t in factory.opened)


BUSY: dict[str, tuple[Callable[[float], bool], str]] = {  # when, and what is said of it
    "in bursts": (lambda now: now % 2 < 1.2, "rounds do not count, because other processes used the cores"),
    "until the second race": (lambda now: now < 3, ""),  # what wins then has waited less than ever
    "from then on": (lambda now: now > 3, "the best plan again: other processes used the cores"),
}
PREFERRED = {NAMES[0]: flat(1.0), NAMES[1]: flat(1.2), NAMES[2]: flat(1.6)}


@pytest.mark.parametrize("when", BUSY)
@pytest.mark.parametrize("seed", range(3))
def test_other_work_that_hits_the_best_the_hardest_does_not_count(compiler: Compiler, when: str, seed: int) -> None:
    slowed = {NAMES[0]: 1.8, NAMES[1]: 1.3, NAMES[2]: 1.3}
    busy, note = BUSY[when]
    search = placer(
        compiler, TableRunnerFactory(PREFERRED, busy=busy, slowed=slowed, draw=random.Random(seed)), budget=60.0
    )
    chosen = search.place()
    assert chosen.placement.chosen == NAMES[0]
    assert not search.was_disturbed
    assert chosen.placement.plans[0].cost == pytest.approx(BLOCKS * 1.0, rel=0.1)
    assert note in "\n".join(map(str, chosen.placement.blocks()))


def test_what_looked_best_has_to_win_once_more(compiler: Compiler) -> None:
    """Also without a sign that other processes used the cores."""
    factory = TableRunnerFactory(PREFERRED, busy=lambda now: now < 1.5, slowed={NAMES[0]: 1.5}, tells=False)
    chosen = choose_plan(compiler, factory)
    assert chosen.placement.chosen == NAMES[0]
    assert [t.name for t in factory.opened].count(NAMES[0]) == 2


def test_where_other_work_never_ends_that_is_said_and_nothing_is_kept(compiler: Compiler) -> None:
    """Each program had all cores once."""
    rounds = iter(range(10**6))
    factory = TableRunnerFactory(PREFERRED, busy=lambda now: next(rounds) > 8, slowed={NAMES[0]: 1.5})
    search = placer(compiler, factory, budget=60.0)
    chosen = search.place()
    assert chosen.placement.chosen == NAMES[0]
    assert search.was_disturbed
    assert chosen.placement.busy.startswith("other processes used the cores all the time")
    assert factory.now < 60 * 1.1


@dataclass
class Slow(TableRunnerFactory):
    """A factory with one slow step: name of the step -> seconds."""

    takes: Mapping[str, float] = field(default_factory=dict)

    def start(self, trial: Trial) -> ProgramRunner:
        self.now += self.takes.get("seat", 0.0)
        return SlowRunner(self, trial)


class SlowRunner(TableRunner):
    def ready(self) -> None:
        self.factory.now += self.factory.takes.get("ready", 0.0)

    def measure_round(self) -> RoundResult:
        self.factory.now += self.factory.takes.get("turn", 0.0)
        return super().measure_round()

    def outputs(self, leaves: Sequence[Any]) -> list[Any]:
        self.factory.now += self.factory.takes.get("outputs", 0.0)
        return []


class OutputComparator(TableComparator):
    """A comparator that requests the outputs of each program."""

    def sqnr_db(self, name: str, runner: ProgramRunner, program: Program) -> float | None:
        runner.outputs([])
        return None


@pytest.mark.parametrize("what", ["seat", "ready", "turn", "outputs"])
def test_measuring_ends_with_the_budget_and_what_one_program_does_then(compiler, what) -> None:
    """The slow step may be the start of a process, its first answer, the comparison of results, or a round."""
    factory = Slow({n: [1.0] * BLOCKS for n in NAMES}, takes={what: 7.0})
    chosen = choose_plan(compiler, factory, OutputComparator(), budget=10.0).placement
    assert factory.now < 10 + 7 + 1
    assert chosen.chosen == NAMES[0]
    notes = " ".join((*chosen.not_tried, *(p.why for p in chosen.plans)))
    assert "the budget was spent" in notes


def test_what_there_was_no_time_for_is_taken_before_what_failed(compiler) -> None:
    """The first program hangs until the budget is over. The second has no time, so it has not failed."""

    @dataclass
    class Hanging(TableRunnerFactory):
        def start(self, trial: Trial) -> ProgramRunner:
            first = any(spec.backend == NAMES[0] for spec in trial.program.delegates)
            return HangingRunner(self, trial) if first else super().start(trial)

    class HangingRunner(TableRunner):
        def ready(self) -> None:
            self.factory.now += 20
            raise TrialFailed("gave no answer in 20 s")

    chosen = choose_plan(compiler, Hanging({n: [1.0] * BLOCKS for n in NAMES}), budget=10.0).placement
    assert chosen.chosen == NAMES[1]
    why = {p.name: p.why for p in chosen.plans}
    assert why[NAMES[0]] == "gave no answer in 20 s"
    assert why[NAMES[1]] == "the budget was spent before it ran"


def test_what_is_spent_before_is_of_the_budget(compiler) -> None:
    factory = TableRunnerFactory({n: [1.0] * BLOCKS for n in NAMES})
    candidates = [Candidate(name, name, compiler) for name in factory.table]
    late = Placer(
        Task("forward", candidates, "latency", 10.0), factory, TableComparator(), clock=factory.clock, late=11.0
    ).place()
    assert not factory.opened
    assert late.placement.spent >= 11
    assert any("the budget was spent before it was compiled" in what for what in late.placement.not_tried)
