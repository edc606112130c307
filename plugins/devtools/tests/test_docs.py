"""The code in docs/how-to/debugging.md runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pages import DOCS, run_page


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(DOCS / "how-to" / "debugging.md")
