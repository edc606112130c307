"""The README and the pages in docs/ claim nothing stale that can be read: links, paths, commands, options, names."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

from delegate.cli.app import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
WRITTEN_BY_READERS = {"tests/test_acme.py"}  # the tutorial has its reader write it

_LINK = re.compile(r"\]\(([\w./#:-]+)\)")
_PATH = re.compile(r"`((?:delegate|tests|docs|configs|examples|benchmarks|plugins|tools)/[\w./-]+)`")
_COMMAND = re.compile(r"(?:^    |`)delegate ([a-z][^`\n]*)", re.MULTILINE)
_FENCED = re.compile(r"^( *)```(?:sh|text)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_OPTION = re.compile(r"(?<!\S)--[a-z][a-z-]*")


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def broken_links(page: Path) -> list[str]:
    found = []
    for link in _LINK.findall(page.read_text()):
        path, _, anchor = link.partition("#")
        target = page if not path else page.parent / path
        if "://" not in link and (not target.exists() or (anchor and anchor not in anchors(target))):
            found.append(link)
    return found


def missing_paths(text: str) -> list[str]:
    return [p for p in _PATH.findall(text) if p not in WRITTEN_BY_READERS and not (ROOT / p).exists()]


def unknown_commands(text: str) -> list[str]:
    """Return the `delegate ...` lines whose command or options the command line does not have."""
    found = []
    indented = _FENCED.sub(lambda block: re.sub(rf"^{block[1]}", "    ", block[2], flags=re.MULTILINE), text)
    for line in _COMMAND.findall(indented):
        words = line.split("  ")[0].split()
        command: Any = typer.main.get_command(app)
        while words and hasattr(command, "commands") and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        if hasattr(command, "commands"):
            if words and re.fullmatch(r"[a-z-]+", words[0]):
                found.append(line)
            continue
        known = {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"--help", "--debug"}
        found += [line] * (not known.issuperset(_OPTION.findall(" ".join(words))))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_paths_and_commands_are_there(page: Path) -> None:
    text = page.read_text()
    assert (broken_links(page), missing_paths(text), unknown_commands(text)) == ([], [], [])


def missing_names(glossary: str) -> list[str]:
    """Return the modules, and the names "in" modules, of a glossary's last column that do not exist."""
    missing = []
    for cell in re.findall(r"\| ([^|]*) \|$", glossary, re.MULTILINE):
        for names, module in re.findall(r"((?:`\w+`(?:, | in ))*)`\.([\w.]+)`", cell):
            try:
                found = importlib.import_module(f"delegate.{module}")
            except ModuleNotFoundError:
                missing.append(module)
                continue
            missing += [f"{module}.{name}" for name in re.findall(r"\w+(?=`)", names) if not hasattr(found, name)]
    return missing


def test_the_glossary_names_what_exists() -> None:
    assert missing_names((ROOT / "docs" / "glossary.md").read_text()) == []
    rows = "| a | b | `Plan`, `Gone` in `.partitioner.plan` |\n| a | b | `.gone` |\n| a | b | |\n"
    assert missing_names(rows) == ["partitioner.plan.Gone", "gone"]


def test_stale_claims_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A title\n[a](#a-title) [b](#gone) [c](gone.md)\n")
    assert broken_links(page) == ["#gone", "gone.md"]
    assert missing_paths("`tests/gone.py` `tests/test_claims.py`") == ["tests/gone.py"]
    lines = "    delegate vanish x\n    delegate run FILE --vanish\n    delegate run FILE --profile"
    assert unknown_commands(lines) == ["vanish x", "run FILE --vanish"]
    assert unknown_commands("  ```sh\n  delegate vanish\n  ```\n") == ["vanish"]


def test_no_page_installs_the_project_from_an_index() -> None:
    assert [p.name for p in PAGES if re.search(r"pip install '?delegate\b", p.read_text())] == []
