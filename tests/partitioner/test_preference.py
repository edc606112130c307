"""Preference, over random graphs, backends and orders: who comes later changes nothing for those before, and every
node lands once, in a program that gives eager's answers."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch.fx import Node

from delegate.backend.aot import Backend, Claim, PreprocessResult
from delegate.backend.decomposition import DecompositionPolicy
from delegate.backend.selected import SelectedBackend
from delegate.edge.export import to_edge
from delegate.edge.graphs import identify, identity
from delegate.edge.node import is_compute, op_name
from delegate.edge.passes.pipeline import optimize
from delegate.edge.program import EdgeProgram
from delegate.partitioner.extraction import LoweredDelegate, PlannedRegion, find_refused_parts, lower, plan_regions
from delegate.partitioner.partitioner import CapabilityPartitioner
from delegate.partitioner.plan import Partition, Plan
from delegate.partitioner.planning import plan
from delegate.partitioner.rules import PartitionRules
from delegate.testing import assert_same
from delegate.verdict import YES, Reason, Verdict, no
from tests.support.functions import Function
from tests.support.planning import part, run, selected
from tests.support.sampling import only

Tensor = torch.Tensor
Step = Callable[[Tensor, Tensor], Tensor]

F = torch.nn.functional
STEPS: Sequence[Step] = (
    lambda x, y: x + y,
    lambda x, y: x * y,
    lambda x, y: torch.relu(x),
    lambda x, y: torch.tanh(x),
    lambda x, y: F.gelu(x),
    lambda x, y: F.silu(x),
    lambda x, y: F.layer_norm(x, (6,)),
    lambda x, y: F.softmax(x, -1),
    lambda x, y: torch.logsumexp(x, -1, keepdim=True).expand(4, 6),
    lambda x, y: x.t().reshape(4, 6),
    lambda x, y: torch.cat(torch.split(x, 2)[::-1]),
    lambda x, y: torch.where(x > y, x, y),
    lambda x, y: F.hardswish(x) - y,
    lambda x, y: x @ y.t() @ x,
)
COMPOUND = ("gelu", "silu", "layer_norm", "softmax.int", "logsumexp", "hardswish", "matmul", "split.Tensor")
CORE = (
    "add.Tensor", "mul.Tensor", "relu", "tanh", "sub.Tensor", "permute", "view", "cat", "gt.Tensor", "where.self", "mm",
    "native_layer_norm", "_softmax", "split_with_sizes", "sigmoid", "erf", "expand", "exp", "log", "clamp",
    "sum.dim_IntList", "amax", "mul.Scalar", "add.Scalar", "div.Tensor", "div.Scalar",
)  # fmt: skip


def full(name: str) -> str:
    return f"aten.{name}" if "." in name else f"aten.{name}.default"


@dataclass(frozen=True)
class Toy:
    """Takes operators, keeps some compound ones whole, and claims pairs of operators in a row."""

    takes: frozenset[str]
    keeps: frozenset[str]
    pairs: frozenset[tuple[str, str]]

    def check(self, node: Node) -> Verdict:
        return YES if op_name(node) in self.takes | self.keeps else no(Reason.OPERATOR, f"no {op_name(node)}")

    def claims(self, node: Node) -> Iterator[Claim]:
        for source in node.all_input_nodes:
            pair = op_name(source), op_name(node)
            if source.op == "call_function" and is_compute(source) and pair in self.pairs:
                fits = len(source.users) == 1
                why = YES if fits else no(Reason.OPERATOR, f"{source.name} is used elsewhere")
                yield Claim(" and ".join(pair), (source, node), why)

    @property
    def part(self) -> type[Backend]:
        return part(self.check, self.keeps, self.claims)


def toy(rng: random.Random) -> Toy:
    names = [full(n) for n in (*CORE, *COMPOUND)]
    return Toy(
        takes=frozenset(rng.sample([full(n) for n in CORE], rng.randint(2, len(CORE)))),
        keeps=frozenset(rng.sample([full(n) for n in COMPOUND], rng.randint(0, len(COMPOUND)))),
        pairs=frozenset((rng.choice(names), rng.choice(names)) for _ in range(rng.randint(0, 60))),
    )


@dataclass
class Case:
    """A random module, its toys by name, and the compound operators that kernels run whole."""

    module: torch.nn.Module
    inputs: tuple[Tensor, ...]
    toys: Mapping[str, Toy]
    whole: frozenset[str]
    rules: PartitionRules = field(default_factory=PartitionRules)

    def lowered(self, names: Sequence[str]) -> tuple[Plan, list[PlannedRegion]]:
        """As compile.py plans: until nothing is left to take apart."""
        backends = selected({name: self.toys[name].part for name in names})
        wanted = self.whole.union(*(self.toys[name].keeps for name in names))
        exported = torch.export.export(self.module, self.inputs)
        program = identify(optimize(to_edge(exported, preserve_ops=wanted)))
        refusals: dict[str, dict[Node, Verdict]] = {}
        while True:
            made = self._plan(program, backends, refusals)
            if made.needs_decomposition:
                program = identify(optimize(DecompositionPolicy(wanted).decompose(program, made.needs_decomposition)))
                continue
            found = plan_regions(made, backends)
            refused = [(c, r) for c in found if (r := find_refused_parts(c, backends[c.partition.backend]))]
            if not refused:
                return made, found
            for candidate, reasons in refused:
                verdicts = {node: no(Reason.REFUSED, why) for node, why in reasons.items()}
                refusals.setdefault(candidate.partition.backend, {}).update(verdicts)

    def _plan(self, program: EdgeProgram, backends: Mapping[str, SelectedBackend], refusals) -> Plan:
        partitioners = [CapabilityPartitioner(name) for name in backends]

        def has_kernel(node: Node) -> bool:
            return op_name(node) in self.whole or op_name(node) not in {full(n) for n in COMPOUND}

        return plan(program, partitioners, backends, self.rules, refusals=refusals, has_kernel=has_kernel)


def case(seed: int) -> Case:
    rng = random.Random(seed)
    steps = [(rng.choice(STEPS), rng.random(), rng.random()) for _ in range(rng.randint(3, 24))]

    def forward(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        values = [x, y]
        for step, first, second in steps:
            values.append(step(values[int(first * len(values))], values[int(second * len(values))]))
        return tuple(values[-3:])

    generator = torch.Generator().manual_seed(seed)
    inputs = (torch.randn(4, 6, generator=generator), torch.randn(4, 6, generator=generator))
    toys = {name: toy(rng) for name in "abc"}
    whole = frozenset(rng.sample([full(n) for n in COMPOUND], rng.randint(0, len(COMPOUND))))
    return Case(
        Function(forward).eval(), inputs, toys, whole, PartitionRules(min_partition_size=rng.choice((0, 1, 1, 2)))
    )


def gotten(found: Sequence[PlannedRegion], backend: str) -> Counter[str]:
    """What a backend computes, in the operators that it gets it in."""
    mine = (c.region for c in found if c.partition.backend == backend)
    return Counter(op_name(n) for region in mine for n in region.calls if is_compute(n))


@pytest.mark.parametrize("seed", only(range(0, 40, 8), range(40)))
def test_a_later_backend_changes_nothing_for_those_before_it(seed: int) -> None:
    made = case(seed)
    order = list(made.toys)
    random.Random(seed).shuffle(order)
    results = [made.lowered(order[:count])[1] for count in (1, 2, 3)]
    for fewer, more in itertools.pairwise(results):
        for name in order[: len(order) - 1]:
            if any(c.partition.backend == name for c in fewer):
                assert gotten(fewer, name) == gotten(more, name)
                count = [sum(c.partition.backend == name for c in found) for found in (fewer, more)]
                assert count[0] == count[1]


@pytest.mark.parametrize("seed", only(range(42, 100, 8), range(40, 100)))
def test_every_node_lands_once_and_answers_are_those_of_eager(seed: int) -> None:
    made = case(seed)
    result, found = made.lowered(list(made.toys))
    placed = [n for unit in result.order for n in (unit.nodes if isinstance(unit, Partition) else (unit,))]
    assert Counter(placed) == Counter(n for n in result.program.graph.nodes if n.op not in ("placeholder", "output"))
    for partition in result.partitions:
        toy = made.toys[partition.backend]
        claimed = {n for claim in partition.patterns for n in claim.nodes}
        assert claimed <= set(partition.nodes)
        computed = [n for n in partition.nodes if is_compute(n)]
        assert computed
        for node in computed:
            assert node in {*claimed, *partition.in_parts} or toy.check(node)
    delegates = {c.partition.name: LoweredDelegate(c.partition.backend, PreprocessResult(b""), c.region) for c in found}
    answers = run(lower(result, delegates), *made.inputs)
    for answer, expected in zip(answers, made.module(*made.inputs), strict=True):
        assert_same(answer, expected)


@pytest.mark.parametrize("seed", range(0, 100, 20))
def test_identities_are_the_same_in_every_run(seed: int) -> None:
    plans = [case(seed).lowered(["a", "b"])[0] for _ in range(2)]
    first, second = ([(identity(n.node), n.backend, n.partition) for n in p.nodes] for p in plans)
    assert first == second
    assert len({name for name, _, _ in first}) == len(first)
