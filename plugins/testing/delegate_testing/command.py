"""`delegate check-backend`: run the tests of every backend on one, with its operators and the cost of a call."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from delegate.cli import output
from delegate.plugins import PluginState

if TYPE_CHECKING:
    from delegate.backend.state import BackendState
    from delegate_testing.checking import CheckResult, TestOutcome


def check_backend(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A backend, as `delegate backends` lists it.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Stop after about 30 seconds; each test runs on one module first.")
    ] = False,
    keyword: Annotated[
        str, typer.Option("-k", metavar="EXPRESSION", help="Run the tests that match, as pytest's -k does.")
    ] = "",
    workers: Annotated[
        int, typer.Option("-n", metavar="N", min=0, help="Run the tests in N processes; needs pytest-xdist.")
    ] = 0,
    tests: Annotated[
        Path | None,
        typer.Option(
            "--tests",
            metavar="FILE",
            help="A file with the backend's subclass of BackendTests: its cases, tolerance, exceptions, altered blobs.",
        ),
    ] = None,
) -> None:
    """Run the tests that every backend must pass; show the supported operators and the cost of a call.

    Failures appear as they come, on stderr, and Ctrl-C ends the tests, and prints the results so far.
    """
    if quick and workers:
        raise typer.BadParameter("--quick runs in one process: leave out -n")
    from delegate.cli.backends import check_parts  # `delegate --help` imports this module
    from delegate.registry import Registry

    start = time.monotonic()
    registry = Registry(refresh=True)
    name = registry.resolve(name)
    state = registry.state(name)
    parts = check_parts(registry, name)
    data: dict[str, Any] = {"backend": name, "state": str(state.state), "detail": state.detail, "parts": parts}
    ready = state.state is PluginState.OK and set(parts.values()) == {"ok"}
    result = _run_tests(name, start if quick else None, keyword, workers, tests) if ready else None
    if as_json:
        results = (
            {"tests": [], "total": 0, "stopped": "", "not_run": [], "operators": {}, "call": None}
            if result is None
            else {**asdict(result), "tests": [asdict(o) for o in result.tests]}
        )
        output.print_json({**data, **results})
    else:
        _print(state, parts, result)
    if result is None or not result.is_green:
        raise typer.Exit(1)


def _run_tests(name: str, quick_since: float | None, keyword: str, workers: int, tests: Path | None) -> CheckResult:
    with output.working("importing torch"):
        from delegate_testing import checking
    with output.working(f"querying the operators of {name}"):
        checking.reports(name)
    with output.advancing(f"testing {name}") as advance:

        def report(outcome: TestOutcome | None, done: int, total: int) -> None:
            if outcome is not None and outcome.outcome == "failed":
                print(f"failed: {outcome.test}: {outcome.words}", file=sys.stderr, flush=True)
            advance(done, total)

        before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # `timeout` shows the results so far, too
        try:
            seconds = math.inf if quick_since is None else quick_since + checking.QUICK - time.monotonic()
            result = checking.run_kit(name, report, seconds=seconds, keyword=keyword, workers=workers, tests=tests)
        finally:
            signal.signal(signal.SIGTERM, before)
    with output.working(f"timing calls of {name}"):
        return checking.with_costs(name, result)


def _count_tests(tests: Sequence[str]) -> str:
    """Return the names of tests without their modules, and how many modules each of them missed."""
    numbers = Counter(test.partition("[")[0] for test in tests)
    return f"{len(tests)} tests: {', '.join(f'{name} ({number})' for name, number in numbers.items())}"


def _print(state: BackendState, parts: dict[str, str], result: CheckResult | None) -> None:
    from delegate.cli.backends import part_text

    output.print_line(f"backend:      {state.name}, {state.state}{f': {state.detail}' if state.detail else ''}")
    output.print_line(f"aot part:     {part_text(parts['aot'], state)}")
    output.print_line(f"runtime part: {part_text(parts['runtime'], state)}")
    if result is None:
        return
    count = Counter(o.outcome for o in result.tests)
    output.print_line(f"tests:        {', '.join(f'{n} {outcome}' for outcome, n in sorted(count.items())) or 'none'}")
    if result.stopped:
        output.print_line(f"stopped:      {result.stopped}, after {len(result.tests)} of {result.total} tests")
    if result.not_run:
        output.print_line(f"not run:      {_count_tests(result.not_run)}")
    if result.call is not None:
        output.print_line(f"a call:       {result.call.seconds * 1e6:.3g} us ({result.call.case})")
    for outcome in result.tests:
        if outcome.outcome == "failed":
            output.print_line(f"failed: {outcome.test}: {outcome.words}")
    for why, number in Counter(o.words for o in result.tests if o.outcome == "skipped").items():
        output.print_line(f"skipped, {number}: {why}")
    output.print_line()
    output.table(("operator", "taken"), list(result.operators.items()))
