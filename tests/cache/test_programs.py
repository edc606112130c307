"""Whole programs in the cache: one is taken where all that it depends on is the same, and it is then the same."""

from __future__ import annotations

import copy
import inspect
import itertools
import json
import logging
import warnings
from collections.abc import Callable
from dataclasses import fields, make_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
import pytest
import torch
from torch import nn
from torch.export import Dim, ExportedProgram

import delegate
from delegate import KernelTable
from delegate.cache.aot.programs import request_key
from delegate.config import Fallback
from delegate.edge.keys import NotCacheable, key_of_exported
from delegate.partitioner.partitioner import CapabilityPartitioner
from delegate.registry import default_registry
from delegate.request import LoweringRequest
from delegate.selection import open_artifact_cache, select
from tests.support.lowering import assert_runs, assert_same


class Net(nn.Module):
    """A layer with a buffer that it may write to, and a body of control flow."""

    def __init__(self, function: Callable[..., Any] = torch.relu, *, seed: int = 0, writes: bool = False) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.linear, self.function, self.writes = nn.Linear(4, 4), function, writes
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.writes:
            self.seen.add_(x.sum(0))
        return self.linear(self.function(x)) + self.seen


class Outer(nn.Module):
    """A module around another, whose nodes have another path."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def chosen(x: torch.Tensor, add: float = 1.0) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: x + add, lambda x: x * 2, (x,))


def exported(
    module: nn.Module | Callable[..., Any] = torch.relu, *, rows: int = 3, dtype=torch.float32, batch=None, **options
) -> ExportedProgram:
    made = module if isinstance(module, nn.Module) else Net(module, **options)
    shapes = ({0: batch},) if batch else None
    x = torch.linspace(-1, 1, rows * 4, dtype=dtype).reshape(rows, 4)
    return torch.export.export(made.to(dtype).eval(), (x,), dynamic_shapes=shapes)


def changed(change: Callable[[ExportedProgram], object]) -> ExportedProgram:
    made = exported()
    change(made)
    return made


def first(ep: ExportedProgram, op: str) -> torch.fx.Node:
    return next(n for n in ep.graph.nodes if op in str(n.target))


def strided(ep: ExportedProgram) -> None:
    ep.state_dict["linear.weight"] = nn.Parameter(ep.state_dict["linear.weight"].t().contiguous().t())


def sharing(ep: ExportedProgram) -> None:
    """Two buffers in one memory, with the content that they had in memory of their own."""
    both = torch.zeros(4)
    ep._state_dict["seen"] = both
    ep._state_dict["linear.bias"] = both


def apart(ep: ExportedProgram) -> None:
    ep._state_dict["seen"], ep._state_dict["linear.bias"] = torch.zeros(4), torch.zeros(4)


def in_args(x):
    return torch.relu(x)


MODELS: dict[str, Callable[[], ExportedProgram]] = {
    "as it is": exported,
    "weights": lambda: exported(seed=1),
    "one bit of a weight": lambda: changed(
        lambda ep: ep.state_dict["linear.weight"].data.view(torch.int32)[0, 0].bitwise_xor_(1)
    ),
    "strides of a weight": lambda: changed(strided),
    "memory of their own": lambda: changed(apart),
    "memory that is shared": lambda: changed(sharing),
    "rows": lambda: exported(rows=5),
    "dtype": lambda: exported(dtype=torch.float64),
    "an operator": lambda: exported(torch.tanh),
    "a number": lambda: exported(lambda x: x + 1),
    "another number": lambda: exported(lambda x: x + 2),
    "a float": lambda: exported(lambda x: x + 1.0),
    "a flag": lambda: exported(lambda x: torch.nn.functional.gelu(x, approximate="tanh")),
    "without the flag": lambda: exported(torch.nn.functional.gelu),
    "a line": lambda: changed(
        lambda ep: first(ep, "relu").meta.__setitem__("stack_trace", '  File "m.py", line 3, in f')
    ),
    "a module around it": lambda: exported(Outer()),
    "a state": lambda: exported(writes=True),
    "control flow": lambda: exported(chosen),
    "another body": lambda: exported(lambda x: chosen(x, 2.0)),
    "dynamic": lambda: exported(batch=Dim("batch", max=64)),
    "another name of a size": lambda: exported(batch=Dim("rows", max=64)),
    "another range": lambda: exported(batch=Dim("batch", max=32)),
    "another example": lambda: exported(batch=Dim("batch", max=64), rows=5),
    "a guard": lambda: changed(lambda ep: ep._guards_code.append("L['x'].size()[0] == 3")),
    "a name of an input": lambda: changed(
        lambda ep: ep.module_call_graph[0].signature.forward_arg_names.__setitem__(0, "y")
    ),
    "metadata": lambda: changed(lambda ep: first(ep, "relu").meta.__setitem__("custom", {"quant": 1})),
    "other metadata": lambda: changed(lambda ep: first(ep, "relu").meta.__setitem__("custom", {"quant": True})),
    "the name of a node": lambda: changed(lambda ep: setattr(first(ep, "relu"), "name", "other")),
    "the order of a sum": lambda: changed(lambda ep: setattr(first(ep, "add"), "args", first(ep, "add").args[::-1])),
    "the shape of a value": lambda: changed(
        lambda ep: first(ep, "relu").meta.__setitem__("val", first(ep, "relu").meta["val"].new_empty(3, 5))
    ),
    "a result twice": lambda: exported(lambda x: x * 1),
}


@pytest.mark.extended
def test_every_part_of_a_model_counts() -> None:
    keys = {name: key_of_exported({"forward": make()}) for name, make in MODELS.items()}
    alike = [(a, b) for a, b in itertools.combinations(MODELS, 2) if keys[a] == keys[b]]
    assert alike == []
    assert {
        name: key_of_exported({"forward": make()}) for name, make in MODELS.items()
    } == keys  # and nothing else does


def test_methods_count_with_names_and_order() -> None:
    one, two = exported(), exported(torch.tanh)
    alike = [
        {"a": one},
        {"b": one},
        {"a": one, "b": two},
        {"b": two, "a": one},
        {"a": two, "b": one},
        {"a": one, "b": one},
    ]
    assert len({key_of_exported(methods) for methods in alike}) == len(alike)


def altered(argument: Any) -> Any:
    """Something else of the same kind as a leaf of the arguments."""
    if isinstance(argument, torch.fx.Node | None):
        return 7
    return not argument if isinstance(argument, bool) else f"{argument}x" if isinstance(argument, str) else argument + 1


class Many(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = torch.nn.functional.avg_pool2d(x, 2, 1, count_include_pad=False).permute(0, 2, 3, 1)
        return {
            "a": torch.addcmul(y, y, y, value=0.5)[:, 1:, ..., None],
            "b": torch.cat([y.sum([1, 2]), y.amax((1, 2))]),
        }


def test_every_argument_of_every_node_counts() -> None:
    ep = torch.export.export(Many(), (torch.ones(1, 2, 5, 5),))
    keys = [key_of_exported({"forward": ep})]
    for node in (n for n in ep.graph.nodes if n.op == "call_function"):
        given = node.args
        for position, argument in enumerate(given):
            others = (
                [altered(argument)]
                if not isinstance(argument, list)
                else [[*argument[:i], altered(item), *argument[i + 1 :]] for i, item in enumerate(argument)]
            )
            for other in others:
                node.args = (*given[:position], other, *given[position + 1 :])
                keys.append(key_of_exported({"forward": ep}))
        node.args, node.kwargs = given, {**node.kwargs, "more": True}
        keys.append(key_of_exported({"forward": ep}))
        node.kwargs = {name: value for name, value in node.kwargs.items() if name != "more"}
    assert len(set(keys)) == len(keys) > 30


@torch.library.custom_op("delegate_cache_tests::own", mutates_args=())
def own(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


own.register_fake(torch.empty_like)


class Odd(torch.Tensor):
    pass


UNTOLD = {
    "an operator of others": lambda: exported(own),
    "a subclass of Tensor": lambda: changed(
        lambda ep: ep.state_dict.__setitem__("linear.weight", ep.state_dict["linear.weight"].data.as_subclass(Odd))
    ),
    "a sparse constant": lambda: changed(lambda ep: ep._state_dict.__setitem__("seen", torch.zeros(4).to_sparse())),
    "an object": lambda: changed(lambda ep: first(ep, "relu").update_arg(0, object())),
    "a function of others": lambda: changed(lambda ep: setattr(first(ep, "relu"), "target", in_args)),
    "metadata that is an object": lambda: changed(lambda ep: first(ep, "relu").meta.__setitem__("custom", object())),
}


@pytest.mark.parametrize("name", UNTOLD)
def test_what_nobody_can_tell_has_no_key(name: str) -> None:
    with pytest.raises(NotCacheable):
        key_of_exported({"forward": UNTOLD[name]()})


# -- what is asked for -------------------------------------------------------------------------------------------------


def key_of(
    backends: Any = "xnnpack",
    *,
    kernels: Any = None,
    plan: Any = None,
    cache: bool | None = None,
    model: ExportedProgram | None = None,
    **config: Any,
) -> str | None:
    if config or isinstance(backends, list):
        config["backends"], backends = backends if isinstance(backends, list) else [backends], None
    request = LoweringRequest.of(
        {"forward": exported() if model is None else model},
        backends,
        config or None,
        kernels=kernels,
        placement=plan or delegate.ByPreference(),
        cache=cache,
    )
    artifacts = open_artifact_cache(request.selection, request.registry, cache)
    return None if artifacts is None else request_key(request, artifacts)


REQUESTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "no backend": {"backends": []},
    "an option": {"backends": [{"name": "xnnpack", "options": {"threads": 3}}]},
    "an instance": {"backends": [{"name": "xnnpack:small"}]},
    "two": {"backends": ["xnnpack", "xnnpack:small"]},
    "the other order": {"backends": ["xnnpack:small", "xnnpack"]},
    "include": {"backends": [{"name": "xnnpack", "include": ["aten.relu*"]}]},
    "exclude": {"partitioning": {"exclude": ["aten.relu*"]}},
    "size": {"partitioning": {"min_partition_size": 3}},
    "pins": {"partitioning": {"pins": {"linear": "portable"}}},
    "node pins": {"partitioning": {"node_pins": {"relu": "portable"}}},
    "policy": {"policy": {"portable": "error"}},
    "warns": {"policy": {"portable": "warn"}},
    "fallback": {"fallback": {"keep": True}},
    "fallback policy": {"fallback": {"policy": "error"}},
    "kernels": {"kernels": ["aten"]},
    "kernels in order": {"kernels": ["portable", "aten"]},
}


def test_all_that_is_asked_for_counts(folder: Path) -> None:
    keys = {name: key_of(**copy.deepcopy(request)) for name, request in REQUESTS.items()}
    assert None not in keys.values()
    assert len(set(keys.values())) == len(REQUESTS)
    plan = delegate.to_backend(exported(), "xnnpack").plan
    assert key_of(plan=plan) not in keys.values()
    assert {name: key_of(**copy.deepcopy(request)) for name, request in REQUESTS.items()} == keys


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("delegate.cache.aot.programs.host_features", lambda: "another machine"),
        ("delegate.cache.aot.programs.code_of", lambda package: f"other code of {package}"),
        ("delegate.cache.aot.programs.versions_of", lambda distribution: ("torch 0",)),
        ("sys.version", "3.99"),
        ("delegate.kernels.libraries.InstalledKernels.identity", lambda kernels, wanted: ("others",)),
    ],
)
def test_code_versions_and_the_machine_count(
    folder: Path, monkeypatch: pytest.MonkeyPatch, place: str, value: object
) -> None:
    before = key_of([])
    monkeypatch.setattr(place, value)
    assert key_of([]) != before


def test_settings_of_torch_count(folder: Path) -> None:
    model = exported()
    keys = [key_of(model=model)]
    torch.set_default_dtype(torch.float64)
    keys.append(key_of(model=model))
    torch.set_default_dtype(torch.float32)
    with torch.device("meta"):
        keys.append(key_of(model=model))
    with torch.autocast("cpu"):
        keys.append(key_of(model=model))
    torch.use_deterministic_algorithms(True)
    keys.append(key_of(model=model))
    torch.use_deterministic_algorithms(False)
    assert len(set(keys)) == len(keys)
    assert key_of(model=model) == keys[0]


@pytest.mark.parametrize("record", ["request", "selection", "config"])
def test_a_new_field_counts(folder: Path, record: str) -> None:
    """Whoever adds a field to what is requested need not think of the cache."""
    request = LoweringRequest.of({"forward": exported()}, "xnnpack", placement=delegate.ByPreference())
    artifacts = open_artifact_cache(request.selection, request.registry)
    assert artifacts is not None

    def key(value: int) -> str | None:
        if record == "request":
            return request_key(widen(request, value), artifacts)
        selection = request.selection
        if record == "selection":
            return request_key(replace(request, selection=widen(selection, value)), artifacts)
        section = pydantic.create_model("Fallback", __base__=Fallback, new=(int, 0))(new=value)
        return request_key(replace(request, selection=replace(selection, fallback=section)), artifacts)

    assert None is not key(1) != key(2)
    assert key(1) == key(1)


def widen(record: Any, value: int) -> Any:
    """Return a copy of a dataclass with another field."""
    wider = make_dataclass("Wider", [("new", int)], bases=(type(record),), frozen=True, kw_only=True)
    return wider(**{field.name: getattr(record, field.name) for field in fields(record)}, new=value)


def test_arguments_without_influence_do_not_count(folder: Path) -> None:
    arguments = {"model", "backends", "config", "kernels", "placement", "verify"}
    assert set(inspect.signature(delegate.to_backend).parameters) == arguments | {"cache", "progress"}
    assert key_of(cache=True) == key_of()


class Own(CapabilityPartitioner):
    """A partitioner of the caller's own."""


@pytest.mark.parametrize(
    "request_",
    [
        {"backends": Own("xnnpack")},
        {"kernels": KernelTable("own")},
        {"kernels": [KernelTable("own"), "portable"]},
        {"verify": {}},
        {"quantization": {"scheme": "static_int8"}},
        {"backends": [{"name": "xnnpack", "isolate": "compile"}]},
        {"cache": False},
    ],
)
def test_what_may_differ_another_time_is_not_kept(folder: Path, request_: dict[str, Any]) -> None:
    assert key_of(**request_) is None


# -- what is taken -----------------------------------------------------------------------------------------------------


@pytest.fixture
def taken(folder: Path, caplog: pytest.LogCaptureFixture) -> Callable[..., tuple[delegate.CompiledProgram, bool]]:
    """Lowers, and says whether the whole program was taken from the cache."""
    caplog.set_level(logging.INFO, "delegate.cache.aot.programs")

    def lower(*args: Any, **kwargs: Any) -> tuple[delegate.CompiledProgram, bool]:
        caplog.clear()
        program = delegate.to_backend(*args, **kwargs)
        return program, any("the program is taken" in record.message for record in caplog.records)

    return lower


WHOLE: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "a partition": (exported, {"backends": "xnnpack"}),
    "kernels alone": (exported, {"backends": []}),
    "partitions and kernels": (
        lambda: exported(lambda x: torch.erfinv(x) * 2),
        {"config": {"backends": ["xnnpack"], "fallback": {"keep": True}}},
    ),
    "a state": (lambda: exported(writes=True), {"backends": "xnnpack"}),
    "control flow": (lambda: exported(chosen), {"backends": "xnnpack"}),
    "dynamic": (lambda: exported(batch=Dim("batch", max=64)), {"backends": "xnnpack"}),
    "methods": (lambda: {"a": exported(), "b": exported(rows=5)}, {"backends": "xnnpack"}),
    "half": (lambda: exported(dtype=torch.float16), {"backends": "xnnpack", "kernels": ["aten"]}),
    "several results": (lambda: torch.export.export(Many(), (torch.ones(1, 2, 5, 5),)), {"backends": "xnnpack"}),
}


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_taken_is_the_same(
    taken: Callable[..., tuple[delegate.CompiledProgram, bool]], tmp_path: Path, name: str
) -> None:
    make, how = WHOLE[name]
    model = make()
    made = [taken(model, **how), taken(make(), **how), (delegate.to_backend(model, **how, cache=False), False)]
    assert [found for _, found in made] == [False, True, False]
    texts = []
    for number, (program, _) in enumerate(made):
        program.save(tmp_path / str(number))
        texts.append((tmp_path / str(number)).read_bytes())
        assert program.report == made[0][0].report
        assert program.plan == made[0][0].plan
    assert texts[0] == texts[1] == texts[2]
    for segment in made[1][0].program.segments:
        assert memoryview(segment).nbytes == 0 or np.frombuffer(segment, np.uint8).ctypes.data % 64 == 0
    for method, ep in (model if isinstance(model, dict) else {"forward": model}).items():
        results = [program.method(method)(*ep.example_inputs[0]) for program, _ in made]
        assert_same(results[1], results[0], tolerance=0)
        assert_same(results[1], ep.module()(*ep.example_inputs[0]), 0.002)


def test_a_plan_counts(taken: Callable[..., tuple[delegate.CompiledProgram, bool]]) -> None:
    ep = exported()
    config = {"backends": ["xnnpack"], "partitioning": {"exclude": ["aten.relu*"]}}
    plan = delegate.to_backend(ep, config=config).plan
    for found in (False, True):
        program, hit = taken(ep, "xnnpack", placement=plan)
        assert hit is found
        assert program.plan == plan


def test_measuring_takes_and_keeps_nothing(taken: Callable[..., tuple[delegate.CompiledProgram, bool]]) -> None:
    ep = exported()
    assert not taken(ep, "xnnpack")[1]
    program, hit = taken(ep, "xnnpack", verify=ep.example_inputs[0])
    assert not hit
    assert program.report.accuracy
    program, hit = taken(ep, "xnnpack")
    assert hit
    assert not program.report.accuracy
    assert not taken(ep, "xnnpack", verify=delegate.Verify(reference=ep))[1]


def warned(lower: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lower()
    assert not [w for w in caught if w.filename != __file__ and "training mode" not in str(w.message)]
    return sorted(str(w.message) for w in caught)


def test_warnings_are_given_again(taken: Callable[..., tuple[delegate.CompiledProgram, bool]]) -> None:
    ep = torch.export.export(
        Net(lambda x: torch.nn.functional.dropout(x.sin() if x.shape[0] > 2 else x)), (torch.ones(3, 4),)
    )
    ep._guards_code.append("L['x'].data_ptr() % 64 == 0")
    config = {"backends": ["xnnpack"], "policy": {"portable": "warn"}}
    hits: list[bool] = []
    first, second = (warned(lambda: hits.append(taken(ep, config=config)[1])) for _ in range(2))
    assert hits == [False, True]
    assert first == second
    assert [any(words in text for text in first) for words in ("training mode", "data_ptr", "portable kernels")] == [
        True
    ] * 3


def test_an_entry_without_its_blobs_is_a_miss(
    taken: Callable[..., tuple[delegate.CompiledProgram, bool]], folder: Path
) -> None:
    ep = exported()
    config = {"backends": ["xnnpack"], "partitioning": {"exclude": ["aten.relu*"]}}
    taken(ep, config=config)
    for damage in ("remove", "alter", "cut"):
        assert taken(ep, config=config)[1]
        for file in sorted((folder / "artifacts").iterdir(), key=lambda file: file.stat().st_size)[:1]:
            data = file.read_bytes()
            if damage == "remove":
                file.unlink()
            else:
                file.write_bytes(data[:-1] + b"?" if damage == "alter" else data[: len(data) // 2])
        program, hit = taken(ep, config=config)
        assert not hit
        assert_runs(program, "xnnpack", {"aten.relu.default": 1})
        assert_same(program(*ep.example_inputs[0]), ep.module()(*ep.example_inputs[0]))


def test_blobs_of_another_compilation_are_not_mixed_in(
    taken: Callable[..., tuple[delegate.CompiledProgram, bool]], folder: Path
) -> None:
    """The entry of an artifact may have been made anew since, by a compiler that is not the same to the last bit."""
    ep = exported()
    delegate.to_backend(ep, "xnnpack")
    artifacts = open_artifact_cache(select("xnnpack", None, default_registry()), default_registry())
    assert artifacts is not None
    (key,) = [
        entry["key"]
        for entry in (headers(file) for file in (folder / "artifacts").iterdir())
        if "compile_specs" in entry["about"]
    ]
    kept = artifacts.store.get(key)
    assert kept is not None
    artifacts.store.put(key, kept.about, [bytes(part) + b"more" for part in kept.parts])
    assert not taken(ep, "xnnpack")[1]


def headers(file: Path) -> dict[str, Any]:
    data = file.read_bytes()
    size = int.from_bytes(data[40:48], "little")
    found: dict[str, Any] = json.loads(data[48 : 48 + size])
    return found
