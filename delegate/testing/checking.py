"""The test kit on the project's common modules, for `delegate check-backend`."""

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
from delegate.testing.cases import COMMON, Case

_CALLS = 300  # measured for the median
_KIT = "from delegate.testing.checking import kit_of\nTestKit = kit_of({name!r})\n"


@dataclass(frozen=True)
class TestOutcome:
    """The outcome of one test.

    Args:
        test: the name of the test, e.g. "answers_are_those_of_eager[relu]".
        outcome: "passed", "failed" or "skipped".
        words: the reason if it did not pass.
    """

    test: str
    outcome: str
    words: str = ""


@dataclass(frozen=True)
class CallTime:
    """The duration of a call of a program of one partition.

    Args:
        case: the name of the module.
        seconds: the median duration.
    """

    case: str
    seconds: float


@cache
def reports(name: str) -> Mapping[str, tuple[NodeReport, ...]]:
    """Return the node reports of a backend for each of the common modules."""
    return {label: explain(case.export(), name).nodes for label, case in COMMON.items()}


def cases_of(name: str) -> dict[str, Case]:
    """Return the common modules that a backend runs at least in part."""
    return {case: COMMON[case] for case, nodes in reports(name).items() if any(n.backend == name for n in nodes)}


def operators(name: str) -> dict[str, str]:
    """Return the operators of the common modules -> "yes", or the reason why the backend does not run them."""
    answers: dict[str, str] = {}
    for node in (n for nodes in reports(name).values() for n in nodes):
        if answers.get(node.op) != "yes":
            answers[node.op] = "yes" if node.backend == name else str(node.verdicts.get(name, "not checked"))
    return dict(sorted(answers.items()))


def kit_of(name: str) -> type[BackendTests]:
    """Return the test class of a backend on the common modules that it runs."""
    return type("TestKit", (BackendTests,), {"backend": name, "cases": cases_of(name)})


def run_kit(name: str, advance: Callable[[int, int], None] = lambda done, total: None) -> list[TestOutcome]:
    """Run the tests of a backend on the common modules; errors of its support checks pass through.

    Args:
        name: the name of the backend.
        advance: called after each test with the number of finished tests and of all tests.
    """
    collected = _Collected(advance)
    if not cases_of(name):
        return [TestOutcome("something_of_it_runs_there", "failed", "it supports no node of the common modules")]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "pytest.ini").write_text("[pytest]\n")
        Path(folder, "test_kit.py").write_text(_KIT.format(name=name))
        options = ["-s", "-p", "no:terminal", "-p", "no:cacheprovider", "--import-mode=importlib", "--rootdir", folder]
        pytest.main([*options, folder], plugins=[collected])
    return collected.outcomes


def cost_of_a_call(name: str) -> CallTime | None:
    """Measure the first common module that the backend runs entirely in one partition; None if there is none."""
    for label, case in cases_of(name).items():
        program = delegate.to_backend(case.export(), name)
        if len(program.report.partitions) == 1 and all(n.backend == name for n in program.report.nodes):
            arrays = arrays_of(case.args)
            with delegate.load(serialize(program.program), trust_code=True) as loaded:
                method = loaded.method("forward")
                return CallTime(label, statistics.median(_seconds(method, arrays) for _ in range(_CALLS)))
    return None


def _seconds(method: Any, arrays: list[Any]) -> float:
    start = time.perf_counter()
    method.run(arrays)
    return time.perf_counter() - start


class _Collected:
    """A pytest plugin that collects outcomes and reports progress."""

    def __init__(self, advance: Callable[[int, int], None]) -> None:
        self.outcomes: list[TestOutcome] = []
        self._advance, self._ended, self._total = advance, 0, 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Store the number of tests."""
        self._total = len(session.items)

    def pytest_runtest_logfinish(self) -> None:
        """Report another finished test."""
        self._ended += 1
        self._advance(self._ended, self._total)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Store the outcome of a test or of a failed setup."""
        if report.when == "call" or report.outcome != "passed":
            test = report.nodeid.rpartition("::")[2].removeprefix("test_")
            self.outcomes.append(TestOutcome(test, report.outcome, _words(report)))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Store a failure to collect the tests."""
        if report.failed:
            self.outcomes.append(TestOutcome("the kit itself", "failed", str(report.longrepr)))


def _words(report: pytest.TestReport) -> str:
    """Return the reason why a test did not pass, on one line."""
    if isinstance(report.longrepr, tuple):  # skipped: file, line, reason
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    return " ".join(str(crash.message if crash else report.longrepr or "").split())
