"""The sample calls for measurement and comparison: arguments of `verify`, data files, or the example inputs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch.utils._pytree as pytree
from torch.export import ExportedProgram

from delegate.accuracy.samples import Sample, example_samples, samples_of
from delegate.config import Placing
from delegate.emit.method import emit_inputs
from delegate.errors import ConfigError, InputError
from delegate.placement.alternatives import Compiler
from delegate.placement.reference_comparator import MAX_SAMPLES, arrays_of
from delegate.program.model import Method
from delegate.runtime.inputs import InputChecker
from delegate.runtime.method import leaves_of

_INPUTS = "placement.accuracy.inputs"


def samples_to_place(
    settings: Placing, verify: Any, exported: Mapping[str, ExportedProgram], compiler: Compiler
) -> dict[str, list[Sample]]:
    """Return the calls to measure and compare, by method, in the structure of the export. Every method has some.

    Args:
        settings: may name a data file.
        verify: the user's inputs; see `samples_of`.
        exported: the methods.
        compiler: has the methods.

    Raises:
        InputError: there are no inputs, they cannot be read, or they do not fit the method.
        ConfigError: a data file is named, and torchao is not installed.
    """
    source, where = None if settings.accuracy is None else settings.accuracy.inputs, "verify"
    if source is not None:
        if len(exported) > 1:
            what = f"accuracy.inputs is for one method, and the program has {len(exported)}"
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
        raise ConfigError("data is read by what quantizes, and torchao is not installed", remedy=remedy) from error
    batches = list(itertools.islice(read_calibration(source, input_names(ep), _INPUTS), MAX_SAMPLES))
    return samples_of(batches, {"forward": ep})["forward"]


def _match_structure(call: Sample, inputs: Method, spec: Any, where: str) -> Sample:
    """Return a call in the structure of the export; raises InputError if it does not fit the method."""
    try:
        leaves = leaves_of(inputs, call.args, dict(call.kwargs))
        checker = InputChecker(inputs)
        checker.symbols(checker.arrays(arrays_of(leaves)))
    except InputError as error:
        raise error.at(where) from error
    return Sample(*pytree.tree_unflatten(leaves, spec))
