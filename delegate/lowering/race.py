"""A race: programs of one method whose estimates are close run in turns on the example inputs, for a short time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch.export import ExportedProgram

from delegate.accuracy.reference import copies
from delegate.errors import DelegateError
from delegate.kernels.libraries import KernelRequest
from delegate.placement.reference_comparator import arrays_of
from delegate.placement.runtime.worker import call_times
from delegate.program.model import Program
from delegate.registry import Registry
from delegate.runtime.loaded import LoadedProgram

EAGER = "torch itself"
_TURN = 0.01  # seconds of the calls of one turn; the least of them counts, since others have what other processes add
_LEAST = 2  # calls of a turn
_PAUSE = 0.02  # seconds before a turn, because threads of another library may still spin
_ROUNDS = 5  # after which the race ends
_FAR = 1.5  # what took this many times as long gets no other turn

_Call = Callable[[], Any]


def race(
    programs: Mapping[str, Program],
    method: str,
    ep: ExportedProgram,
    registry: Registry,
    kernels: KernelRequest | None,
    budget: float,
) -> dict[str, float]:
    """Return the least seconds of a call of each program, and of torch's own; the fastest program first.

    Programs that fail are left out, and so are those without time to run.

    Args:
        programs: by name.
        method: to call.
        ep: the method, with its example inputs.
        registry, kernels: to load the programs with.
        budget: seconds, also for loading.
    """
    end = time.monotonic() + budget
    with ExitStack() as stack:
        calls: dict[str, tuple[_Call, _Call | None]] = {}
        for name, program in programs.items():
            leaves = arrays_of(copies(torch.utils._pytree.tree_leaves(ep.example_inputs)))
            try:
                loaded = stack.enter_context(
                    LoadedProgram(program, registry, kernels, fallback="error", trust_code=True)
                )
                run = partial(loaded.method(method).run, leaves)
                run()
            except DelegateError:
                continue
            calls[name] = (run, loaded.reset if loaded.states else None)
            if time.monotonic() > end and len(calls) > 1:
                break
        is_stateless = all(reset is None for _, reset in calls.values())  # torch's own calls would change the model
        if len(calls) > 1 and is_stateless and time.monotonic() < end:
            calls[EAGER] = _eager(ep), None
        times = _take_turns(calls, end)
    return dict(sorted(times.items(), key=lambda item: (item[0] == EAGER, item[1])))


def _take_turns(calls: dict[str, tuple[_Call, _Call | None]], end: float) -> dict[str, float]:
    """Return the least seconds of each call; those that fail are left out, and removed.

    Args:
        calls: name -> what is called, and what resets its states after each call.
        end: by `time.monotonic`, after which no turn begins, except the first of each.
    """
    times: dict[str, list[float]] = {}
    for _ in range(_ROUNDS):
        least = min((min(turns) for turns in times.values()), default=math.inf)
        for name, (call, reset) in list(calls.items()):
            if name in times and (time.monotonic() > end or min(times[name]) > _FAR * least):
                continue
            time.sleep(_PAUSE)
            try:
                times.setdefault(name, []).append(min(call_times(call, _TURN, _LEAST, reset)))
            except Exception:  # what the model asserts may not hold for inputs that it has changed itself
                del calls[name]
    return {name: min(turns) for name, turns in times.items() if name in calls}


def _eager(ep: ExportedProgram) -> _Call:
    """Return a call of the method by torch, on copies of its example inputs."""
    args, kwargs = torch.utils._pytree.tree_map(
        lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, ep.example_inputs
    )
    module = ep.module()

    @torch.no_grad()
    def call() -> Any:
        return module(*args, **kwargs)

    return call
