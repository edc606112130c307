"""Tests compare numbers only by `delegate.testing.assert_same`, and make no assertion that can hardly fail."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.support.sources import ROOT, modules

CLOSE = {
    "allclose", "assert_close", "assert_allclose", "assert_almost_equal", "assert_array_almost_equal",
}  # fmt: skip
CALLS = re.compile(rf"\b({'|'.join(sorted(CLOSE))})\(")
ABSOLUTE = {"abs", "absolute", "fabs", "norm"}

FAILURES = {"AssertionError", "Exception", "BaseException"}  # classes that catch a failed assertion


def own_comparisons(source: str) -> list[int]:
    """Return the lines of a module that compare numbers by something else."""
    return sorted({node.lineno for node in ast.walk(ast.parse(source)) if _compares(node)})


def _compares(node: ast.AST) -> bool:
    if isinstance(node, ast.FunctionDef):
        return node.name in {"assert_same", "relative_error", *CLOSE}
    if isinstance(node, ast.Compare):
        return isinstance(node.ops[-1], ast.Lt | ast.LtE) and _has_difference(node)
    if isinstance(node, ast.Constant):  # a script for another process
        return isinstance(node.value, str) and "\n" in node.value and bool(CALLS.search(node.value))
    if isinstance(node, ast.Assert):  # elsewhere it is the operator that is tested
        return any(isinstance(n, ast.Call) and _name(n) == "isclose" for n in ast.walk(node.test))
    return isinstance(node, ast.Call) and (_name(node) in CLOSE or (_name(node) == "max" and _has_difference(node)))


def _has_difference(node: ast.AST) -> bool:
    """Return true for the absolute value, or the norm, of a difference within an expression."""
    inner = [n for n in ast.walk(node) if isinstance(n, ast.Call) and _name(n) in ABSOLUTE]
    return any(isinstance(operand, ast.BinOp) and isinstance(operand.op, ast.Sub) for n in inner for operand in _of(n))


def _of(call: ast.Call) -> Iterator[ast.expr]:
    yield from call.args
    if isinstance(call.func, ast.Attribute):
        yield call.func.value


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def test_no_test_brings_its_own() -> None:
    lines = {str(p.relative_to(ROOT)): own_comparisons(p.read_text("utf-8")) for p in modules()}
    assert {name: lines for name, lines in lines.items() if lines} == {}
    assert len(lines) > 300


@pytest.mark.parametrize(
    "line",
    [
        "assert torch.allclose(a, b)",
        "assert np.isclose(a, b).all()",
        "torch.testing.assert_close(a, b, rtol=1e-3, atol=0)",
        "np.testing.assert_allclose(a, b)",
        "assert np.abs(a - b).max() < 1e-3",
        "assert (a - b).abs().max() / b.abs().max() < 1e-3",
        "assert torch.max(torch.abs(a - b)) < 1e-3",
        "error = max(abs(x - y) for x, y in zip(a, b))",
        "assert 0 < np.median(np.abs(a - b)) < 1e-3 * np.abs(b).max()",
        "assert (a - b).norm() < 1e-3 * b.norm()",
        "assert abs(a - b) <= 1e-3",
        "SCRIPT = 'import numpy as np\\nnp.testing.assert_allclose(a, b)'",
        "def relative_error(a, b): ...",
    ],
)
def test_own_comparisons_are_seen(line: str) -> None:
    assert own_comparisons(f"x = 1\n{line}\n") == [2]


def test_others_are_not() -> None:
    assert own_comparisons("assert_same(a, b)\nassert torch.equal(a, b)\nassert x.abs().max() > 1\n") == []


def weak_assertions(source: str) -> list[int]:
    """Return the lines of assertions that can hardly fail.

    They are of one text or another; or their failure is caught and hidden; or they are of every element that a filter
    leaves, where no assertion says that it leaves any. A list with a name has such an assertion of its own.
    """
    tree = ast.parse(source)
    either = [n.lineno for n in ast.walk(tree) if isinstance(n, ast.Assert) and _has_either(n.test)]
    hidden = [
        n.lineno
        for t in ast.walk(tree)
        if (isinstance(t, ast.Try) and any(map(_hides, t.handlers))) or (isinstance(t, ast.With) and _suppresses(t))
        for statement in t.body
        for n in ast.walk(statement)
        if isinstance(n, ast.Assert)
    ]
    loops = [
        n for n in ast.walk(tree) if isinstance(n, ast.For) and any(isinstance(a, ast.Assert) for a in ast.walk(n))
    ]
    filtered = [n.lineno for n in loops if _filters(n.iter)]
    of_all = [n.lineno for n in ast.walk(tree) if isinstance(n, ast.Assert) and any(map(_is_of_all, ast.walk(n.test)))]
    return sorted({*either, *hidden, *filtered, *of_all})


def _filters(node: ast.expr) -> bool:
    """Return true for a comprehension with a condition, or a call of `filter`."""
    if isinstance(node, ast.Call):
        return _name(node) == "filter"
    return isinstance(node, ast.GeneratorExp | ast.ListComp) and any(g.ifs for g in node.generators)


def _is_of_all(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _name(node) == "all" and any(map(_filters, node.args))


def _suppresses(node: ast.With) -> bool:
    """Return true for a `with suppress(...)` of failed assertions."""
    calls = [i.context_expr for i in node.items if isinstance(i.context_expr, ast.Call)]
    return any(_name(c) == "suppress" and bool(_names(*c.args) & FAILURES) for c in calls)


def _names(*nodes: ast.expr) -> set[str]:
    return {n.id for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name)}


def _has_either(test: ast.expr) -> bool:
    """Return true for an `or` of two tests with `in`."""
    ors = (n.values for n in ast.walk(test) if isinstance(n, ast.BoolOp) and isinstance(n.op, ast.Or))
    return any(sum(isinstance(v, ast.Compare) and isinstance(v.ops[0], ast.In) for v in values) > 1 for values in ors)


def _hides(handler: ast.ExceptHandler) -> bool:
    """Return true for a handler that catches failed assertions and raises nothing."""
    names = _names(handler.type) if handler.type else {"BaseException"}
    raises = any(isinstance(n, ast.Raise) for statement in handler.body for n in ast.walk(statement))
    return not raises and bool(names & FAILURES)


@pytest.mark.extended
def test_no_assertion_is_weak() -> None:
    lines = {str(p.relative_to(ROOT)): weak_assertions(p.read_text("utf-8")) for p in modules()}
    assert {name: lines for name, lines in lines.items() if lines} == {}


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("assert 'a' in x or 'b' in x", [1]),
        ("assert any('a' in l or 'b' in l for l in x)", [1]),
        ("try:\n    assert x == 1\nexcept AssertionError:\n    pass", [2]),
        ("try:\n    assert x == 1\nexcept:\n    pass", [2]),
        ("try:\n    assert x == 1\nexcept Exception as error:\n    raise ValueError from error", []),
        ("try:\n    assert x == 1\nfinally:\n    x.close()", []),
        ("assert 'a' in x and 'b' in x", []),
        ("with suppress(OSError, AssertionError):\n    assert x == 1", [2]),
        ("with suppress(OSError):\n    assert x == 1", []),
        ("for x in (y for y in z if y):\n    assert x == 1", [1]),
        ("for x in filter(None, z):\n    assert x == 1", [1]),
        ("for x in (y for y in z if y):\n    x.close()", []),
        ("for x in [y + 1 for y in z]:\n    assert x == 1", []),
        ("assert all(x == 1 for x in z if x)", [1]),
        ("assert all(filter(None, z))", [1]),
        ("assert all(x == 1 for x in z)", []),
    ],
)
def test_weak_assertions_are_seen(source: str, lines: list[int]) -> None:
    assert weak_assertions(source) == lines
