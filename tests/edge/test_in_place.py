"""Every in-place operator of torch: its pure form by the schema, and what programs make of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch
from torch._ops import OpOverload

import delegate
from delegate.edge.functional import pure_form
from delegate.errors import ExportError
from tests.support.functions import NamedFunction
from tests.support.lowering import assert_same
from tests.support.opinfo import database

# They write, but not the new values of one tensor: torch's own functionalisation, or a refusal, is right there.
# (shallow_copy_data_, an assignment to x.data, is of torch 2.14.)
WITHOUT = {
    *("aten._fill_mem_eff_dropout_mask_.default", "aten.requires_grad_.default", "aten.normal_.default"),
    *(f"aten._sobol_engine_{name}_.default" for name in ("ff", "initialize_state", "scramble")),
    *("aten.fill_diagonal_.default", "aten.rrelu_with_noise_.default", "aten.shallow_copy_data_.default"),
}


def in_place() -> Iterator[OpOverload]:
    """Torch's in-place operators: what ends in an underscore and writes to its first argument."""
    for qualified in sorted(torch._C._dispatch_get_all_op_names()):
        namespace, _, rest = qualified.partition("::")
        name, _, overload = rest.partition(".")
        if namespace == "aten" and name.endswith("_") and hasattr(torch.ops.aten, name):
            found = getattr(getattr(torch.ops.aten, name), overload or "default", None)
            if found is not None and found._schema.arguments and found._schema.arguments[0].is_write:
                yield found


def test_every_one_has_a_pure_form():
    found = {str(op): pure_form(op) for op in in_place()}
    lists = {name for name in found if name.startswith("aten._foreach") or name.startswith("aten._fused")}
    views = {str(op) for op in in_place() if torch.Tag.inplace_view in op.tags}
    assert {name for name, pure in found.items() if pure is None} - lists - views == WITHOUT & found.keys()
    assert len(found) > 300
    for op in in_place():
        pure = found[str(op)]
        if pure is not None:
            assert not pure._schema.is_mutable
            assert len(pure._schema.arguments) == len(op._schema.arguments)


def _alias_of_the_transposed(x, y):
    a = x + 1
    b = a.view(9)
    a.t_()
    return b * 1, a * y


def _written_behind_a_transposition(x, y):
    a = x + 1
    b = a[0]
    a.t_()
    a.mul_(2)
    a[0].add_(y[0])
    return b * 1, a * 1


CASES = {
    "pow": lambda x, y: (x + 1).pow_(2),
    "pow by a tensor": lambda x, y: (x.abs() + 1).pow_(y),
    "ldexp": lambda x, y: (x + 1).ldexp_(y.round()),
    "float_power": lambda x, y: (x.double() + 9).float_power_(2),
    "float_power by a tensor": lambda x, y: (x.double() + 9).float_power_(y),
    "floor_divide": lambda x, y: (x + 1).floor_divide_(y.abs() + 1),
    "and": lambda x, y: (x > 0).__iand__(y > 0),
    "or": lambda x, y: x.int().__ior__(y.int()),
    "shift": lambda x, y: x.abs().int().__ilshift__(2),
    "fill_diagonal": lambda x, y: (x + 1).fill_diagonal_(7.0),
    "dropout": lambda x, y: torch.dropout_(x + 1, 0.5, False),
    "transpose": lambda x, y: (x + 1).transpose_(0, 1),
    "squeeze": lambda x, y: (x[None] + 1).squeeze_(0),
    "an alias of what is transposed": _alias_of_the_transposed,
    "detach": lambda x, y: (x + 1).detach_() * y,
    "detach what is written": lambda x, y: (x + 1).detach_().mul_(y),
    "written behind a transposition": _written_behind_a_transposition,
}


@pytest.mark.parametrize("name", CASES)
def test_as_eager(name):
    inputs = tuple(torch.randn(3, 3, generator=torch.Generator().manual_seed(i)) * 2 for i in (0, 1))
    exported = torch.export.export(NamedFunction(CASES[name]).eval(), inputs)
    assert_same(delegate.to_backend(exported, [])(*inputs), CASES[name](*(x.clone() for x in inputs)))


def _parts_of_parts(x, parts):
    for i, part in enumerate(parts(x)):
        part[1:10].fill_(i).mul_(part.flip(0)[:1])
    return x


SPLITS = {
    "unbind": lambda x: x.unbind(1),
    "unbind from behind": lambda x: x.unbind(-2)[:2],
    "split": lambda x: [part.select(1, 0) for part in x.split(2, 1)],
    "sizes": lambda x: [part.select(1, 0) for part in x.split([1, 2], -2)],
    "chunk": lambda x: [part.select(1, 0) for part in x.chunk(2, 1)],
    "tensor_split": lambda x: [part.select(1, 0) for part in x.tensor_split([1, 2], 1)],
}


@pytest.mark.parametrize("name", SPLITS)
def test_parts_that_are_written(name, caplog):
    """Torch's own functionalization fixed the dynamic size, which only calls with another one found."""
    function = NamedFunction(lambda x: _parts_of_parts(x * 1, SPLITS[name]))
    x = torch.randn(4, 3, 6, generator=torch.Generator().manual_seed(0))
    sizes = {0: torch.export.Dim("rows", min=3, max=9)}
    exported = torch.export.export(function.eval(), (x,), dynamic_shapes=(sizes,))
    with caplog.at_level(logging.INFO, "delegate"):
        program = delegate.to_backend(exported, [])
    assert "run_decompositions" not in caplog.text
    for given in (x, x[:3], torch.cat([x, x])[:7]):
        assert_same(program(given), function(given))


def test_a_size_that_torch_fixes_is_an_error():
    """Torch's own functionalization looks at sizes where a part of one of several views is written."""

    def function(x):
        y = x * 1
        y.t_().unbind(0)[1][1:10].fill_(0.0)
        return y

    rows = torch.export.Dim("rows", min=3, max=9)
    x = torch.ones(4, 3)
    exported = torch.export.export(NamedFunction(function).eval(), (x,), dynamic_shapes=({0: rows},))
    with pytest.raises(ExportError, match="fixes dimension 0, which is dynamic, at 4"):
        delegate.to_backend(exported, [])


def test_a_tensor_constant_beside_sizes_that_depend_on_data(caplog):
    """`detach_` of tensor constants sent detectors the long way, on which torch stumbles over such sizes."""

    def function(x):
        y = x.clone()
        y[0] = 2.0
        found = y[torch.where(y > 0)[0]]
        return found * torch.tensor([2.0]), x.new_full((3,), 1.0)

    x = torch.randn(9, generator=torch.Generator().manual_seed(0))
    exported = torch.export.export(NamedFunction(function), (x,), strict=False)
    assert any(n.target is torch.ops.aten.detach_.default for n in exported.graph.nodes)
    with caplog.at_level(logging.INFO, "delegate"):
        assert_same(delegate.to_backend(exported, [])(x), function(x))
    assert "run_decompositions" not in caplog.text


NO_KERNEL = {"i0", "igamma", "igammac", "polygamma", "resize_", "resize_as_"}
_IN_DATABASE = [op for op in database() if op.inplace_variant and op.name not in NO_KERNEL]


@pytest.mark.slow
@pytest.mark.parametrize("op", _IN_DATABASE, ids=lambda op: op.formatted_name)
def test_as_eager_of_opinfo(op):
    """What goes through torch's database of operators, in place on a copy."""
    if torch.float32 not in op.supported_dtypes("cpu"):
        pytest.skip("it takes no float32")
    for sample in list(op.sample_inputs("cpu", torch.float32))[:3]:
        given = [sample.input, *(a for a in sample.args if isinstance(a, torch.Tensor))]
        if not isinstance(sample.input, torch.Tensor) or not sample.input.numel() or sample.broadcasts_input:
            continue
        places = [i for i, a in enumerate(sample.args) if isinstance(a, torch.Tensor)]

        def apply(x, *others, sample=sample, places=places):
            args = list(sample.args)
            for i, other in zip(places, others, strict=True):
                args[i] = other
            return op.inplace_variant(x.clone(), *args, **sample.kwargs)

        try:
            expected = apply(*given)
            exported = torch.export.export(_Star(apply), tuple(given))
        except Exception as error:
            pytest.skip(f"torch does not export it: {str(error)[:80]}")
        if any(torch.Tag.nondeterministic_seeded in getattr(n.target, "tags", ()) for n in exported.graph.nodes):
            pytest.skip("it draws random numbers")
        assert_same(delegate.to_backend(exported, [])(*given), expected, 1e-4)


class _Star(torch.nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors):
        return self.function(*tensors)
