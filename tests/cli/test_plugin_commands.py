"""Commands of other packages: listed in the help, run, and one clear error if they cannot be used."""

from __future__ import annotations

import pytest

from delegate.plugins import COMMANDS
from tests.cli.programs import save_sum
from tests.support.commands import FAILED, USAGE, call

GREET = '''
from typing import Annotated

import typer


def greet(name: Annotated[str, typer.Argument(help="Somebody.")], loud: bool = False) -> None:
    """Greet somebody. More text."""
    print(f"hello {name}".upper() if loud else f"hello {name}")
'''


@pytest.fixture
def greeting(site):
    site.module("greetings", GREET)
    site.distribution("greet-tool", "1.0", {"greet": "greetings:greet"}, COMMANDS)
    return site


@pytest.mark.usefixtures("greeting")
def test_a_command_of_a_package_runs_as_the_others_do():
    assert "  greet" in call("--help")[0]
    assert "Greet somebody.\n" in call("--help")[0]
    assert call("greet", "you")[0] == "hello you\n"
    assert call("greet", "you", "--loud")[0] == "HELLO YOU\n"
    assert "Somebody." in call("greet", "--help")[0]
    assert "greet" in call("greet", code=USAGE)[1]


def test_the_names_of_this_project_stay(greeting):
    greeting.distribution("taker", "1.0", {"run": "greetings:greet"}, COMMANDS)
    assert "Run a program file" in call("run", "--help")[0]
    assert call("--help")[0].count("\n  run ") == 1


def test_a_command_or_an_option_of_a_package_that_is_not_installed(monkeypatch, tmp_path):
    monkeypatch.setattr("delegate.plugins.find_plugins", dict)
    assert "delegate-devtools, which is not installed: pip install ./plugins/devtools" in call("diff", code=FAILED)[1]
    program = str(save_sum(tmp_path / "sum.dlg"))
    message = call("run", program, "--trace", str(tmp_path / "t.json"), code=FAILED)[1]
    assert "--trace needs the package delegate-devtools, which is not installed: pip install" in message


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("absent_module:f", "command 'bad' of odd 1.0 is broken: it fails to import: ModuleNotFoundError"),
        ("greetings:absent", "command 'bad' of odd 1.0 is broken: it fails to import: AttributeError"),
        ("greetings:__name__", "command 'bad' of odd 1.0 is broken: it provides str at greetings:__name__"),
    ],
)
def test_a_broken_command_leaves_the_others_alone(greeting, value, message):
    greeting.distribution("odd", "1.0", {"bad": value}, COMMANDS)
    assert "Not usable: command 'bad'" in call("--help")[0]
    stderr = call("bad", "x", "--option", code=FAILED)[1]
    assert message in stderr
    assert stderr.endswith("update or uninstall odd\n")
    assert call("greet", "you")[0] == "hello you\n"


def test_two_packages_with_one_command(greeting):
    greeting.distribution("other", "1.0", {"greet": "greetings:greet"}, COMMANDS)
    stderr = call("greet", "you", code=FAILED)[1]
    assert "several distributions provide the command 'greet': greet-tool 1.0 and other 1.0" in stderr


def test_a_blocked_command(greeting, monkeypatch):
    monkeypatch.setenv("DELEGATE_BLOCK_PLUGINS", "greet")
    assert "command 'greet' is blocked" in call("greet", "you", code=FAILED)[1]
