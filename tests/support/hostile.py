"""Names and files that an attacker would choose: control characters, damaged programs, pipes."""

from __future__ import annotations

import json
import os
import threading

import pytest
from typer.testing import CliRunner

from delegate.cli.app import app
from delegate.errors import DelegateError
from delegate.program import file
from delegate.program.expr import Symbol
from delegate.program.model import (
    Input,
)
from tests.support.programs import dynamic, replace_method, replace_value

EVIL = "\x1b]0;owned\x07\x1b[31m\r\x08\x9b2J\u202e\u2066\u200b\x00\u2028"


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


def require_printable(args):
    """Fail if a command prints a control character, or invalid JSON."""
    done = CliRunner().invoke(app, args)
    text = done.stdout + done.stderr
    assert text
    shown = {c for c in text if not c.isprintable() and c not in "\n\t"}
    assert not shown, text[:2000]
    if "--json" in args and done.exit_code == 0:
        json.loads(done.stdout)


def require_no_wait(read, path):
    """Fail if reading a pipe waits for a writer, or is no error."""
    os.mkfifo(path)
    errors = []

    def use():
        try:
            read(path)
        except (DelegateError, OSError) as error:
            errors.append(str(error))

    thread = threading.Thread(target=use, daemon=True)
    thread.start()
    thread.join(10)
    assert len(errors) == 1
    assert any(words in errors[0] for words in ("pipe", "not a file"))
