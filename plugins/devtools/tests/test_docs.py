"""The code in the pages on debugging and profiling runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pages import DOCS, run_page


@pytest.mark.parametrize("page", ["debugging", "profiling"])
def test_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(DOCS / "how-to" / f"{page}.md")
