"""A race: programs of one method whose estimates are close run in turns on the example inputs, for a short time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any

from delegate.errors import DelegateError
from delegate.kernels.libraries import KernelRequest
from delegate.program.model import Program
from delegate.registry import Registry
from delegate.runtime.loaded import LoadedProgram

_TURN = 0.01  # seconds of the calls of one turn
_PAUSE = 0.01  # seconds before a turn, because threads of another library may still spin
_ROUNDS = 5  # after which the race ends


def race(
    programs: Mapping[str, Program],
    method: str,
    leaves: Sequence[Any],
    registry: Registry,
    kernels: KernelRequest | None,
    budget: float,
) -> dict[str, float]:
    """Return the median seconds of a call of each program; without those that fail, and those without time to run.

    Args:
        programs: by name.
        method: to call.
        leaves: its flat arguments, in the form of the runtime.
        registry, kernels: to load the programs with.
        budget: seconds, also for loading.
    """
    end = time.monotonic() + budget
    times: dict[str, list[float]] = {}
    with ExitStack() as stack:
        calls = {}
        for name, program in programs.items():
            try:
                loaded = stack.enter_context(
                    LoadedProgram(program, registry, kernels, fallback="error", trust_code=True)
                )
                call = partial(loaded.method(method).run, leaves)
                call()
            except DelegateError:
                continue
            calls[name] = (call, loaded.reset if loaded.states else None)
            if time.monotonic() > end:
                break
        for _ in range(_ROUNDS):
            for name, (call, reset) in calls.items():
                if time.monotonic() > end and all(n in times for n in calls):
                    break
                time.sleep(_PAUSE)
                times.setdefault(name, []).append(_turn(call, reset))
    return {name: median(turns) for name, turns in times.items()}


def _turn(call: Callable[[], Any], reset: Callable[[], None] | None) -> float:
    """Return the least seconds of a call of one turn: what other processes and threads add does not count."""
    seconds: list[float] = []
    end = time.perf_counter() + _TURN
    while len(seconds) < 2 or time.perf_counter() < end:
        if reset is not None:
            reset()
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
