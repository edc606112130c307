"""Compare results of programs with torch on sample calls, so that no fast but wrong plan is chosen."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram

from delegate.accuracy.figures import Differences
from delegate.accuracy.reference import EagerMethods, copies, tensors
from delegate.accuracy.samples import Sample, example_samples, samples_of
from delegate.compiled import to_array, to_tensor
from delegate.config import PlacementSection
from delegate.edge.program import EdgeProgram
from delegate.edge.signature import buffers_of_states
from delegate.edge.torch_private import pytree
from delegate.emit.method import emit_inputs
from delegate.errors import AccuracyError, ConfigError, InputError
from delegate.lowering.compiler import Compiler
from delegate.placement.runtime.accuracy_check import list_compared_inputs, lowest_sqnr_db, read_results
from delegate.placement.runtime.trials import ProgramRunner
from delegate.program.expr import Expr
from delegate.program.model import MethodDefinition, Program, Ref
from delegate.runtime.arguments import leaves_of
from delegate.runtime.inputs import InputChecker

MAX_SAMPLES = 8  # to compare


class ReferenceComparator:
    """A comparison of one method's programs with torch.

    Args:
        ep: the reference: the method itself, or the float program that it was quantized from.
        edge: the same in edge dialect.
        samples: calls of it.
        bound: the least SQNR in dB; None: the bound for the program's own precision.
        is_random: True if the method draws random numbers, so that results cannot be compared.
    """

    def __init__(
        self, ep: ExportedProgram, edge: EdgeProgram, samples: Sequence[Sample], bound: float | None, *, is_random: bool
    ) -> None:
        self._ep, self._edge, self.bound, self.is_random = ep, edge, bound, is_random
        self.calls = self.leaves(samples)
        self._expected: list[list[torch.Tensor]] | None = None

    @staticmethod
    def leaves(samples: Sequence[Sample]) -> list[list[Any]]:
        """Return the flat arguments of the compared calls."""
        return [pytree.tree_flatten((s.args, dict(s.kwargs)))[0] for s in samples[:MAX_SAMPLES]]

    def expected(self, program: Program) -> list[list[torch.Tensor]]:
        """Return torch's results for the calls: outputs, then the written inputs, then the states by name.

        Each call starts with the initial states.

        Args:
            program: any program of the method, for the written inputs.

        Raises:
            AccuracyError: torch cannot run the reference, or it has other outputs or states than the program.
        """
        if self._expected is None:
            self._expected = self._run(list_compared_inputs(program, self._edge.name))
            self._require_as_many(program, len(self._expected[0]))
        return self._expected

    def _require_as_many(self, program: Program, expected: int) -> None:
        """Raise AccuracyError if the reference has another number of results than a program."""
        name = self._edge.name
        outputs = next(m for m in program.methods if m.name == name).outputs
        count = sum(isinstance(output, Ref | Expr | bool | int | float) for output in outputs)
        count += len(list_compared_inputs(program, name)) + len(program.states)
        if count != expected:
            what = f"the program returns {count} results, with written inputs and states, but its reference {expected}"
            remedy = "give the model that the program was lowered from, or leave accuracy out"
            raise AccuracyError(what, where=f"method {name}", remedy=remedy)

    def _run(self, written: Sequence[int]) -> list[list[torch.Tensor]]:
        name = self._edge.name
        eager = EagerMethods({name: self._ep}, {name: buffers_of_states(self._edge)})
        start = dict(eager.states)
        expected = []
        for call in self.calls:
            eager.states = {state: value.clone() for state, value in start.items()}
            arguments = copies(call)
            results = eager.run(name, arguments)
            results += [arguments[number] for number in written]
            expected.append(results + [eager.states[state] for state in sorted(eager.names(name))])
        return expected

    def sqnr_db(self, name: str, runner: ProgramRunner, program: Program) -> float:
        """Return the SQNR of a program's results; raises TrialFailed."""
        differences = Differences()
        for call, expected in zip(self.calls, self.expected(program), strict=True):
            results = read_results(runner, program, self._edge.name, arrays_of(call))
            differences.add(tensors([to_tensor(*result) for result in results]), expected)
        return lowest_sqnr_db(
            math.nan if number in differences.empty else o.sqnr_db for number, o in enumerate(differences.outputs)
        )


def arrays_of(call: Sequence[Any]) -> list[Any]:
    """Return flat arguments in the form of the runtime."""
    return [to_array(leaf, f"input {number}") for number, leaf in enumerate(call)]


_INPUTS = "placement.accuracy.inputs"


def samples_to_place(
    settings: PlacementSection, verify: Any, exported: Mapping[str, ExportedProgram], compiler: Compiler
) -> dict[str, list[Sample]]:
    """Return the calls to measure and compare, by method, in the structure of the export. Every method has some.

    Args:
        settings: may name a data file.
        verify: the user's inputs; see `samples_of`.
        exported: the methods.
        compiler: has the methods.

    Raises:
        InputError: inputs are missing, they cannot be read, or they do not fit the method.
        ConfigError: a data file is named, and torchao is not installed.
    """
    source, where = None if settings.accuracy is None else settings.accuracy.inputs, "verify"
    if source is not None:
        if len(exported) > 1:
            what = f"accuracy.inputs is for one method, but the program has {len(exported)}"
            raise ConfigError(what, where=_INPUTS, remedy="give `verify` a dict of inputs by method")
        where = _INPUTS
        samples = {name: _read_samples(source, ep) for name, ep in exported.items()}
    else:
        samples = {} if verify is None else samples_of(verify, exported)
    for name, calls in samples.items():
        edge, spec = compiler.methods[name].edge, exported[name].call_spec.in_spec
        inputs = emit_inputs(edge, compiler.kernels)
        samples[name] = [
            _match_structure(call, inputs, spec, f"{where}, number {i}") for i, call in enumerate(calls, 1)
        ]
    missing = {name: ep for name, ep in exported.items() if name not in samples}
    return samples | (example_samples(missing) if missing else {})


def _read_samples(source: str, ep: ExportedProgram) -> list[Sample]:
    try:
        from delegate.quantization.calibration import input_names, read_calibration
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torchao":
            raise
        remedy = "pip install 'delegate[quantization]', or give the inputs as `verify`"
        raise ConfigError("reading the data needs torchao, which is not installed", remedy=remedy) from error
    batches = list(itertools.islice(read_calibration(source, input_names(ep), _INPUTS), MAX_SAMPLES))
    return samples_of(batches, {"forward": ep})["forward"]


def _match_structure(call: Sample, inputs: MethodDefinition, spec: Any, where: str) -> Sample:
    """Return a call in the structure of the export; raises InputError if it does not fit the method."""
    try:
        leaves = leaves_of(inputs, call.args, dict(call.kwargs))
        checker = InputChecker(inputs)
        checker.symbols(checker.arrays(arrays_of(leaves)))
    except InputError as error:
        raise error.at(where) from error
    return Sample(*pytree.tree_unflatten(leaves, spec))
