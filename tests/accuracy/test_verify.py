"""Programs verified on inputs: figures per partition and method, and what the policy does where they miss it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim, export

import delegate
from delegate.errors import AccuracyError, BackendUnavailable, ConfigError, InputError
from delegate.registry import default_registry
from delegate.report import Report
from delegate.testing import assert_same
from delegate.verdict import Reason
from tests.support import vector_backend

# The backend of these tests is 5 % off on purpose; the warning itself is tested in test_references.py.
pytestmark = pytest.mark.filterwarnings("ignore:.*is usual for float32")

X = torch.linspace(-1, 1, 12).reshape(3, 4)
ROUGH = "aten.tanh.default"  # what the backend computes 5 % off


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, ...]]]:
    """The operators of every region that the backend has compiled; its tanh is 5 % off."""
    default_registry.cache_clear()
    default_registry().register(vector_backend.INFO)
    monkeypatch.setitem(vector_backend.OPERATORS, ROUGH, lambda x: np.float32(1.05) * np.tanh(x))
    regions: list[tuple[str, ...]] = []
    own = vector_backend.Vector.preprocess

    def preprocess(self: Any, region: Any) -> Any:
        regions.append(tuple(n.name for n in region.calls))
        return own(self, region)

    monkeypatch.setattr(vector_backend.Vector, "preprocess", preprocess)
    yield regions
    default_registry.cache_clear()


class Chain(nn.Module):
    """A tanh among operators that are exact."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i in range(4):
            x = (x + i) * 0.5
        x = -(x * 0.25).tanh()
        for i in range(4):
            x = (x + i) * 0.5
        return x


def verified(module: nn.Module, *samples: Any, bounds: dict[str, Any] | None = None, **more: Any) -> Any:
    config: dict[str, Any] = {"backends": ["vector"], **({} if bounds is None else {"verify": bounds})}
    exported = export(module.eval(), samples[0], **more)
    return delegate.to_backend(exported, config=config, verify=list(samples))


def test_figures_in_the_report(tmp_path):
    program = verified(Chain(), (X,))
    (method,), (partition,) = program.report.accuracy, program.report.partitions
    assert method.figures == partition.accuracy
    with torch.no_grad():
        off = (program(X) - Chain()(X)).abs()
        assert partition.accuracy.max_error == pytest.approx(off.max().item())
        assert partition.accuracy.relative_error == pytest.approx((off.max() / Chain()(X).abs().max()).item())
    assert 40 < partition.accuracy.sqnr_db < 80
    assert partition.accuracy.top1 == 1
    assert f"vector_0: {partition.accuracy}" in str(program.report)
    program.save(tmp_path / "chain.dlg")
    with delegate.load(tmp_path / "chain.dlg") as loaded:
        assert loaded.report.accuracy == program.report.accuracy
        assert loaded.report.partitions[0].accuracy == partition.accuracy
    assert not delegate.to_backend(export(Chain(), (X,)), "vector").report.accuracy


def test_the_cause_is_moved_and_the_rest_stays(compiled):
    program = verified(Chain(), (X,), bounds={"sqnr_db": 100, "on_failure": "move"})
    moved = [n for n in program.report.nodes if n.backend == "portable"]
    assert [n.op for n in moved] == [ROUGH]
    verdict = moved[0].verdicts["vector"]
    assert verdict.reason is Reason.INACCURATE
    assert "dB, max error" in verdict.message
    assert "but 100 dB or more is required" in verdict.message
    assert [p.accuracy.sqnr_db > 100 for p in program.report.partitions] == [True, True]
    assert len(compiled) == len(set(compiled)), "a region was compiled twice"
    assert f"inaccurate: {verdict.message}" in str(program.report)
    assert_same(program(X), Chain()(X), 1e-6)


class Twice(nn.Module):
    """Two branches, each with a tanh that is 5 % off, of which one hardly counts."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + 1).tanh() * 1e-5 + (x - 2).tanh() * 2


def test_only_as_much_is_moved_as_has_to():
    program = verified(Twice(), (X,), bounds={"relative_error": 1e-3, "on_failure": "move"})
    assert [n.name for n in program.report.nodes if n.verdicts["vector"].reason is Reason.INACCURATE] == ["tanh_1"]


def test_error_and_warning(tmp_path):
    with pytest.raises(
        AccuracyError,
        match=r"partition vector_0 reaches .* dB, .*, but 100 dB or more is required; method forward reaches .*"
        r"100 dB or more is required.*set verify.on_failure to move",
    ):
        verified(Chain(), (X,), bounds={"sqnr_db": 100})
    with pytest.warns(RuntimeWarning, match="vector_0 reaches .*, but a relative error of 0.0001 or less is required"):
        program = verified(Chain(), (X,), bounds={"sqnr_db": None, "relative_error": 1e-4, "on_failure": "warn"})
    assert {n.backend for n in program.report.nodes} == {"vector"}


@pytest.mark.parametrize("bounds", [{}, {"top1": 1}, {"max_error": 1.0}, {"sqnr_db": None}])
def test_bounds_that_are_kept(bounds):
    assert {n.backend for n in verified(Chain(), (X,), bounds=bounds).report.nodes} == {"vector"}


def test_a_bound_that_nothing_reaches():
    class Rounded(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return ((x @ x).tanh() + 1).softmax(1)

    with pytest.raises(
        AccuracyError, match=r"forward reaches .*, but 500 dB or more is required, and no partition left"
    ):
        verified(Rounded(), (torch.randn(64, 64),), bounds={"sqnr_db": 500, "on_failure": "move"})


def test_the_example_inputs_of_the_export_are_taken_where_bounds_are_set():
    exported = export(Chain(), (X,))
    config = {"backends": ["vector"], "verify": {"sqnr_db": 100}}
    with pytest.raises(AccuracyError, match="partition vector_0"):
        delegate.to_backend(exported, config=config)
    exported._example_inputs = None
    with pytest.raises(InputError, match="no inputs, and method forward has no example inputs: give inputs"):
        delegate.to_backend(exported, config=config)


class Kept(nn.Module):
    """A state that partitions write, and an input that is written."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sum", torch.zeros(3, 4))

    def forward(self, x: torch.Tensor, log: torch.Tensor) -> torch.Tensor:
        self.sum.add_(x.tanh())
        log.add_(self.sum)
        return self.sum * 2


def test_states_and_written_inputs_go_on_from_sample_to_sample():
    log = torch.zeros(3, 4)
    samples = [(X, log), (X * 0.5, log), (-X, log)]
    module = Kept()
    exported = export(module, samples[0])
    program = delegate.to_backend(exported, "vector", verify=samples)
    (method,) = program.report.accuracy
    assert method.figures.calls == 3
    assert method.figures.relative_error == pytest.approx(0.05, rel=1e-5)
    assert torch.equal(module.sum, torch.zeros(3, 4))
    assert torch.equal(exported.state_dict["sum"], torch.zeros(3, 4))
    assert torch.equal(log, torch.zeros(3, 4))
    assert torch.equal(program.states["sum"], torch.zeros(3, 4))
    moved = delegate.to_backend(
        exported, config={"backends": ["vector"], "verify": {"sqnr_db": 100, "on_failure": "move"}}, verify=samples
    )
    assert moved.report.accuracy[0].figures.sqnr_db > 100
    assert [n.op for n in moved.report.nodes if n.verdicts["vector"].reason is Reason.INACCURATE] == [ROUGH]


class Branches(nn.Module):
    """A tanh in the branch that is taken for positive sums alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda a: (a + 1).tanh() * 2, lambda a: (a - 1) * 2, (x,))


class Loop(nn.Module):
    """A tanh in the body of a loop."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def body(i: torch.Tensor, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return i + 1, (a + 0.5).tanh() * 2

        return torch.while_loop(lambda i, a: i < 3, body, (torch.tensor(0), x))[1]


@pytest.mark.extended
def test_partitions_within_control_flow():
    program = verified(Branches(), (X + 2,))
    reached = {p.name: p.accuracy for p in program.report.partitions}
    assert sum(a is None for a in reached.values()) == 1
    assert f"{next(n for n, a in reached.items() if a is None)}: not reached by the inputs" in str(program.report)
    both = verified(Branches(), (X + 2,), (X - 2,), bounds={"sqnr_db": 100, "on_failure": "move"})
    assert [n.op for n in both.report.nodes if n.verdicts and n.verdicts["vector"].reason is Reason.INACCURATE] == [
        ROUGH
    ]
    loop = verified(Loop(), (X,))
    assert {p.accuracy.calls for p in loop.report.partitions if p.accuracy} == {3}
    loop = verified(Loop(), (X,), bounds={"sqnr_db": 100, "on_failure": "move"})
    assert [n.op for n in loop.report.nodes if n.verdicts["vector"].reason is Reason.INACCURATE] == [ROUGH]


def test_dynamic_sizes_and_sizes_that_depend_on_data():
    rows = Dim("rows", min=1, max=16)
    program = verified(Chain(), (X,), (torch.randn(7, 4),), dynamic_shapes=({0: rows},))
    assert program.report.partitions[0].accuracy.calls == 2

    class Chosen(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x[x > 0] * 2).tanh()

    program = verified(Chosen(), (X,), (X + 0.5,))
    assert program.report.accuracy[0].figures.relative_error == pytest.approx(0.05, rel=1e-5)


def test_several_methods():
    exported = {"rough": export(Chain(), (X,)), "exact": export(nn.ReLU(), (X,)), "other": export(Chain(), (X,))}
    program = delegate.to_backend(exported, "vector", verify={"exact": (X,), "rough": [(X,), (X * 2,)]})
    assert [(m.method, m.figures.calls) for m in program.report.accuracy] == [("exact", 1), ("rough", 2)]
    assert "other: not verified, no inputs were given for it" in program.report.accuracy_lines()
    config = {"backends": ["vector"], "verify": {"sqnr_db": 100, "on_failure": "move"}}
    program = delegate.to_backend(exported, config=config, verify={"rough": (X,)})
    left = {n.method for n in program.report.nodes if n.verdicts["vector"].reason is Reason.INACCURATE}
    assert left == {"rough"}
    assert "other" in {n.method for n in program.report.nodes if n.op == ROUGH and n.backend == "vector"}


def test_the_program_that_another_was_made_of():
    class Near(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Chain()(x) + 0.5

    exported, original = export(Near(), (X,)), export(Chain(), (X,))
    program = delegate.to_backend(exported, [], verify=delegate.Verify((X,), reference=original))
    bounded, own = program.report.accuracy
    assert (bounded.reference, own.reference) == ("the float reference", "the model that was given")
    assert own.figures.max_error < 1e-6
    assert bounded.figures.max_error == pytest.approx(0.5, rel=1e-5)
    assert "forward against the float reference: " in str(program.report)
    config = {"backends": [], "verify": {"sqnr_db": 40, "on_failure": "move"}}
    with pytest.raises(
        AccuracyError, match=r"the model itself, run by torch, reaches only .* against the float reference"
    ):
        delegate.to_backend(exported, config=config, verify=delegate.Verify((X,), reference=original))
    two = export(Calls(lambda x, t: (x, x), False), (X,))
    with pytest.raises(AccuracyError, match=r"the program returns 1 outputs, but its reference 2.*method forward"):
        delegate.to_backend(exported, [], verify=delegate.Verify((X,), reference=two))
    with pytest.raises(InputError, match="there is no method 'forwards' for its reference: did you mean 'forward'"):
        delegate.to_backend(exported, [], verify=delegate.Verify((X,), reference={"forwards": original}))


def test_random_numbers_are_not_compared():
    class Noisy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * 2).tanh() + torch.rand_like(x)

    program = verified(Noisy(), (X,), bounds={"sqnr_db": None, "relative_error": 0.3})
    assert program.report.accuracy[0].figures is None
    assert "random numbers" in str(program.report)
    assert any(p.accuracy for p in program.report.partitions)


class Calls(nn.Module):
    """A function as a module, in training or not."""

    def __init__(self, function: Callable[..., Any], training: bool) -> None:
        super().__init__()
        self.function, self.state, self.is_training = function, nn.Buffer(torch.zeros(1)), training

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x, self.is_training)


def attention(x: torch.Tensor, is_training: bool) -> torch.Tensor:
    rows = x.reshape(1, 1, 3, 4)
    return F.scaled_dot_product_attention(rows, rows, rows, dropout_p=0.3 if is_training else 0.0)


# A function, and whether it draws numbers in training; out of it none does.
DRAWING: dict[str, tuple[Callable[..., Any], bool]] = {
    "attention": (attention, True),
    "dropout": (lambda x, t: F.dropout(x, 0.5, t) * 2, True),
    "dropout of nothing": (lambda x, t: F.dropout(x, 0.0, t) * 2, False),
    "a batch's own mean": (lambda x, t: F.batch_norm(x, None, None, training=True), False),
}


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore:method forward was exported in training mode")
@pytest.mark.parametrize("is_training", [True, False], ids=["training", "eval"])
@pytest.mark.parametrize("name", DRAWING)
def test_what_may_draw_is_compared_where_it_does_not(name: str, is_training: bool) -> None:
    """Torch marks operators with dropout as random, whatever their arguments. Placement asks the same of a method."""
    function, draws = DRAWING[name]
    exported = export(Calls(function, is_training), (X,))
    config = {"backends": [{"name": "xnnpack"}], "placement": {"budget": 30}}
    program = delegate.to_backend(exported, config=config, verify=(X,), placement=delegate.Measured())
    (method, *_), (placement,) = program.report.accuracy, program.report.placements
    assert (method.figures is None) == ("random" in method.why) == (draws and is_training)
    assert ("results: not compared" in "".join(placement.not_tried)) == (draws and is_training)
    assert {p.sqnr_db is None for p in placement.plans} == {draws and is_training}


def test_what_was_not_compared_is_said() -> None:
    some = verified(Calls(lambda x, t: (x * 2, x[:0], None, {"counts": x.argmax(1)}), False), (X,))
    assert str(some.report.accuracy[0]) == (
        "forward against the float reference: exact, max error 0 (0 relative), top-1 100%; "
        "not compared: result 1 is empty"
    )
    assert Report.from_json(some.report.to_json()) == some.report
    nothing = verified(Calls(lambda x, t: (x[:0] * 2, None), False), (X,))
    assert str(nothing.report.accuracy[0]) == "forward against the float reference: it returns no numbers"


class Sum(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor, scale: int = 2) -> torch.Tensor:
        return (x + y) * scale


# What is given, and what is said of it.
BAD = [
    ([], "there are no inputs to verify method forward on"),
    ("inputs.npy", "cannot verify method forward on a str: give a tuple of arguments"),
    ([(X, X, 2), 7], "cannot verify method forward on a int"),
    ([(X[:2], X[:2], 2)], r"verify"),
    ([(X,)], "verify"),
    ([(X.double(), X, 2)], "verify"),
]


@pytest.mark.parametrize(("given", "words"), BAD)
def test_inputs_that_do_not_fit(given, words):
    with pytest.raises(InputError, match=words):
        delegate.to_backend(export(Sum(), (X, X.clone(), 2)), "vector", verify=given)


@pytest.mark.parametrize(
    "given", [(X, X, 2), {"x": X, "y": X, "scale": 2}, [(X.numpy(), X.numpy(), 2)], ((X, X, 2),)[0]]
)
def test_forms_of_samples(given):
    program = delegate.to_backend(export(Sum(), (X, X.clone(), 2)), "vector", verify=given)
    assert program.report.accuracy[0].figures.max_error == 0


def test_methods_that_are_not_named():
    exported = {"a": export(Chain(), (X,)), "b": export(Chain(), (X,))}
    with pytest.raises(InputError, match=r"2 methods, but the inputs to verify do not name one: .*: a, b"):
        delegate.to_backend(exported, "vector", verify=(X,))
    with pytest.raises(InputError, match="name an unknown method 'c'"):
        delegate.to_backend(exported, "vector", verify={"a": (X,), "c": (X,)})


def test_partitions_that_cannot_run_here(monkeypatch):
    def absent(self: Any, blob: memoryview, specs: Any) -> Any:
        raise BackendUnavailable("there is no device", remedy="plug it in")

    monkeypatch.setattr(vector_backend.VectorRuntime, "init", absent)
    with pytest.raises(BackendUnavailable, match=r"there is no device .*vector_0.*plug it in"):
        verified(Chain(), (X,))


def test_bounds_of_the_request_change_those_of_the_configuration():
    exported = torch.export.export(nn.Linear(4, 4).eval(), (X,))
    config = {"backends": ["xnnpack"], "verify": {"sqnr_db": 300, "max_error": 1.0}}
    with pytest.raises(AccuracyError, match="300 dB"):
        delegate.to_backend(exported, config=config)
    with pytest.raises(AccuracyError, match="max error"):
        delegate.to_backend(exported, config=config, verify=delegate.Verify(sqnr_db=20, max_error=0.0))
    program = delegate.to_backend(exported, config=config, verify=delegate.Verify(sqnr_db=20))
    assert program.report.accuracy[0].figures.sqnr_db > 100
    with pytest.raises(AccuracyError, match="400 dB"):
        delegate.to_backend(exported, "xnnpack", verify=delegate.Verify((X,), sqnr_db=400))


@pytest.mark.parametrize("bounds", [{"top1": 2}, {"max_error": -1}, {"on_failure": "ignore"}, {"sqnr_db": "high"}])
def test_bounds_of_the_request_that_are_invalid(bounds):
    exported = torch.export.export(nn.Linear(4, 4).eval(), (X,))
    with pytest.raises(ConfigError, match=f"the bounds of Verify are invalid: .*{next(iter(bounds))}") as caught:
        delegate.to_backend(exported, [], verify=delegate.Verify((X,), **bounds))
    assert "pydantic" not in str(caught.value)


def test_a_plan_that_verification_would_break():
    exported = export(Chain(), (X,))
    plan = delegate.to_backend(exported, "vector").plan
    config = {"backends": ["vector"], "verify": {"sqnr_db": 100, "on_failure": "move"}}
    with pytest.raises(delegate.errors.PartitionError, match=r"the plan cannot be applied.*inaccurate"):
        delegate.to_backend(exported, config=config, placement=plan)
    kept = delegate.to_backend(exported, config=config).plan
    assert delegate.to_backend(exported, "vector", placement=kept).plan == kept
