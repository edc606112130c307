"""What the export assumed of sizes beyond their ranges: a program refuses what the exported module refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim

import delegate
from delegate.errors import InputError
from delegate.program.expr import Expr
from delegate.testing import assert_same
from tests.support.functions import NamedFunction
from tests.support.values import counts, numbers

AUTO = {0: Dim.AUTO, 1: Dim.AUTO}
BATCH = {0: Dim("batch", min=2, max=64)}


class Windows(torch.nn.Module):
    """Attention of a shifted window, as SwinV2 pads and rolls."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, h, w, c = x.shape
        x = F.pad(x, (0, 0, 0, -w % 4, 0, -h % 4))
        x = torch.roll(x, (-2, -2), (1, 2)) if h > 4 else x
        return x.reshape(n, x.shape[1] // 4, 4, -1, 4, c).softmax(2)


def prefix(x, y):
    k = y.max().item()
    torch._check(k >= 0)
    torch._check(k < x.shape[0] - 1)
    return x[:k] * 2


def star(*tensors):
    return tensors[0].split(2), tensors[1] * 2


def either(x, y):
    return x + 1 if x.shape[0] > y.shape[0] or x.shape[1] == 3 else y * 2


# function, example, dynamic dimensions, [(what is given, what the message says; "" where it is taken)]
CASES: dict[str, tuple[Any, tuple[Any, ...], Any, list[tuple[tuple[Any, ...], str]]]] = {
    "parts": (
        lambda x, y: x.split(2),
        (numbers(6, 3), numbers(2)),
        (AUTO, None),
        [((numbers(6, 9), numbers(2)), ""), ((numbers(7, 3), numbers(2)), r"x\.shape\[0\]\) // 2\) == 3.*\[0\] is 7")],
    ),
    "a named size": (
        lambda x, y: x[: y.shape[0]] * 2,
        (numbers(3, 2), numbers(5)),
        (BATCH, {0: Dim.AUTO}),
        [((numbers(3, 2), numbers(6)), ""), ((numbers(6, 2), numbers(5)), r"batch.*batch is 6, y\.shape\[0\] is 5")],
    ),
    "windows": (
        lambda x, y: Windows()(x),
        (numbers(1, 6, 6, 2), numbers(2)),
        ({1: Dim.AUTO, 2: Dim.AUTO}, None),
        [((numbers(1, 7, 5, 2), numbers(2)), ""), ((numbers(1, 3, 8, 2), numbers(2)), r"x\.shape\[1\]")],
    ),
    "a size from data": (
        prefix,
        (numbers(6, 3), counts(1, 2)),
        (AUTO, None),
        [((numbers(6, 3), counts(4, 3)), ""), ((numbers(6, 3), counts(5, 1)), r"u0 is 5")],
    ),
    "several": (
        either,
        (numbers(5, 3), numbers(4, 3)),
        (AUTO, AUTO),
        [
            ((numbers(9, 7), numbers(4, 7)), ""),
            ((numbers(3, 7), numbers(4, 7)), r"y\.shape\[0\]"),
            ((numbers(4, 7), numbers(4, 7)), r"y\.shape\[0\]"),
        ],
    ),
    "equal sizes are enough": (
        lambda x, y: x + 1 if x.shape[0] >= y.shape[0] else y * 2,
        (numbers(5, 3), numbers(4, 3)),
        ({0: Dim.AUTO}, {0: Dim.AUTO}),
        [((numbers(4, 3), numbers(4, 3)), ""), ((numbers(3, 3), numbers(4, 3)), r"y\.shape\[0\]")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("way", ["torch", "file", "pt2"])
def test_as_the_exported_module(name, way, tmp_path):
    function, example, dims, given = CASES[name]
    exported = torch.export.export(NamedFunction(function).eval(), example, dynamic_shapes=dims)
    module = exported.module()
    if way == "pt2":
        torch.export.save(exported, tmp_path / "model.pt2")
        exported = torch.export.load(tmp_path / "model.pt2")
    program = delegate.to_backend(exported, [])
    if way == "file":
        program.save(tmp_path / "model.dlg")
    run = delegate.load(tmp_path / "model.dlg") if way == "file" else program
    for inputs, message in [(example, ""), *given, (example, "")]:
        arrays = tuple(x.numpy() for x in inputs) if way == "file" else inputs
        if message:
            with pytest.raises((AssertionError, RuntimeError)):
                module(*inputs)
            names = message.replace("batch", ".*") if way == "pt2" else message  # torch forgets them
            with pytest.raises(InputError, match=names):
                run(*arrays)
        else:
            wanted, found = (
                torch.utils._pytree.tree_leaves(module(*inputs)),
                torch.utils._pytree.tree_leaves(run(*arrays)),
            )
            assert len(wanted) == len(found)
            for one, other in zip(found, wanted, strict=True):
                assert_same(np.asarray(one), other)


def test_inputs_of_a_variable_number():
    """Torch calls them xs[0] in guards, and xs_0 in programs."""

    class Star(torch.nn.Module):
        def forward(self, *xs: torch.Tensor) -> Any:
            return star(*xs)

    example = (numbers(6, 3), numbers(4))
    exported = torch.export.export(Star(), example, dynamic_shapes=(({0: Dim.AUTO}, None),))
    with pytest.raises(InputError, match=r"shape\[0\]\) // 2\) == 3"):
        delegate.to_backend(exported, [])(numbers(7, 3), numbers(4))


def test_guards_are_looked_at_once_per_shape(monkeypatch):
    function, example, dims, _ = CASES["parts"]
    exported = torch.export.export(NamedFunction(function).eval(), example, dynamic_shapes=dims)
    program = delegate.to_backend(exported, [])
    guards, looked = set(program.program.methods[0].guards), []
    evaluate = Expr.evaluate
    monkeypatch.setattr(Expr, "evaluate", lambda e, s: (looked.append(e) if e in guards else None, evaluate(e, s))[1])
    for _ in range(3):
        program(*example)
    assert len(looked) == len(guards) > 0


def test_what_cannot_be_kept_is_said():
    exported = torch.export.export(NamedFunction(torch.mul).eval(), (numbers(3), numbers(3)))
    exported._guards_code.append("L['x'].data_ptr() % 64 == 0")
    with pytest.warns(UserWarning, match=r"does not check this assumption of the export: L\['x'\]\.data_ptr"):
        delegate.to_backend(exported, [])


def test_a_number_that_follows_from_others_has_to_be_equal():
    class Times(torch.nn.Module):
        def forward(self, x, n: int):
            torch._check(n == x.shape[0])
            return x * n

    exported = torch.export.export(Times(), (numbers(5, 2), 5), dynamic_shapes=({0: Dim.AUTO}, Dim.AUTO))
    program = delegate.to_backend(exported, [])
    assert_same(program(numbers(4, 2), 4), numbers(4, 2) * 4)
    with pytest.raises(InputError, match="an assumption of the export"):
        program(numbers(4, 2), 3)
