"""Tests that compare the results of a backend with eager also look at which nodes ran on it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from tests.support.sources import module_name, modules

BACKENDS = {"xnnpack", "dsp", "webgpu", "cuda", "openvino", "onnxruntime"}
LOWERS = {"to_backend", "compile"}  # `torch.compile` too
COMPARES = {"assert_same", "relative_error", "assert_array_equal", "equal"}
# What a test calls, or reads of a report and of a program, where it looks at which nodes a backend runs.
ASSERTS = {"assert_runs", "refused", "left", "answers"}
READS = {"backend", "backends", "partitions", "delegates", "verdicts", "plan", "answers"}


@dataclass
class Module:
    """The definitions of a module of tests by name, and the names that it imports from other such modules."""

    definitions: dict[str, list[ast.stmt]] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)

    @classmethod
    def parse(cls, source: str) -> Module:
        tree, made = ast.parse(source), cls()
        for node in tree.body:
            for name in _defined(node):
                made.definitions.setdefault(name, []).append(node)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests"):
                made.imports |= {alias.asname or alias.name: (str(node.module), alias.name) for alias in node.names}
        return made


def _defined(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name))


def unasserted(sources: Mapping[str, str]) -> list[str]:
    """Return the tests that compare results of a named backend and never look at what ran on it.

    A test is looked at with the functions, classes, constants and fixtures of tests that it uses, however far.

    Args:
        sources: the name of each module, e.g. "tests.e2e.test_models" -> its source.
    """
    parsed = {name: Module.parse(source) for name, source in sources.items()}
    found = []
    for name, module in parsed.items():
        for test in module.definitions:
            if test.startswith("test_"):
                nodes = list(_used(parsed, name, test))
                called = {_called(n.func) for n in nodes if isinstance(n, ast.Call)}
                texts = {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
                looks = called & ASSERTS or {n.attr for n in nodes if isinstance(n, ast.Attribute)} & READS
                if called & LOWERS and called & COMPARES and texts & BACKENDS and not looks:
                    found.append(f"{name}.{test}")
    return found


def _called(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _used(parsed: Mapping[str, Module], module: str, test: str) -> Iterator[ast.AST]:
    """Yield all nodes of a test and of what it uses."""
    seen, waiting = set[tuple[str, str]](), [(module, test)]
    while waiting:
        place = waiting.pop()
        if place in seen:
            continue
        seen.add(place)
        for node in (n for d in parsed[place[0]].definitions[place[1]] for n in ast.walk(d)):
            yield node
            name = getattr(node, "id", "") or getattr(node, "attr", "") or getattr(node, "arg", "")
            other = _resolve(parsed, place[0], name) if isinstance(name, str) and name else None
            if other is not None:
                waiting.append(other)


def _resolve(parsed: Mapping[str, Module], module: str, name: str) -> tuple[str, str] | None:
    """Return the module of tests that defines a name that another one uses: itself, or an import, or a fixture."""
    if name in parsed[module].definitions:
        return module, name
    if name in parsed[module].imports:
        other, own = parsed[module].imports[name]
        return _resolve(parsed, other, own) if other in parsed else None
    parts = module.split(".")
    fixtures = (".".join([*parts[:n], "conftest"]) for n in range(len(parts) - 1, 0, -1))
    return next(((f, name) for f in fixtures if f in parsed and name in parsed[f].definitions), None)


def test_every_test_of_a_backend_looks_at_what_ran() -> None:
    sources = {module_name(path): path.read_text("utf-8") for path in modules()}
    assert unasserted(sources) == []
    assert len(sources) > 300


HELPER = """
def lowered(module, backends):
    return delegate.to_backend(torch.export.export(module, (X,)), backends)
def ran(program):
    return {n.backend for n in program.report.nodes}
"""
FIXTURE = """
@pytest.fixture
def program():
    return delegate.to_backend(EXPORTED, BACKENDS)
BACKENDS = ["xnnpack"]
"""


@pytest.mark.parametrize(
    ("test", "is_found"),
    [
        ("def test_it():\n    assert_same(lowered(NET, 'xnnpack')(X), NET(X))", True),
        ("def test_it(program):\n    assert_same(program(X), NET(X))", True),
        ("NAME = 'dsp'\ndef test_it():\n    assert relative_error(lowered(NET, NAME)(X), NET(X)) < 1", True),
        ("def test_it(backend='dsp'):\n    assert_same(lowered(NET, backend)(X), NET(X))", True),
        ("def test_it():\n    assert_same(lowered(NET, [])(X), NET(X))", False),
        ("def test_it():\n    lowered(NET, 'xnnpack').save(PATH)", False),
        ("def test_it(program):\n    assert ran(program)\n    assert_same(program(X), NET(X))", False),
        ("def test_it(program):\n    assert_runs(program, 'xnnpack')\n    assert_same(program(X), NET(X))", False),
        ("def test_it(program):\n    assert program.plan == PLAN\n    assert_same(program(X), NET(X))", False),
        ("class Net:\n    name = 'dsp'\ndef test_it():\n    assert_same(lowered(Net(), [])(X), X)", True),
    ],
)
def test_tests_that_do_not_look_are_found(test: str, is_found: bool) -> None:
    source = f"from tests.helper import lowered, ran\n{test}\n"
    sources = {"tests.helper": HELPER, "tests.a.conftest": FIXTURE, "tests.a.test_a": source}
    assert unasserted(sources) == ["tests.a.test_a.test_it"] * is_found
