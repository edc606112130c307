"""`delegate check-backend`: its options, failures as they come, and results of tests that did not all run."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from delegate_testing import checking, command
from delegate_testing.checking import TIME_IS_UP, run_kit
from typer.testing import CliRunner

from delegate.backend.state import BackendState
from delegate.cli.app import app
from delegate.plugins import PluginState

TESTS = """
import torch
from delegate.testing import BackendTests, Case

class TestXnnpack(BackendTests):
    backend = "xnnpack"
    cases = {"own": Case(torch.nn.ReLU(), (torch.ones(2),))}

    def another_version(self, blob):
        return b"other" + blob

    def test_of_its_own(self):
        assert False, "it fails"

    def test_of_its_own_without_words(self):
        left, right = 1, 2
        assert left == right
"""


def check(*args: str) -> Any:
    return CliRunner().invoke(app, ["check-backend", *args])


@pytest.mark.extended
def test_selected_tests_with_the_settings_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(TESTS)
    done = check(
        "xnnpack", "--json", "--tests", str(tmp_path / "own.py"), "-k", "schema or (own and version) or of_its"
    )
    assert done.exit_code == 1
    assert "failed: of_its_own: AssertionError: it fails" in done.stderr, "before the end"
    words = "of_its_own_without_words: AssertionError: `assert left == right` (own.py:17)"
    assert f"failed: {words}" in done.stderr
    outcomes = {test["test"]: test["outcome"] for test in json.loads(done.stdout)["tests"]}
    assert outcomes == {
        "its_options_have_a_schema": "passed",
        "of_its_own": "failed",
        "of_its_own_without_words": "failed",
        "blobs_of_another_version_are_refused[own]": "passed",
    }


@pytest.mark.parametrize(
    ("content", "words"),
    [("x = 1", "no subclass of BackendTests for backend 'xnnpack'"), ("import nothing_here", "cannot be run: ")],
)
def test_files_without_tests(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "own.py").write_text(content)
    done = check("xnnpack", "--tests", str(tmp_path / "own.py"))
    assert done.exit_code == 1
    assert words in done.stderr


def test_quick_in_several_processes_is_wrong_usage() -> None:
    assert check("xnnpack", "--quick", "-n", "2").exit_code == 2


def test_it_stops_after_a_time_with_each_test_once_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ticks = iter(range(1000))
    clock = SimpleNamespace(monotonic=lambda: 7.0 * next(ticks), perf_counter=time.perf_counter)
    monkeypatch.setattr(checking, "time", clock)  # not in the module `time`, whose clock other threads read too
    result = run_kit("xnnpack", seconds=20, keyword="schema or two_plans or corrupt")  # the last is slow
    assert result.stopped == TIME_IS_UP
    tests = [o.test.partition("[")[0] for o in result.tests]
    assert tests == ["its_options_have_a_schema", "two_plans_are_the_same", "corrupt_blobs_do_no_harm"]
    assert result.total > 40
    assert result.is_green
    assert len(result.not_run) == result.total - 3
    assert {test.partition("[")[0] for test in result.not_run} == {"two_plans_are_the_same", "corrupt_blobs_do_no_harm"}
    assert not {o.test for o in result.tests} & {*result.not_run}
    state = BackendState("xnnpack", PluginState.OK, "delegate", "1.0")
    command._print(state, {"aot": "ok", "runtime": "ok"}, result)
    shown = capsys.readouterr().out
    assert f"not run:      {result.total - 3} tests: two_plans_are_the_same (" in shown


def test_a_start_that_takes_all_the_time_leaves_some_for_tests() -> None:
    result = run_kit("xnnpack", seconds=-5, keyword="schema")
    assert (len(result.tests), result.stopped) == (1, "")


def test_an_interrupt_leaves_the_results_so_far() -> None:
    def interrupt(outcome: object, done: int, total: int) -> None:
        raise KeyboardInterrupt

    result = run_kit("xnnpack", interrupt, keyword="schema or runs_there")
    assert result.stopped == "interrupted"
    assert [o.test for o in result.tests] == ["its_options_have_a_schema"]
    assert not result.is_green


@pytest.mark.slow
def test_several_processes() -> None:
    result = run_kit("xnnpack", keyword="schema or runs_there", workers=2)
    assert result.is_green
    assert result.total == len(result.tests) > 10
