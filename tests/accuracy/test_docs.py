"""The code in docs/reference/accuracy.md runs, and its configuration is valid."""

from __future__ import annotations

import re
from pathlib import Path

from delegate.config import load_config

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "accuracy.md").read_text()


def test_the_documented_code(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    exec(code, {})
    printed = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in printed[:2]] == ["forward against the float reference", "  xnnpack_0"]
    assert len(printed[2].split()) == 4


def test_the_documented_configuration(tmp_path):
    (text,) = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "c.yaml").write_text(text)
    verify = load_config(tmp_path / "c.yaml").verify
    assert verify is not None
    assert (verify.sqnr_db, verify.relative_error, verify.on_failure) == (40, 0.01, "move")
