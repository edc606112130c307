"""The structure of the code: imports go one way, and the tests mirror the packages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import delegate
import tests
from tests.support.sources import ROOT, module_name, modules

PRODUCT = Path(delegate.__file__).parent


def _imported(source: str) -> Iterator[str]:
    """Yield the names of imported modules and of what is imported from them, late imports included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_no_module_reaches_itself():
    files = {module_name(file): file for file in PRODUCT.rglob("*.py")}
    del files["delegate"]  # the public names, each imported when it is asked for
    graph = {name: set(_imported(file.read_text())) & files.keys() - {name} for name, file in files.items()}
    assert len(list(TopologicalSorter(graph).static_order())) == len(files)  # a CycleError names a cycle


def wrong_imports(sources: Mapping[str, str], known: set[str]) -> list[str]:
    """Return the imports of modules with tests, and of helpers that belong to the tests of another folder.

    Args:
        sources: the name of each module -> its source.
        known: the names of all modules of the tests.
    """
    return [
        f"{name} imports {other}"
        for name, source in sources.items()
        for other in sorted(set(_imported(source)) & known)
        if other.rpartition(".")[2].startswith("test_") or _folder(other) not in {"", "support", _folder(name)}
    ]


def _folder(module: str) -> str:
    """Return the folder of tests that a module is in, or "" for a module outside of these folders."""
    first, _, rest = module.partition(".")
    return rest.partition(".")[0] if first == "tests" and "." in rest else ""


def test_tests_share_helpers_in_support():
    files = [*modules(), *(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]
    sources = {module_name(file): file.read_text("utf-8") for file in files}
    assert wrong_imports(sources, {name for name in sources if name.startswith("tests.")}) == []


@pytest.mark.parametrize(
    ("name", "line", "is_wrong"),
    [
        ("tests.a.test_a", "from tests.a.helper import x", False),
        ("tests.a.test_a", "from tests.support.helper import x", False),
        ("tests.a.test_a", "from tests.support import helper", False),
        ("tests.a.test_a", "from tests.a.test_b import x", True),
        ("tests.a.test_a", "from tests.a import test_b", True),
        ("tests.a.test_a", "def f():\n    from tests.b.helper import x", True),
        ("tests.support.helper", "from tests.a.helper import x", True),
        ("plugins.p.tests.test_a", "from tests.a.helper import x", True),
        ("plugins.p.tests.conftest", "import tests.conftest", False),
        ("tests.test_a", "import tests.test_b", True),
    ],
)
def test_wrong_imports_are_found(name, line, is_wrong):
    known = {
        "tests.conftest",
        "tests.test_b",
        "tests.a.helper",
        "tests.a.test_b",
        "tests.b.helper",
        "tests.support.helper",
    }
    assert bool(wrong_imports({name: line}, known)) == is_wrong


def test_folders_of_tests_mirror_the_packages():
    packages = {file.parent.name for file in PRODUCT.glob("*/__init__.py")}
    folders = {file.parent.name for file in (ROOT / "tests").glob("*/*.py")}
    others = re.findall(r"^(\w+): ", tests.__doc__ or "", re.MULTILINE)
    assert folders - packages == set(others)
