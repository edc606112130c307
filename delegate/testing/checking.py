"""The kit on modules that this project brings: what `delegate check-backend` runs."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import delegate
from delegate.compile import explain
from delegate.program.file import serialize
from delegate.report import NodeReport
from delegate.testing.backend import BackendTests, arrays_of
from delegate.testing.cases import Case
from delegate.testing.common import COMMON

_CALLS = 300  # of which the median is told
_KIT = "from delegate.testing.checking import kit_of\nTestKit = kit_of({name!r})\n"


@dataclass(frozen=True)
class Outcome:
    """How one test ended.

    Args:
        test: e.g. "answers_are_those_of_eager[relu]".
        outcome: "passed", "failed" or "skipped".
        words: why it was not passed.
    """

    test: str
    outcome: str
    words: str = ""


@dataclass(frozen=True)
class Call:
    """What a call of a program of one partition takes.

    Args:
        case: the module.
        seconds: the median.
    """

    case: str
    seconds: float


@cache
def reports(name: str) -> Mapping[str, tuple[NodeReport, ...]]:
    """What a backend says of each of the common modules."""
    return {case: explain(made.export(), name).nodes for case, made in COMMON.items()}


def cases_of(name: str) -> dict[str, Case]:
    """The common modules that a backend runs, at least in part."""
    return {case: COMMON[case] for case, nodes in reports(name).items() if any(n.backend == name for n in nodes)}


def operators(name: str) -> dict[str, str]:
    """Operator -> "yes", or why the backend does not take it, of the common modules."""
    found: dict[str, str] = {}
    for node in (n for nodes in reports(name).values() for n in nodes):
        said = "yes" if node.backend == name else str(node.verdicts.get(name, "not asked"))
        if found.get(node.op) != "yes":
            found[node.op] = said
    return dict(sorted(found.items()))


def kit_of(name: str) -> type[BackendTests]:
    """The tests of a backend on the common modules that it runs."""
    return type("TestKit", (BackendTests,), {"backend": name, "cases": cases_of(name)})


def run_kit(name: str, advance: Callable[[int, int], None] = lambda done, total: None) -> list[Outcome]:
    """Run them; raises what asking the backend about the modules raises.

    Args:
        name: of the backend.
        advance: is told after each test how many of how many have ended.
    """
    collected = _Collected(advance)
    if not cases_of(name):
        return [
            Outcome("something_of_it_runs_there", "failed", "it takes none of the common modules, not even in part")
        ]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "pytest.ini").write_text("[pytest]\n")
        Path(folder, "test_kit.py").write_text(_KIT.format(name=name))
        options = ["-s", "-p", "no:terminal", "-p", "no:cacheprovider", "--import-mode=importlib", "--rootdir", folder]
        pytest.main([*options, folder], plugins=[collected])
    return collected.outcomes


def cost_of_a_call(name: str) -> Call | None:
    """Of the first of the modules that the backend runs whole in one partition; None where there is none."""
    for case, made in cases_of(name).items():
        program = delegate.to_backend(made.export(), name)
        if len(program.report.partitions) == 1 and all(n.backend == name for n in program.report.nodes):
            arrays = arrays_of(made.args)
            with delegate.load(serialize(program.program), trust_code=True) as loaded:
                method = loaded.method("forward")
                return Call(case, statistics.median(_seconds(method, arrays) for _ in range(_CALLS)))
    return None


def _seconds(method: Any, arrays: list[Any]) -> float:
    start = time.perf_counter()
    method.run(arrays)
    return time.perf_counter() - start


class _Collected:
    """A plugin of pytest that keeps how tests ended, and tells how many have."""

    def __init__(self, advance: Callable[[int, int], None]) -> None:
        self.outcomes: list[Outcome] = []
        self._advance, self._ended, self._total = advance, 0, 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note how many tests there are."""
        self._total = len(session.items)

    def pytest_runtest_logfinish(self) -> None:
        """Tell that one more has ended."""
        self._ended += 1
        self._advance(self._ended, self._total)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the outcome of a test, and of what could not be set up."""
        if report.when == "call" or report.outcome != "passed":
            test = report.nodeid.rpartition("::")[2].removeprefix("test_")
            self.outcomes.append(Outcome(test, report.outcome, _words(report)))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep that tests could not be made."""
        if report.failed:
            self.outcomes.append(Outcome("the kit itself", "failed", str(report.longrepr)))


def _words(report: pytest.TestReport) -> str:
    """Why a test was not passed, on one line."""
    if isinstance(report.longrepr, tuple):  # skipped: file, line, reason
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    return " ".join(str(crash.message if crash else report.longrepr or "").split())
