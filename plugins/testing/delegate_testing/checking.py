"""The test kit on the project's common modules, for `delegate check-backend`."""

from __future__ import annotations

import linecache
import math
import runpy
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import delegate
from delegate.compile import explain
from delegate.errors import DelegateError
from delegate.plugins import one_line
from delegate.program.file import serialize
from delegate.report.rows import NodeReport
from delegate_testing.cases import COMMON, Case
from delegate_testing.kit import BackendTests, arrays_of

_CALLS = 300  # measured for the median
QUICK = 27.0  # seconds from the start of a quick check until its last test begins
_LEAST = 12.0  # seconds of its tests on a slow machine, on which the start of Python and torch takes the rest
_SLOW = frozenset(
    {
        "test_generated_cases", "test_its_info_is_cheap_and_needs_no_torch", "test_it_runs_without_torch",
        "test_corrupt_blobs_do_no_harm",
    }
)  # fmt: skip
TIME_IS_UP = "the time of --quick is up"
_KIT = "from delegate_testing.checking import kit_of\nTestKit = kit_of({name!r}, {tests!r})\n"


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
    """The duration of a call to a program with one partition.

    Args:
        case: the name of the module.
        seconds: the median duration.
    """

    case: str
    seconds: float


@dataclass(frozen=True)
class CheckResult:
    """The results of checking a backend.

    Args:
        tests: the outcomes, in the order of the tests.
        total: the number of selected tests.
        stopped: why not all of them ran; empty if they did.
        not_run: the names of the selected tests that did not run.
        operators: operator of the common modules -> "yes", or the reason why the backend does not run it.
        call: the cost of a call; None if the backend runs no common module entirely.
    """

    tests: tuple[TestOutcome, ...]
    total: int
    stopped: str = ""
    not_run: tuple[str, ...] = ()
    operators: Mapping[str, str] = field(default_factory=dict)
    call: CallTime | None = None

    @property
    def is_green(self) -> bool:
        """Return true if no test failed, and nothing interrupted the tests."""
        return self.stopped in ("", TIME_IS_UP) and not any(o.outcome == "failed" for o in self.tests)


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


def kit_of(name: str, tests: str = "") -> type[BackendTests]:
    """Return the test class of a backend on the common modules that it runs.

    Args:
        name: the name of the backend.
        tests: the path of a file with the backend's own test class, whose settings and cases are added; or empty.

    Raises:
        DelegateError: the file has no such class.
    """
    own = _own_tests(name, tests) if tests else BackendTests
    cases = {**cases_of(name), **getattr(own, "cases", {})}
    return type("TestKit", (own,), {"backend": name, "cases": cases})


def _own_tests(name: str, path: str) -> type[BackendTests]:
    try:
        members = runpy.run_path(path).values()
    except Exception as error:  # the file may raise anything
        raise DelegateError(f"the test file cannot be run: {one_line(error)}", where=path) from error
    for member in members:
        if isinstance(member, type) and issubclass(member, BackendTests) and getattr(member, "backend", "") == name:
            return member
    what = f"the test file has no subclass of BackendTests for backend {name!r}"
    raise DelegateError(what, where=path, remedy="see docs/reference/backends.md, Testing it")


def run_kit(
    name: str,
    report: Callable[[TestOutcome | None, int, int], None] = lambda outcome, done, total: None,
    *,
    seconds: float = math.inf,
    keyword: str = "",
    workers: int = 0,
    tests: Path | None = None,
) -> CheckResult:
    """Run the tests of a backend on the common modules; errors of its support checks pass through.

    Args:
        name: the name of the backend.
        report: called after each test with its outcome, and the number of finished tests and of all tests.
        seconds: stop after this time, but not in less than 12 seconds; first each test runs on one module, then each
            on another one.
        keyword: select tests as pytest's -k does; empty for all.
        workers: number of processes, by pytest-xdist; 0 for this process.
        tests: a file with the backend's own test class.

    Raises:
        DelegateError: the file has no such class, or pytest-xdist is absent.
    """
    if workers and find_spec("xdist") is None:
        raise DelegateError(
            "several processes need pytest-xdist", remedy="pip install 'delegate-testing[parallel]', or leave out -n"
        )
    collected = _Collected(report, max(seconds, _LEAST))
    if not cases_of(name):
        what = "it supports no node of the common modules"
        return CheckResult((TestOutcome("something_of_it_runs_there", "failed", what),), 1)
    path = str(tests.resolve()) if tests else ""
    kit_of(name, path)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "pytest.ini").write_text("[pytest]\n")
        Path(folder, "test_kit.py").write_text(_KIT.format(name=name, tests=path))
        options = ["-s", "-p", "no:terminal", "-p", "no:cacheprovider", "--import-mode=importlib", "--rootdir", folder]
        options += ["--assert=plain"]  # else pytest rewrites Hypothesis, which takes seconds
        options += ["-k", keyword] if keyword else []
        options += ["-n", str(workers)] if workers else []
        pytest.main([*options, folder], plugins=[collected])
    return CheckResult(tuple(collected.outcomes), len(collected.tests), collected.stopped, collected.not_run)


def with_costs(name: str, result: CheckResult) -> CheckResult:
    """Return the result with the operators of the common modules, and the cost of a call."""
    return replace(result, operators=operators(name), call=cost_of_a_call(name))


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
    """A pytest plugin that collects outcomes, reports progress, and ends the tests after a time."""

    def __init__(self, report: Callable[[TestOutcome | None, int, int], None], seconds: float) -> None:
        self.outcomes: list[TestOutcome] = []
        self.tests: list[str] = []
        self.stopped = ""
        self._report, self._done, self._new = report, 0, 0
        self._seconds, self._start = seconds, time.monotonic()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Order the tests if they may not all run: the first case of each test, slow ones last; then the second."""
        if self._seconds < math.inf:
            numbers = Counter[str]()
            order: list[tuple[int, bool, int]] = []
            for item in items:
                function = item.name.partition("[")[0]
                order.append((numbers[function], function in _SLOW, len(order)))
                numbers[function] += 1
            items[:] = [items[i] for _, _, i in sorted(order)]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Store the names of the tests."""
        self.tests = [_test_name(item.nodeid) for item in session.items]

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Store the names of the tests, which the processes of pytest-xdist collect."""
        self.tests = list(map(_test_name, ids))

    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        """End the tests if the time is up."""
        if time.monotonic() - self._start > self._seconds:
            self.stopped = item.session.shouldstop = TIME_IS_UP

    def pytest_keyboard_interrupt(self) -> None:
        """Store that the user ended the tests."""
        self.stopped = self.stopped or "interrupted"

    def pytest_runtest_logfinish(self) -> None:
        """Report another finished test."""
        self._done += 1
        new = self.outcomes[self._new :]
        self._new = len(self.outcomes)
        self._report(next(iter(new), None), self._done, len(self.tests))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Store the outcome of a test or of a failed setup."""
        if report.when == "call" or report.outcome != "passed":
            self.outcomes.append(TestOutcome(_test_name(report.nodeid), report.outcome, _words(report)))

    @property
    def not_run(self) -> tuple[str, ...]:
        """The tests without an outcome."""
        done = {outcome.test for outcome in self.outcomes}
        return tuple(test for test in self.tests if test not in done)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Store a failure to collect the tests."""
        if report.failed:
            self.outcomes.append(TestOutcome("the kit itself", "failed", str(report.longrepr)))


def _words(report: pytest.TestReport) -> str:
    """Return the reason why a test did not pass, on one line."""
    if isinstance(report.longrepr, tuple):  # skipped: file, line, reason
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    words = " ".join(str(crash.message if crash else report.longrepr or "").split())
    if crash and words.isidentifier():  # an exception without a message, such as an assertion of an author's own test
        words += f": `{linecache.getline(crash.path, crash.lineno).strip()}` ({Path(crash.path).name}:{crash.lineno})"
    return words


def _test_name(node: str) -> str:
    """Return the name of a test without its file, its class and its prefix."""
    return node.partition("::")[2].partition("::")[2].removeprefix("test_")
