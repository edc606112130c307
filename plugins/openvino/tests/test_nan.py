"""NaN and infinity: with `nan: exact` as eager, with `fast`, the default, what may be lost is said."""

from __future__ import annotations

import pytest
import torch

import delegate
from delegate.testing import assert_same
from tests.backends.nan import CASES
from tests.e2e.test_dynamic import Function


def lowered(name: str, nan: str) -> delegate.DelegatedProgram:
    function, x = CASES[name]
    exported = torch.export.export(Function(function).eval(), (x,))
    return delegate.to_backend(exported, config={"backends": [{"name": "openvino", "options": {"nan": nan}}]})


def same(name: str, program: delegate.DelegatedProgram) -> None:
    function, x = CASES[name]
    assert_same(program(x), function(x))


@pytest.mark.parametrize("name", CASES)
def test_as_eager(name: str) -> None:
    same(name, lowered(name, "exact"))


@pytest.mark.parametrize("name", ["argmax", "max pool behind relu", "topk"])
def test_what_may_be_lost_is_said(name: str) -> None:
    program = lowered(name, "fast")
    notes = [n for p in program.report.partitions for n in p.notes]
    assert any(n.startswith("nan: fast, may become a number in ") for n in notes), notes
    with pytest.raises(AssertionError):
        same(name, program)


def test_the_refusal_says_it() -> None:
    (node,) = lowered("argmax", "exact").report.nodes
    assert "loses NaN" in str(node.verdicts)
