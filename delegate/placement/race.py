"""A race: programs of one method whose estimates are close run in turns on the example inputs, for a short time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any

import torch
from torch.export import ExportedProgram

from delegate.accuracy.reference import copies
from delegate.edge.torch_private import pytree
from delegate.errors import DelegateError
from delegate.kernels.libraries import KernelRequest
from delegate.placement.reference_comparator import arrays_of
from delegate.processes.limits import call_times
from delegate.program.model import Program
from delegate.registry import Registry
from delegate.runtime.loaded import LoadedProgram

EAGER = "torch (eager)"
_TURN = 0.01  # seconds of the calls of one turn
_LEAST = 2  # calls of a turn, besides the first: threads that still spin from the call before slow down later ones only
_PAUSE = 0.02  # seconds before a turn, because threads of another library may still spin
_ROUNDS = 5  # after which the race ends
_NOISE = 0.2  # logarithm of the ratio between turns of a program, if each has only one turn
_ERROR = 0.4  # the same of an estimate over the seconds of a call, typically
_LEAST_SECONDS = 1e-9  # of an estimate
# What took this many times as long, in its first turn or in all of several, gets no other turn.
_FAR_AT_FIRST, _FAR = 3.0, 1.5

_Call = Callable[[], Any]


def race(
    programs: Mapping[str, Program],
    estimates: Mapping[str, float],
    method: str,
    ep: ExportedProgram,
    registry: Registry,
    kernels: KernelRequest | None,
    budget: float,
) -> dict[str, float]:
    """Return the seconds of calling each program, and of torch's own; the program to take comes first.

    Programs that fail are left out, and so are those without time to run.

    Args:
        programs: Name -> the program that takes part.
        estimates: their estimated seconds, which count as much as the turns of a program differ.
        method: The method that is called.
        ep: the method, with its example inputs.
        registry, kernels: to load the programs with.
        budget: seconds, also for loading.
    """
    end = time.monotonic() + budget
    with ExitStack() as stack:
        calls = _load(stack, programs, method, ep, registry, kernels, end)
        is_stateless = all(reset is None for _, reset in calls.values())  # torch's own calls would change the model
        if len(calls) > 1 and is_stateless and time.monotonic() < end:
            calls[EAGER] = _eager(ep), None
        turns = _take_turns(calls, end)
    ranked = [*_rank(turns, estimates), EAGER]
    return {name: min(turns[name]) for name in ranked if name in turns}


def _load(
    stack: ExitStack,
    programs: Mapping[str, Program],
    method: str,
    ep: ExportedProgram,
    registry: Registry,
    kernels: KernelRequest | None,
    end: float,
) -> dict[str, tuple[_Call, _Call | None]]:
    """Load programs until a time, at least two, and return for each what is called, and what resets its states."""
    calls: dict[str, tuple[_Call, _Call | None]] = {}
    for name, program in programs.items():
        leaves = arrays_of(copies(pytree.tree_leaves(ep.example_inputs)))
        try:
            loaded = stack.enter_context(LoadedProgram(program, registry, kernels, fallback="error", trust_code=True))
            run = partial(loaded.method(method).run, leaves)
            run()
        except DelegateError:
            continue
        calls[name] = (run, loaded.reset if loaded.states else None)
        if time.monotonic() > end and len(calls) > 1:
            break
    return calls


def _take_turns(calls: dict[str, tuple[_Call, _Call | None]], end: float) -> dict[str, list[float]]:
    """Return the seconds of a call in each turn; calls that fail are left out, and removed.

    Args:
        calls: name -> what is called, and what resets its states after each call.
        end: A time by `time.monotonic`, after which no turn begins, except the first of each.
    """
    turns: dict[str, list[float]] = {}
    for _ in range(_ROUNDS):
        least = min((min(own) for own in turns.values()), default=math.inf)
        for name, (call, reset) in list(calls.items()):
            own = turns.get(name, [])
            most = least * (_FAR if len(own) > 1 else _FAR_AT_FIRST)
            if own and (time.monotonic() > end or min(own) > most):
                continue
            time.sleep(_PAUSE)
            try:
                times = call_times(call, _TURN, _LEAST + 1, reset)
                turns.setdefault(name, []).append(median(times[1:]))
            except Exception:  # what the model asserts may not hold for inputs that it has changed itself
                del calls[name]
    return {name: own for name, own in turns.items() if name in calls}


def _rank(turns: Mapping[str, Sequence[float]], estimates: Mapping[str, float]) -> list[str]:
    """Return the names with estimates, the probably fastest first.

    The logarithms of the measured and of the estimated seconds are averaged, each by the inverse of its variance.
    """
    spreads = [math.log(max(own) / min(own)) / len(own) for own in turns.values() if len(own) > 1]
    noise = median(spreads) if spreads else _NOISE  # of the least of several turns
    weight = noise**2 / (noise**2 + _ERROR**2)

    def logarithm(name: str) -> float:
        return (1 - weight) * math.log(min(turns[name])) + weight * math.log(max(estimates[name], _LEAST_SECONDS))

    return sorted(turns.keys() & estimates.keys(), key=logarithm)


def _eager(ep: ExportedProgram) -> _Call:
    """Return a call of the method by torch, on copies of its example inputs."""
    args, kwargs = pytree.tree_map(
        lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, ep.example_inputs
    )
    module = ep.module()

    @torch.no_grad()
    def call() -> Any:
        return module(*args, **kwargs)

    return call
