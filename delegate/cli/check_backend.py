"""`delegate check-backend`: the tests that every backend has to pass, without writing one."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from delegate.backends.state import BackendState
from delegate.cli import output
from delegate.cli.parts import check_parts, part_text
from delegate.errors import DelegateError
from delegate.plugins import State
from delegate.registry import Registry

if TYPE_CHECKING:
    from delegate.testing.checking import Call, Outcome


def check_backend(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A backend, as `delegate backends` lists it.")],
    as_json: Annotated[bool, typer.Option("--json", help="The same as JSON.")] = False,
) -> None:
    """Run the tests of every backend on common modules; say what it takes of them, and what a call costs."""
    registry = Registry(refresh=True)
    name = registry.resolve(name)
    state = registry.state(name)
    parts = check_parts(registry, name)
    data: dict[str, Any] = {"backend": name, "state": str(state.state), "detail": state.detail, "halves": parts}
    ready = state.state is State.OK and set(parts.values()) == {"ok"}
    outcomes, matrix, call = _tried(name) if ready else ([], {}, None)
    if as_json:
        tests = [asdict(o) for o in outcomes]
        output.print_json({**data, "tests": tests, "operators": matrix, "call": call and asdict(call)})
    else:
        _print(state, parts, outcomes, matrix, call)
    if not ready or any(o.outcome == "failed" for o in outcomes):
        raise typer.Exit(1)


def _tried(name: str) -> tuple[list[Outcome], dict[str, str], Call | None]:
    try:
        with output.working("importing torch"):
            from delegate.testing import checking
    except ModuleNotFoundError as error:
        if error.name != "pytest":
            raise
        raise DelegateError(
            "the tests of backends need pytest, which is not installed", remedy="pip install pytest"
        ) from error
    with output.working(f"asking {name} what it takes"):
        checking.reports(name)
    with output.advancing(f"testing {name}") as advance:
        outcomes = checking.run_kit(name, advance)
    with output.working(f"timing calls of {name}"):
        return outcomes, checking.operators(name), checking.cost_of_a_call(name)


def _print(
    state: BackendState, parts: dict[str, str], outcomes: list[Outcome], matrix: dict[str, str], call: Call | None
) -> None:
    print(f"backend:      {state.name}, {state.state}{f': {state.detail}' if state.detail else ''}")
    print(f"aot half:     {part_text(parts['aot'], state)}")
    print(f"runtime half: {part_text(parts['runtime'], state)}")
    if not outcomes:
        return
    count = Counter(o.outcome for o in outcomes)
    print(f"tests:        {', '.join(f'{n} {outcome}' for outcome, n in sorted(count.items()))}")
    if call is not None:
        print(f"a call:       {call.seconds * 1e6:.3g} us ({call.case})")
    for outcome in outcomes:
        if outcome.outcome == "failed":
            print(f"failed: {outcome.test}: {outcome.words}")
    for why, number in Counter(o.words for o in outcomes if o.outcome == "skipped").items():
        print(f"skipped, {number}: {why}")
    print()
    output.table(("operator", "taken"), list(matrix.items()))
