"""Backends of other people that do wrong: what they raise, answer or give is an error that names them and the place."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from torch import nn

import delegate
from delegate.backend.aot import Backend, PreprocessResult, RegionFailed, RegionRefused
from delegate.errors import BackendBroken, BackendFailed, ConfigError, LoweringError, PartitionError
from delegate.program.file import serialize
from delegate.runtime.backend import Delegate
from delegate.testing import assert_same
from delegate.verdict import YES, Reason, Verdict, no
from tests.support.faulty import MODULE, Runtime, Sum, executes, registry  # noqa: F401 - a fixture among them


class Net(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.tanh(torch.relu(a + b)) * 2


ONLY_ADDS = no(Reason.OPERATOR, "it\nonly adds")
ARGS = (torch.arange(6.0).reshape(2, 3) - 3, torch.full((2, 3), 0.5))
EXPECTED = Net()(*ARGS).numpy()


class Adder(Backend):
    name = "faulty"

    def check(self, node):
        return YES if str(node.target) == "aten.add.Tensor" else ONLY_ADDS

    def preprocess(self, region):
        return PreprocessResult(b"sum")


class Checks(Backend):
    name = "faulty"

    def check(self, node):
        return YES


def bang(*args: object) -> NoReturn:
    raise RuntimeError("bang\nin two lines")


def leave(*args: object) -> NoReturn:
    sys.exit(3)


def refuse(reasons: Any) -> Callable[[Any, Any], NoReturn]:
    def preprocess(self: Any, region: Any) -> NoReturn:
        raise RegionRefused(reasons)

    return preprocess


def fails(kind: type[Exception], text: str) -> Callable[[Any, Any], NoReturn]:
    def preprocess(self: Any, region: Any) -> NoReturn:
        raise kind(text)

    return preprocess


def circular() -> dict[str, Any]:
    made: dict[str, Any] = {}
    made["self"] = made
    return made


def gives(*args: Any) -> dict[str, Any]:
    """A half that compiles to what these arguments make."""
    return {"preprocess": lambda self, region: PreprocessResult(*args)}


def lowered(aot: type = Adder, runtime: type = Runtime, keep: bool = False) -> delegate.LoadedProgram:
    """A net on the backend, saved and loaded."""
    MODULE.Aot, MODULE.Runtime = aot, runtime
    config = {"backends": ["faulty"], "fallback": {"keep": keep}}
    program = delegate.to_backend(torch.export.export(Net(), ARGS), config=config)
    assert [p.nodes for p in program.report.partitions] in ([], [("add",)])
    assert "it only adds" in str(program.report)
    return delegate.load(serialize(program.program))


def run(program: delegate.LoadedProgram) -> np.ndarray:
    with program:
        result: np.ndarray = program(*(a.numpy().copy() for a in ARGS))
    return result


def test_without_a_fault():
    assert_same(run(lowered()), EXPECTED)


AOT_FAULTS = {
    "check gives True": ({"check": lambda s, n: True}, PartitionError, "backend faulty returned True (node add"),
    "check gives None": ({"check": lambda s, n: None}, PartitionError, "backend faulty returned None"),
    "check raises": ({"check": bang}, PartitionError, "RuntimeError: bang in two lines (node add"),
    "check exits": ({"check": leave}, PartitionError, "failed with SystemExit: 3 (node add"),
    "reason": ({"check": lambda s, n: Verdict("why")}, PartitionError, "Verdict.reason should be a Reason"),  # type: ignore[arg-type]
    "message": ({"check": lambda s, n: no(Reason.DTYPE, 17)}, PartitionError, "Verdict.message should be text"),  # type: ignore[arg-type]
    "tag": ({"check": lambda s, n: Verdict(tag=["a"])}, PartitionError, "Verdict.tag should be text"),  # type: ignore[arg-type]
    "compiles to None": ({"preprocess": lambda s, r: None}, LoweringError, "to a NoneType, not a PreprocessResult"),
    "compiles to bytes": ({"preprocess": lambda s, r: b""}, LoweringError, "to a bytes, not a PreprocessResult"),
    "compiler raises": ({"preprocess": bang}, LoweringError, "backend faulty failed to compile a partition"),
    "compiler exits": ({"preprocess": leave}, LoweringError, "SystemExit: 3 (faulty_0)"),
    "compiler raises ours": (
        {"preprocess": fails(LoweringError, "no licence")}, LoweringError, "no licence (partition faulty_0 of faulty)",
    ),
    "blob": (gives("text"), LoweringError, "PreprocessResult.blob should be bytes, not 'text' (faulty_0)"),
    "specs of None": (gives(b"", None), LoweringError, "compile_specs should be a mapping"),
    "specs of a list": (gives(b"", [1]), LoweringError, "compile_specs should be a mapping"),
    "specs with a number of NumPy": (gives(b"", {"a": np.int64(3)}), LoweringError, "should be plain JSON"),
    "specs with NaN": (gives(b"", {"a": float("nan")}), LoweringError, "compile_specs should be plain JSON"),
    "specs in a circle": (gives(b"", circular()), LoweringError, "compile_specs should be plain JSON"),
    "notes as text": (gives(b"", {}, "three"), LoweringError, "notes should be a tuple of text values"),
    "notes of numbers": (gives(b"", {}, (1,)), LoweringError, "notes should be a tuple of text values"),
    "space": (gives(b"", {}, (), 5), LoweringError, "PreprocessResult.space should be text, not 5"),
    "refuses nothing": ({"preprocess": refuse({})}, LoweringError, "reasons should be a mapping of names"),
    "refuses others": ({"preprocess": refuse({"x": "no"})}, LoweringError, "but no node of it: x: no"),
    "refuses with numbers": ({"preprocess": refuse({"add": 3})}, LoweringError, "reasons should be a mapping"),
    "cannot be made": ({"__init__": bang}, BackendBroken, "'faulty' fails when it is created: RuntimeError"),
    "keeps None": ({"preserve_ops": None}, BackendBroken, "fails when it is created: TypeError"),
    "keeps a text": ({"preserve_ops": "aten.gelu.default"}, BackendBroken, "preserve_ops should be a set of names"),
    "keeps operators": (
        {"preserve_ops": {torch.ops.aten.gelu.default}}, BackendBroken, "preserve_ops should be a set of names",
    ),
    "no options": ({"Options": None}, ConfigError, "backend 'faulty' of this process is broken: it provides"),
    "other options": ({"Options": dict}, ConfigError, "Options is not a subclass of delegate.backend.aot.Options"),
    "no name": ({"name": None}, ConfigError, "whose name is None"),
    "another name": ({"name": "other"}, ConfigError, "whose name is 'other'"),
}  # fmt: skip


@pytest.mark.parametrize("name", AOT_FAULTS)
def test_ahead_of_time(name):
    attributes, kind, words = AOT_FAULTS[name]
    with pytest.raises(kind) as caught:
        lowered(type("Faulty", (Adder,), attributes))
    assert words in str(caught.value)
    assert "faulty" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_half_of_a_half():
    with pytest.raises(ConfigError, match="Aot, which has no preprocess"):
        lowered(Checks)


def turns(self: Any, region: Any) -> PreprocessResult:
    for node in region.calls:
        node.name, node.args, node.meta = f"acme_{node.name}", node.args[::-1], {}
    raise RegionFailed("it cannot be compiled")


def test_a_compiler_rewrites_a_graph_of_its_own():
    """The kernels run the partition as it was before."""
    assert_same(run(lowered(type("Faulty", (Adder,), {"preprocess": turns}))), EXPECTED)


class Scaled(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b * (a.shape[0] * 0.5)


def rows_are_few(self: Any, node: torch.fx.Node) -> Verdict:
    return Adder.check(self, node) if node.meta["val"].shape[0] < 5 else no(Reason.SIZE, "too many rows")


def counts_rows(self: Any, region: Any) -> PreprocessResult:
    return PreprocessResult(b"sum", {"rows": int(region.outputs[0].meta["val"].shape[0])})


@pytest.mark.parametrize(
    ("attributes", "asked"),
    [({"check": rows_are_few}, r"s\d+ < 5 == True"), ({"preprocess": counts_rows}, r"s\d+ == 2")],
    ids=["check", "compiler"],
)
def test_nobody_goes_by_sizes_of_the_export(attributes, asked, caplog):
    MODULE.Aot, MODULE.Runtime = type("Faulty", (Adder,), attributes), Runtime
    exported = torch.export.export(Scaled(), ARGS, dynamic_shapes=({0: torch.export.Dim("n", max=9)},) * 2)
    program = delegate.to_backend(exported, "faulty")
    found = {n.op: n for n in program.report.nodes}["aten.add.Tensor"].verdicts["faulty"]
    assert re.fullmatch(f"faulty decides by the sizes of the export: {asked}", found.message)
    given = torch.rand(7, 3), torch.rand(7, 3)
    assert_same(program(*given), Scaled()(*given))
    assert not [r for r in caplog.records if r.levelname == "WARNING"]


class Chosen(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        rows = b[:, 0] > 0.5
        return a[rows] + b[rows]


@pytest.mark.parametrize(
    ("attributes", "asked"),
    [({"check": rows_are_few}, r"u\d+ < 5"), ({"preprocess": counts_rows}, r"u\d+")],
    ids=["check", "compiler"],
)
def test_nobody_goes_by_sizes_that_depend_on_data(attributes, asked, caplog):
    MODULE.Aot, MODULE.Runtime = type("Faulty", (Adder,), attributes), Runtime
    exported = torch.export.export(Chosen(), ARGS, dynamic_shapes=({0: torch.export.Dim("n", max=9)},) * 2)
    program = delegate.to_backend(exported, "faulty")
    found = {n.op: n for n in program.report.nodes}["aten.add.Tensor"].verdicts["faulty"]
    assert re.fullmatch(f"faulty decides by a size that depends on data: {asked}", found.message)
    given = torch.rand(2, 3), torch.tensor([[0.0, 1, 2], [1, 2, 3]])
    assert_same(program(*given), Chosen()(*given))
    assert not [r for r in caplog.records if r.levelname == "WARNING"]


def test_specs_are_the_same_before_and_after_saving():
    seen: list[Any] = []
    runtime = type("Seeing", (Runtime,), {"init": lambda s, blob, specs: (seen.append(dict(specs)), Sum())[1]})
    run(lowered(type("Given", (Adder,), gives(b"", {"a": (1, 2), 3: "b"})), runtime))
    assert seen == [{"a": [1, 2], "3": "b"}]


def rebind(inputs: Any, outputs: Any) -> None:
    outputs[0] = inputs[0] + inputs[1]


RUNTIME_FAULTS = {
    "cannot be made": (type("R", (Runtime,), {"__init__": bang}), "RuntimeError: bang in two lines"),
    "init gives None": (type("R", (Runtime,), {"init": lambda *args: None}), "its init() returned a NoneType"),
    "init raises": (type("R", (Runtime,), {"init": bang}), "RuntimeError: bang in two lines"),
    "init exits": (type("R", (Runtime,), {"init": leave}), "SystemExit: 3"),
    "runs_code raises": (type("R", (Runtime,), {"runs_code": bang}), "RuntimeError: bang in two lines"),
    "raises": (executes(bang), "RuntimeError: bang in two lines"),
    "exits": (executes(leave), "SystemExit: 3"),
    "wrong shape": (executes(lambda i, o: np.copyto(o[0], np.ones((5, 7)))), "could not broadcast"),
    "one output too many": (executes(lambda i, o: np.copyto(o[1], 1)), "IndexError"),
    "gives its results": (executes(lambda i, o: [i[0] + i[1]]), "its execute() must fill `outputs` and return None"),
    "rebinds its outputs": (executes(rebind), "does not support item assignment"),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNTIME_FAULTS)
def test_at_run_time(name):
    runtime, words = RUNTIME_FAULTS[name]
    with pytest.raises(BackendFailed) as caught:
        run(lowered(runtime=runtime))
    assert words in str(caught.value)
    where = r"\(partition faulty_0 of faulty( in method forward)?\)"
    assert re.search(f"{where}: report it to the backend's author", str(caught.value))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [name for name in RUNTIME_FAULTS if name != "runs_code raises"])
def test_fallbacks_answer_instead(name):
    runtime, words = RUNTIME_FAULTS[name]
    with pytest.warns(RuntimeWarning, match="faulty_0 runs on portable kernels") as caught:
        result = run(lowered(runtime=runtime, keep=True))
    assert words in str(caught[0].message)
    assert_same(result, EXPECTED)


def test_all_are_closed_though_one_fails():
    closed: list[str] = []

    def close(self: Any) -> None:
        closed.append("closed")
        bang()

    made = type("Faulty", (Sum,), {"close": close})
    runtime = type("R", (Runtime,), {"init": lambda self, blob, specs: made()})
    MODULE.Aot, MODULE.Runtime = Adder, runtime
    methods = {name: torch.export.export(Net(), ARGS) for name in ("one", "two")}
    program = delegate.load(serialize(delegate.to_backend(methods, "faulty").program))
    with pytest.raises(BackendFailed, match=r"not be closed: RuntimeError: bang in two lines \(partition faulty_0"):
        program.close()
    assert closed == ["closed"] * 2
    program.close()  # nothing is left to close


class Doubling(Delegate):
    def execute(self, inputs, outputs):
        np.add(*inputs, out=outputs[0]) if len(inputs) > 1 else np.maximum(inputs[0], 0, out=outputs[0])


SPACES = {
    "bytes": (lambda self, space, size: bytearray(size), "its allocate() returned a bytearray, not a DeviceMemory"),
    "raises": (bang, "RuntimeError: bang in two lines"),
    "exits": (leave, "SystemExit: 3"),
}


@pytest.mark.parametrize("keep", [False, True], ids=["alone", "with fallbacks"])
@pytest.mark.parametrize("name", SPACES)
def test_memory_of_devices(name, keep):
    allocate, words = SPACES[name]
    taken = ("aten.add.Tensor", "aten.relu.default")
    aot = type(
        "Tagging", (Adder,),
        {
            "check": lambda s, n: Verdict(tag=n.name) if str(n.target) in taken else ONLY_ADDS,
            **gives(b"", {}, (), "memory"),
        },
    )  # fmt: skip
    MODULE.Aot = aot
    MODULE.Runtime = type("R", (Runtime,), {"allocate": allocate, "init": lambda self, blob, specs: Doubling()})
    config = {"backends": ["faulty"], "fallback": {"keep": keep, "policy": "allow"}}
    data = serialize(delegate.to_backend(torch.export.export(Net(), ARGS), config=config).program)
    if not keep:
        with pytest.raises(BackendFailed) as caught:
            run(delegate.load(data))
        assert words in str(caught.value)
        assert "partition faulty_0 of faulty" in str(caught.value)
        return
    program = delegate.load(data)
    assert_same(run(program), EXPECTED)
    assert [(e.when, words in e.reason) for e in program.fallback_events] == [("memory", True)]
