"""The code of tutorials and how-to pages runs and prints what they show, and every page is short."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

from tests.support.pages import DOCS, blocks, run_page

GUIDES = sorted(page for part in ("tutorials", "how-to") for page in (DOCS / part).glob("*.md"))
SLOW: set[str] = set()
# Pages whose code another test runs, and why.
ELSEWHERE = {
    "backend.md": "tests/cli/test_new_backend.py installs the package that it writes",
    "llm.md": "its commands need a model's folder; tests/e2e has the example",
}
WORDS = 1500
GENERATED = {"support-matrix.md"}  # one table, which a command writes


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(p, marks=pytest.mark.slow) if p.name in SLOW else p
        for p in GUIDES
        if p.name not in ELSEWHERE and {b.kind for b in blocks(p)} & {"python", "sh"}
    ],
    ids=lambda page: f"{page.parent.name}/{page.stem}",
)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # a page may show what warns
        run_page(page)


def words(page: Path) -> int:
    """Return the number of words of a page, tables included and code excluded."""
    text = re.sub(r"^( *)```.*?^ *```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return sum(bool(re.search(r"\w", word)) for word in text.split())


@pytest.mark.parametrize(
    "page", [p for p in sorted(DOCS.rglob("*.md")) if p.name not in GENERATED], ids=lambda page: page.name
)
def test_a_page_is_short(page: Path) -> None:
    assert words(page) <= WORDS
