"""The kit detects faults of a backend: one fault at a time, and the test that must fail."""

from __future__ import annotations

import ast
import ctypes
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import delegate_testing
import numpy as np
import pytest
import torch
from torch import nn

from delegate.backend import aot
from delegate.backend.aot import Backend, PreprocessResult
from delegate.edge.node import is_static
from delegate.errors import BackendFailed, LoweringError
from delegate.runtime.backend import BackendRuntime, Delegate
from delegate.testing import BackendTests, Case
from delegate.verdict import YES, Reason, Verdict, no
from tests.support.faulty import MODULE, Runtime, executes, registry  # noqa: F401 - a fixture among them


class Net(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(a + b, 0) * 2


class Add(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b + self.weight


NETS = {"net": Net(), "one partition": Add(), "a weight": Weighted()}


class Adder(Backend):
    name = "faulty"

    def check(self, node):
        if str(node.target) != "aten.add.Tensor":
            return no(Reason.OPERATOR, "it only adds")
        two = len(node.all_input_nodes) == 2 and not node.kwargs
        return YES if two else no(Reason.ATTRIBUTE, "it adds two tensors")

    def preprocess(self, region):
        return PreprocessResult(b"sum")


class Kit(BackendTests):
    __test__ = False
    backend = "faulty"
    cases: ClassVar = {name: Case(net, (torch.ones(2, 3), torch.full((2, 3), 0.5))) for name, net in NETS.items()}


def renames(self: Any, node: torch.fx.Node) -> Verdict:
    node.name = f"{node.name}_seen"
    return YES


def rescales(self: Any, region: aot.Region) -> PreprocessResult:
    for weight in region.constants.values():
        weight.data *= 2
    return PreprocessResult(b"sum")


def forces(inputs: Any, outputs: Any) -> None:
    """Write to an input although its view is read-only, as a library may that gets its address."""
    np.add(*inputs, out=outputs[0])
    ctypes.memset(inputs[0].ctypes.data, 1, 1)


def reshapes(inputs: Any, outputs: Any) -> None:
    outputs[0].shape = (-1,)
    np.add(*(i.reshape(-1) for i in inputs), out=outputs[0])


def keeps(choose: Callable[[Any, Any], Any], *, reads: bool = False) -> type[BackendRuntime]:
    """The runtime part of a backend whose delegates keep an array of the first call, and use it in later ones."""

    class Keeps(Delegate):
        kept: Any = None

        def execute(self, inputs, outputs):
            np.add(*inputs, out=outputs[0])
            if self.kept is None:
                self.kept = choose(inputs, outputs)
            elif reads:
                outputs[0][...] += self.kept
            else:
                self.kept[...] = 7

    return type("KeepsRuntime", (Runtime,), {"init": lambda self, blob, specs: Keeps()})


def refuse(reason: Reason) -> Callable[[Any, Any], Verdict]:
    """The check of a backend that refuses dynamic sizes for a reason."""

    def check(self: Any, node: torch.fx.Node) -> Verdict:
        verdict = Adder.check(self, node)
        return no(reason, "it has no size") if verdict and not is_static(node) else verdict

    return check


class Anything(aot.Options):
    model_config: ClassVar = {"extra": "allow"}


COUNTER = itertools.count()
REFUSAL = no(Reason.OPERATOR, "no")
ANSWERS, CHECKS, OUTPUTS = "answers_are_those_of_eager", "checks_answer_with_reasons", "all_outputs_are_filled"
KEPT, DYNAMIC = "calls_keep_no_arrays", "dynamic_sizes"
THREADS, SEVERAL = "contexts_and_threads", "several_at_a_time"
WEIGHTS = "weights_are_left_as_they_are"
FAULTS: dict[str, tuple[dict[str, Any], type[BackendRuntime], str, str]] = {
    "takes nothing": ({"check": lambda s, n: REFUSAL}, Runtime, "something_of_it_runs_there", "supports no node"),
    "takes what it cannot": ({"check": lambda s, n: YES}, Runtime, ANSWERS, ""),
    "refuses without a word": ({"check": lambda s, n: no(Reason.DTYPE)}, Runtime, CHECKS, "without a reason"),
    "changes its mind": (
        {"check": lambda s, n: YES if next(COUNTER) % 2 else REFUSAL}, Runtime, CHECKS, "gave different answers",
    ),
    "changes the graph": ({"check": renames}, Runtime, CHECKS, "changed the graph"),
    "rescales a weight": ({"preprocess": rescales}, Runtime, WEIGHTS, "changed a weight"),
    "takes any option": ({"Options": Anything}, Runtime, "its_options_have_a_schema", "unknown options"),
    "adds wrongly": ({}, executes(lambda i, o: np.copyto(o[0], i[0] - i[1])), ANSWERS, ""),
    "fills nothing": ({}, executes(lambda i, o: None), OUTPUTS, "not filled completely"),
    "fills a half": ({}, executes(lambda i, o: np.copyto(o[0][:1], i[0][:1])), OUTPUTS, "not filled completely"),
    "differs in every call": (
        {}, executes(lambda i, o: np.copyto(o[0], next(COUNTER))), THREADS, "in 4 threads, each with its context",
    ),
    "differs between programs": (
        {}, executes(lambda i, o: np.copyto(o[0], next(COUNTER))), SEVERAL, "two programs in two threads differ",
    ),
    "takes fixed sizes only, without saying so": (
        {"check": refuse(Reason.OPERATOR)}, Runtime, DYNAMIC, "aten.add.Tensor: unsupported operator: it has no size",
    ),
    "writes to inputs": ({}, executes(lambda i, o: np.copyto(i[0], 1)), OUTPUTS, "read-only"),
    "forces inputs": ({}, executes(forces), OUTPUTS, "a call changed an input"),
    "reshapes an output": ({}, executes(reshapes), ANSWERS, "changed the shape of an output from [2, 3] to [6]"),
    "writes to earlier outputs": ({}, keeps(lambda i, o: o[0]), KEPT, "read-only"),
    "writes to views of earlier outputs": ({}, keeps(lambda i, o: o[0].ravel()), KEPT, "outputs of an earlier call"),
    "reads earlier inputs": ({}, keeps(lambda i, o: i[0], reads=True), KEPT, "inputs of an earlier call"),
}  # fmt: skip


def run(name: str, aot_half: type, runtime: type) -> None:
    MODULE.Aot, MODULE.Runtime = aot_half, runtime
    test = getattr(Kit(), f"test_{name}")
    case = Kit.cases[{KEPT: "one partition", WEIGHTS: "a weight"}.get(name, "net")]
    test() if name == "its_options_have_a_schema" else test(case)


def test_fixed_sizes_are_reported():
    with pytest.raises(pytest.skip.Exception, match=r"only: aten\.add\.Tensor: dynamic shape: it has no size"):
        run(DYNAMIC, type("Fixed", (Adder,), {"check": refuse(Reason.DYNAMIC_SHAPE)}), Runtime)


def test_every_assertion_of_the_kit_has_words():
    for path in Path(delegate_testing.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assert):
                assert node.msg is not None, f"{path}:{node.lineno}"


@pytest.mark.parametrize("name", FAULTS)
def test_faults(name):
    attributes, runtime, test, words = FAULTS[name]
    run(test, Adder, Runtime)
    with pytest.raises((AssertionError, BackendFailed, LoweringError)) as caught:
        run(test, type("Faulty", (Adder,), attributes), runtime)
    assert words in str(caught.value)
