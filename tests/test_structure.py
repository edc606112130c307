"""The modules depend on each other in one direction, types and late imports included."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import delegate

ROOT = Path(delegate.__file__).parent


def _name(file: Path) -> str:
    parts = ("delegate", *file.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_no_module_reaches_itself():
    modules = {_name(file): file for file in ROOT.rglob("*.py")}
    del modules["delegate"]  # the public names, each imported when it is asked for
    graph = {name: set(_imported(file)) & modules.keys() - {name} for name, file in modules.items()}
    assert len(list(TopologicalSorter(graph).static_order())) == len(modules)  # a CycleError names a cycle
