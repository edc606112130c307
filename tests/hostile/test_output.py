"""Control characters in names: no command prints them, in any of its forms, on either stream."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from delegate.cli.app import app
from delegate.program import file
from delegate.program.model import Input, Symbol
from tests.program.samples import dynamic, replace_method, replace_value

EVIL = "\x1b]0;owned\x07\x1b[31m\r\x08\x9b2J\u202e\u2066\u200b\x00\u2028"
FORMS = [
    ("inspect", "FILE"), ("inspect", "FILE", "--json"), ("explain", "FILE"), ("explain", "FILE", "--json"),
    ("run", "FILE"), ("run", "FILE", "--json"), ("run", "FILE", "--profile"), ("run", "FILE", "--method", EVIL),
    ("run", "FILE", "--input", f"{EVIL}=x"), ("run", "FILE", "--kernels", EVIL), ("--debug", "run", "FILE"),
    ("run", "FILE", "--output", EVIL), ("run", EVIL), ("inspect", EVIL), ("explain", EVIL), ("config", "check", EVIL),
    ("config", "check", "YAML"), ("backends", EVIL), ("backends", EVIL, "--json"), ("ops", EVIL), (EVIL,),
    ("run", "FILE", "--fallback", EVIL), ("run", "FILE", "--repeat", EVIL), ("lower", EVIL, "-o", "x.dlg"),
    ("lower", f"{EVIL}:f", "-o", "x.dlg"), ("inspect", "DAMAGED"), ("run", "DAMAGED"), ("ops", "--import", EVIL),
    ("new-backend", EVIL), ("check-backend", EVIL), ("check-backend", EVIL, "--json"), ("cache", "info"),
    ("cache", EVIL), ("explain", "FILE", "--import", EVIL), ("lock", "diff", EVIL, EVIL), ("lock", "check", EVIL, EVIL),
    ("lock", "diff", "DAMAGED", "FILE"), ("measure", EVIL), ("measure", "DAMAGED"), ("measure", "FILE", "-o", EVIL),
    ("lower", "m.pt2", "-o", EVIL), ("lower", "m.pt2", "--bundle", EVIL), ("new-backend", "mine", "-o", f"{EVIL}/x"),
    ("lower", "m.pt2", "-o", "x.dlg", "--lock", EVIL),
]  # fmt: skip


@pytest.fixture(scope="module")
def paths(tmp_path_factory) -> dict[str, str]:
    where = tmp_path_factory.mktemp("evil")
    report = json.dumps({"format": 1, "methods": [EVIL], "nodes": [], "partitions": [], "notes": [EVIL]})
    program = replace_value(dynamic(), 1, name=EVIL)._replace(report=report, operators=(EVIL,))
    program = replace_method(
        program,
        name=EVIL,
        inputs=(Input(EVIL, 0),),
        sources=(EVIL,),
        symbols=(Symbol(EVIL, 2, None, 0, 0), *program.methods[0].symbols[1:]),
    )
    file.save(program, where / "p.dlg")
    broken = replace_value(program, 1, at=99, name=EVIL)
    (where / "damaged.dlg").write_bytes(b"".join(file.assemble(broken)))
    (where / "c.yaml").write_text(f'version: 1\nbackends: ["{EVIL.encode("unicode_escape").decode()}"]\n')
    return {"FILE": str(where / "p.dlg"), "DAMAGED": str(where / "damaged.dlg"), "YAML": str(where / "c.yaml")}


@pytest.mark.parametrize("form", FORMS, ids=lambda form: ascii(" ".join(form)))
def test_no_command_prints_control_characters(form, paths, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    require_printable([paths.get(part, part) for part in form])


def require_printable(args):
    """Fail if a command prints a control character, or invalid JSON."""
    done = CliRunner().invoke(app, args)
    text = done.stdout + done.stderr
    assert text
    shown = {c for c in text if not c.isprintable() and c not in "\n\t"}
    assert not shown, text[:2000]
    if "--json" in args and done.exit_code == 0:
        json.loads(done.stdout)


def test_json_says_what_the_names_are(paths):
    done = CliRunner().invoke(app, ["inspect", paths["FILE"], "--json"])
    assert json.loads(done.stdout)["operators"] == [EVIL]


def test_every_command_has_a_form():
    import typer

    commands = set(typer.main.get_command(app).commands)
    assert commands - {"demo"} <= {part for form in FORMS for part in form}
