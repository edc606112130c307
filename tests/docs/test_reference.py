"""The reference is complete, and its parts that come from code have what the code has."""

from __future__ import annotations

import importlib.util
import re
import sys
from types import ModuleType

import pytest

import delegate
from delegate import errors
from delegate.config import Config
from tests.support.availability import require
from tests.support.pages import DOCS

API = "".join(page.read_text() for page in sorted((DOCS / "reference").rglob("*.md")))


@pytest.fixture(scope="module")
def generated() -> ModuleType:
    """The module that fills in pages when the site is built."""
    spec = importlib.util.spec_from_file_location("generated", DOCS / "generated.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["generated"] = module
    spec.loader.exec_module(module)
    return module


def test_every_public_name_has_its_docstring_on_a_page(generated: ModuleType) -> None:
    directives = re.findall(r"^\.\. auto\w+:: (?:delegate\.)?(\w+)$", API, re.MULTILINE)
    classes = {c.__name__ for c in generated.classes()}
    assert [name for name in delegate.__all__ if name not in {*directives, *classes}] == []


def test_every_marker_stands_on_a_page(generated: ModuleType) -> None:
    used = [m for page in DOCS.rglob("*.md") for m in generated.MARKER.findall(page.read_text())]
    assert sorted(used) == sorted(generated.PARTS)


def test_every_page_is_in_a_table_of_contents(generated: ModuleType) -> None:
    listed, waiting = set(), [DOCS / "index.md"]
    while waiting:
        page = waiting.pop()
        listed.add(page)
        if page.name in ("index.md", "README.md"):
            names = re.findall(r"^([\w./-]+)$", generated.contents(page.read_text()), re.MULTILINE)
            waiting += [p for n in names if (p := (page.parent / f"{n}.md").resolve()) not in listed]
    assert sorted(p.name for p in set(DOCS.rglob("*.md")) - listed) == []


def test_commands_have_their_options(generated: ModuleType) -> None:
    text = generated.cli()
    assert "## `delegate lower`" in text
    assert "delegate lower MODEL [OPTIONS]\n" in text
    assert "delegate backends [NAME] [OPTIONS]\n" in text
    assert "## `delegate config check`" in text
    assert re.search(r"\| `--repeat` \| `1` \| Number of timed runs", text)


def test_keys_are_those_of_the_configuration(generated: ModuleType) -> None:
    text = generated.yaml_keys()
    assert [key for key in Config.model_fields if f"| `{key}` |" not in text] == []
    assert {path for path, _ in generated.sections()} >= {"", "backends[]", "partitioning", "placement.accuracy"}
    assert re.search(r"\| `on_failure` \| `error`, `warn`, `move` \| `error` \|", text)
    assert re.search(r"\| `max_mb` \| integer, at least 1 \| `4096` \|", text)


def test_options_are_those_of_the_backends(generated: ModuleType) -> None:
    text = generated.backend_options()
    assert re.findall(r"^## `(\w+)`$", text, re.MULTILINE) == ["xnnpack", "webgpu", "cuda", "dsp"]
    assert "| `half` | `border`, `every` | `border` |" in text
    assert "Options of `delegate.load`: `threads` (int), `weight_cache` (bool)." in text
    assert re.findall(r"^.*\|  +\|$", text, re.MULTILINE) == []  # an option without a description


def test_the_support_matrix_has_the_backends_with_tables(generated: ModuleType) -> None:
    for backend in ("cuda", "dsp", "webgpu"):
        require(backend)
    text = generated.support_matrix()
    assert "| operator | kind | portable | cuda | dsp | webgpu | xnnpack |" in text
    assert "| `aten.add.Tensor` | core |" in text


def test_errors_are_those_of_the_code(generated: ModuleType) -> None:
    assert generated.classes()[0] is errors.DelegateError
    assert "| `InputError` | `ExecutionError` |" in generated.error_classes()
    assert "| `there is no configuration file …` | check the path |" in generated.error_messages()


def test_messages_of_the_troubleshooting_page_are_in_the_code(generated: ModuleType) -> None:
    page = (DOCS / "how-to" / "troubleshooting.md").read_text()
    headings = re.findall(r"^### `(.*)`$", page, re.MULTILINE)
    folders = (generated.ROOT, *generated.ROOT.parent.glob("plugins/*/delegate_*"))
    code = "".join(file.read_text("utf-8") for folder in folders for file in folder.rglob("*.py"))
    parts = [part for heading in headings for part in re.split(r"\[?…\]?,?", heading)]
    assert len(headings) > 15
    assert [part for part in parts if part.strip() not in code] == []
