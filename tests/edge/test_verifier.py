"""Graphs broken by hand: the verifier names the rule and the node."""

import dataclasses
import operator

import pytest
import torch

from delegate.edge.program import EdgeProgram
from delegate.edge.verifier import edge_dialect, verify
from delegate.errors import DialectError
from tests.edge.helpers import WritingBuffers, edge
from tests.support.functions import Function

aten = torch.ops.aten


def _program() -> EdgeProgram:
    return edge(Function(lambda x, y: (x.exp() + y, y)), (torch.ones(2, 3), torch.ones(3)))


def _first(program):
    return next(n for n in program.graph.nodes if n.op == "call_function")


def no_value(program):
    del _first(program).meta["val"]


def mutates(program):
    _first(program).target = aten.exp_.default


def python_function(program):
    _first(program).target = print


def composite(program):
    _first(program).target = aten.type_as.default


def unknown_kind(program):
    _first(program).op = "call_method"


def dtype(program):
    node = _first(program)
    with node.meta["val"].fake_mode:
        node.meta["val"] = torch.empty(2, 3, dtype=torch.float8_e5m2)


def check(program):
    node = _first(program)
    with program.graph.inserting_after(node):
        made = program.graph.call_function(aten._assert_tensor_metadata.default, (node,))
    made.meta["val"] = None


def late_placeholder(program):
    node = _first(program)
    with program.graph.inserting_after(node):
        made = program.graph.placeholder("late")
    made.meta["val"] = node.meta["val"]


def swapped_inputs(program):
    return dataclasses.replace(program, inputs=program.inputs[::-1])


def lost_constant(program):
    return dataclasses.replace(program, constants={"c": torch.ones(1)}, constant_names={"c": "c"})


def nameless_constant(program):
    name = program.inputs[0].node
    return dataclasses.replace(program, constants={name: torch.ones(1)}, inputs=program.inputs[1:])


def too_few_results(program):
    output = program.graph.output_node()
    output.args = (output.args[0][:1],)


def unknown_state(program):
    output = program.graph.output_node()
    output.args = ((*output.args[0], _first(program)),)
    return dataclasses.replace(program, mutated=("count",))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (no_value, r"every node must have its value.*node exp"),
        (mutates, r"operators must not write to their inputs.*aten\.exp_\.default"),
        (python_function, r"calls must be of operators.*print"),
        (composite, r"aten\.type_as\.default is not an operator of the dialect"),
        (unknown_kind, "nodes must be placeholders, operator calls"),
        (dtype, "dtypes that programs support.*float8_e5m2"),
        (check, r"every operator must return a value.*_assert_tensor_metadata"),
        (late_placeholder, "placeholders must come first.*late"),
        (swapped_inputs, "the inputs differ from the placeholders"),
        (lost_constant, "has no placeholder.*c"),
        (nameless_constant, "a constant has no name"),
        (too_few_results, "1 results, not 2"),
        (unknown_state, "is not a state"),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_broken(damage, message):
    program = _program()
    verify(program, frozenset())
    program = damage(program) or program
    with pytest.raises(DialectError, match=message):
        verify(program, frozenset())


def test_an_exported_program_is_not_in_edge_dialect():
    ep = torch.export.export(WritingBuffers(), (torch.ones(2),))
    with pytest.raises(DialectError, match="not edge: operators must not write"):
        edge_dialect(frozenset()).check(ep.graph_module)
    program = _program()
    edge_dialect(frozenset()).check(program.graph_module)
    assert operator.getitem not in {n.target for n in program.graph.nodes}
