"""The code in docs/how-to/report.md runs."""

from __future__ import annotations

import re
from pathlib import Path

TEXT = (Path(__file__).parents[3] / "docs" / "how-to" / "report.md").read_text()


def test_the_documented_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    exec(code, {})
    assert "Runs" in (tmp_path / "report.html").read_text()
