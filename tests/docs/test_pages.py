"""The code of tutorials and how-to pages runs and prints what they show."""

from __future__ import annotations

import re
import tomllib
import warnings
from pathlib import Path

import pytest

from tests.support.pages import DOCS, blocks, run_page

GUIDES = sorted(page for part in ("tutorials", "how-to") for page in (DOCS / part).glob("*.md"))
SLOW: set[str] = set()
# Pages whose code another test runs.
ELSEWHERE = {
    "backend.md": "tests/cli/test_new_backend.py",
    "batch.md": "plugins/ray/tests/test_docs.py",
    "debugging.md": "plugins/devtools/tests/test_docs.py",
    "llm.md": "plugins/llm/tests/test_llm.py",
    "llm-conversations.md": "plugins/llm/tests/test_lora.py",
    "placement.md": "tests/placement/test_measured.py",
    "profiling.md": "plugins/devtools/tests/test_docs.py",
    "quantization.md": "tests/quantization/test_docs.py",
    "report.md": "tests/report/page/test_docs.py",
    "serve.md": "plugins/serve/tests/test_docs.py",
    "serve-shared-memory.md": "plugins/serve/tests/test_docs.py",
    "torch-compile.md": "plugins/torch-compile/tests/test_docs.py",
}
_EXTRAS = re.compile(r"pip install [^\n]*?([\w./-]*(?:\.|delegate|plugins/\w+))\[([\w,-]+)\]")


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


def test_installed_extras_exist() -> None:
    """The commands that the runner leaves out, since they need a network."""
    missing = []
    for page in DOCS.rglob("*.md"):
        for path, names in _EXTRAS.findall(page.read_text()):
            folder = DOCS.parent / path.removeprefix("./") if "plugins/" in path else DOCS.parent
            extras = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["optional-dependencies"]
            missing += [f"{page.name}: {name}" for name in names.split(",") if name not in extras]
    assert missing == []


@pytest.mark.parametrize("name", ELSEWHERE)
def test_the_other_test_reads_the_page(name: str) -> None:
    assert (DOCS.parent / ELSEWHERE[name]).exists()
