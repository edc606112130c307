"""Random models through the compiler and the backends, against eager, in forked children with limits.

    python -m tests.wild.run PLACES [MINUTES [FIRST]]        or `make wild PLACES=xnnpack MINUTES=10`

PLACES are e.g. xnnpack,portable,dsp+xnnpack: each model is lowered for each, "+" being an order of preference. What may
come of a model: what eager gives, in its results, its inputs and its buffers; or, of sizes that the exported module
refuses, an error of execution.
Each finding is printed with the smallest model that has it; `python -m tests.wild.run PLACES = NUMBER` runs one.
"""

from __future__ import annotations

import copy
import itertools
import multiprocessing
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

import torch

import delegate
from delegate.compiled import CompiledProgram
from delegate.errors import ExecutionError, ExportError
from delegate.program.file import serialize
from delegate.testing import assert_same
from tests.support.children import run_cases
from tests.wild.models import Model, model

_SECONDS = 120.0
_TOGETHER = 20  # models of one child, after which its findings are printed
_NEARLY = ("webgpu", "openvino", "onnxruntime")  # sums in another order, or functions by tables
_LOOSE = {torch.float16: 4e-3, torch.bfloat16: 3e-2}  # at least, for results of these
Tensors = Sequence[torch.Tensor]


def tolerance_of(place: str) -> float:
    """The largest error, relative to the largest value: the dsp computes in float16."""
    return 5e-2 if "dsp" in place else 2e-3 if any(name in place for name in _NEARLY) else 2e-4


def case(number: int, places: Sequence[str]) -> str | None:
    """What is wrong with what comes of the model of that number, reduced."""
    made = model(number)
    what = check(made, places)
    if what is None:
        return None
    places = [_kind(what)[0]]
    while True:
        for smaller in made.smaller():
            other = check(smaller, places)
            if other is not None and _kind(other) == _kind(what):
                made, what = smaller, other
                break
        else:
            break
    return f"{what}\n{listing(made)}"


def _kind(what: str) -> list[str]:
    """The place, and what sort of fault it is."""
    return what.split(": ")[:2]


def listing(made: Model) -> str:
    """The graph that torch exports of a model, its inputs and sizes."""
    exported = _exported(made)
    code = exported.graph_module.print_readable(print_output=False) if exported is not None else ""
    lines = [line.split(";")[0] for line in code.splitlines() if line.strip() and not line.strip().startswith("#")]
    return "\n".join([f"{made.inputs} {made.sizes} {made.dynamic=} {made.others} {made.outputs=}", *lines])


def _exported(made: Model) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.export(made.module(), made.example(), dynamic_shapes=made.dynamic_shapes())
    except Exception:  # what torch does not export
        return None


def check(made: Model, places: Sequence[str]) -> str | None:
    """What is wrong with the model at some place; None also where torch does not export it as it is in eager."""
    exported = _exported(made)
    if exported is None:
        return None
    calls = [made.example(sizes) for sizes in (made.sizes, *made.others)]
    expected = _expected(made, exported, calls)
    if expected is None:
        return None
    said = (_lowered(exported, calls, expected, place) for place in places)
    return next((what for what in said if what is not None), None)


def _lowered(exported: Any, calls: Sequence[Tensors], expected: Sequence[Any], place: str) -> str | None:
    limit, backends = tolerance_of(place), [] if place == "portable" else place.split("+")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = delegate.to_backend(exported, backends)
    except ExportError:  # what torch cannot make functional
        return None
    except Exception as error:
        return f"{place}: lowering raises {_said(error)}"
    if wrong := _wrong(program, calls, expected, limit):
        return f"{place}: {wrong}"
    with delegate.load(serialize(program.program), trust_code=True) as loaded:
        wrong = _wrong(loaded, calls, expected, limit)
    return f"{place}: {wrong} when loaded" if wrong else None


def _said(error: BaseException) -> str:
    at = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({at.filename.rpartition('/')[2]}:{at.lineno})"


def _expected(made: Model, exported: Any, calls: Sequence[Tensors]) -> list[tuple[Tensors, Tensors] | None] | None:
    """Results and inputs after each call of eager, None of calls that the exported module refuses.

    None as a whole where eager and the exported module differ.
    """
    eager, again, found = made.module(), copy.deepcopy(exported).module(), []
    for inputs in calls:
        copies, own = [x.clone() for x in inputs], [x.clone() for x in inputs]
        try:
            with torch.no_grad():
                theirs = again(*own)
        except Exception:
            found.append(None)
            continue
        try:
            with torch.no_grad():
                results = [x.clone() for x in eager(*copies)]
        except Exception:
            return None
        if any(_differ(a, b, 1e-4) for a, b in zip((*theirs, *own), (*results, *copies), strict=True)):
            return None
        found.append((results, copies))
    return found


def _wrong(program: Any, calls: Sequence[Tensors], expected: Sequence[Any], limit: float) -> str | None:
    for inputs, wanted in zip(calls, expected, strict=True):
        given: list[Any] = [x.clone() for x in inputs]
        if not isinstance(program, CompiledProgram):
            given = [x.numpy() for x in given]
        shapes = [tuple(x.shape) for x in inputs]
        try:
            results = program(*given)
        except ExecutionError as error:
            if wanted is not None:
                return f"a call raises {type(error).__name__}: of {shapes}: {error}"
            continue
        except Exception as error:
            return f"a call raises {_said(error)} of {shapes}"
        if wanted is None:
            return f"a call is answered that the exported module refuses: {shapes}"
        for i, (one, other) in enumerate(zip(results, wanted[0], strict=True)):
            if said := _differ(one, other, limit):
                return f"a result differs: number {i}, {said}, of {shapes}"
        for i, (one, other) in enumerate(zip(given, wanted[1], strict=True)):
            if said := _differ(one, other, limit):
                return f"an input differs after the call: number {i}, {said}, of {shapes}"
    return None


def _differ(got: Any, wanted: torch.Tensor, limit: float) -> str | None:
    """Return the difference of a tensor or an array from the expected tensor; None if there is none."""
    try:
        assert_same(got, wanted, max(limit, _LOOSE.get(wanted.dtype, 0)), at_least=1.0)
    except AssertionError as error:
        return str(error)
    return None


def main(places: str, minutes: str = "5", first: str = "0") -> int:
    """Run models for some minutes and print what is found; gives how many."""
    names = places.split(",")
    if minutes == "=":
        print(case(int(first), names))
        return 0
    torch.set_num_threads(1)
    tried = multiprocessing.Value("q")

    def one(number: int) -> str | None:
        tried.value += 1
        what = case(number, names)
        return None if what is None else what.replace("\n", " | ")

    found, until = 0, time.monotonic() + 60 * float(minutes)
    limits: dict[str, Any] = {"seconds": _SECONDS, "address_space": 64 << 30, "until": until}
    for start in itertools.count(int(first), _TOGETHER):
        for finding in run_cases(one, iter(range(start, start + _TOGETHER)), **limits):
            found += 1
            print(f"--- {finding.case}: {finding.what}", flush=True)
        if time.monotonic() > until:
            break
    print(f"{tried.value} models, {found} findings")
    return found


if __name__ == "__main__":
    sys.exit(bool(main(*sys.argv[1:])))
