"""Control characters in names: no command prints them, in any of its forms, on either stream."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from delegate.cli.app import app
from tests.support.hostile import EVIL, require_printable

FORMS = [
    ("inspect", "FILE"), ("inspect", "FILE", "--json"), ("explain", "FILE"), ("explain", "FILE", "--json"),
    ("run", "FILE"), ("run", "FILE", "--json"), ("run", "FILE", "--profile"), ("run", "FILE", "--method", EVIL),
    ("run", "FILE", "--input", f"{EVIL}=x"), ("run", "FILE", "--kernels", EVIL), ("--debug", "run", "FILE"),
    ("run", "FILE", "--output", EVIL), ("run", EVIL), ("inspect", EVIL), ("explain", EVIL), ("config", "check", EVIL),
    ("config", "check", "YAML"), ("backends", EVIL), ("backends", EVIL, "--json"), (EVIL,),
    ("run", "FILE", "--fallback", EVIL), ("run", "FILE", "--repeat", EVIL), ("lower", EVIL, "-o", "x.dlg"),
    ("lower", f"{EVIL}:f", "-o", "x.dlg"), ("inspect", "DAMAGED"), ("run", "DAMAGED"),
    ("new-backend", EVIL), ("check-backend", EVIL), ("check-backend", EVIL, "--json"), ("cache", "info"),
    ("cache", EVIL), ("explain", "FILE", "--import", EVIL), ("lock", "diff", EVIL, EVIL), ("lock", "check", EVIL, EVIL),
    ("lock", "diff", "DAMAGED", "FILE"),
    ("lower", "m.pt2", "-o", EVIL), ("lower", "m.pt2", "--bundle", EVIL), ("new-backend", "mine", "-o", f"{EVIL}/x"),
    ("lower", "m.pt2", "-o", "x.dlg", "--lock", EVIL), ("strip", "FILE", "-o", "x.dlg"), ("strip", EVIL),
    ("report", "FILE", "-o", "x.html"), ("report", "FILE", "-o", EVIL), ("report", EVIL, "-o", "x.html"),
    ("calibrate", EVIL),
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS, ids=lambda form: ascii(" ".join(form)))
def test_no_command_prints_control_characters(form, paths, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    require_printable([paths.get(part, part) for part in form])


def test_json_says_what_the_names_are(paths):
    done = CliRunner().invoke(app, ["inspect", paths["FILE"], "--json"])
    assert json.loads(done.stdout)["operators"] == [EVIL]


def test_every_command_has_a_form():
    import typer

    commands = set(typer.main.get_command(app).commands)
    assert commands <= {part for form in FORMS for part in form}
