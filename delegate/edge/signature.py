"""The inputs, constants, states and outputs of an ExportedProgram, as fields of an EdgeProgram.

A buffer that one method writes is a state of every method that reads it.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.fx import GraphModule

from delegate.common.user_warnings import warn_user
from delegate.edge.build import memory_place, plain, storage_address
from delegate.edge.node import META_CONSTANT
from delegate.edge.program import EdgeInput, EdgeProgram
from delegate.edge.torch_private import pytree, rename_uniquely
from delegate.errors import ExportError

_REFUSED_INPUTS = {
    InputKind.CUSTOM_OBJ: ("a TorchBind object", "move it out of forward, or keep its state in tensors"),
    InputKind.TOKEN: ("a token of an effect", "pass the program of torch.export.export, without run_decompositions()"),
}
_REFUSED_OUTPUTS = {
    OutputKind.LOSS_OUTPUT: ("computes a loss", "export the inference program, without joint_loss_index"),
    OutputKind.GRADIENT_TO_PARAMETER: ("computes gradients", "export the inference program"),
    OutputKind.GRADIENT_TO_USER_INPUT: ("computes gradients", "export the inference program"),
    OutputKind.PARAMETER_MUTATION: ("changes a parameter in place", "make it a buffer (register_buffer)"),
}


def input_paths(ep: ExportedProgram) -> list[str]:
    """Return the path of every leaf of the caller's arguments, e.g. "x" or "batch['ids']", in order.

    >>> class Double(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x * 2
    >>> input_paths(torch.export.export(Double(), (torch.ones(1),)))
    ['x']
    """
    spec = ep.call_spec.in_spec
    if spec is None:
        return list(ep.graph_signature.user_inputs)
    paths, _ = pytree.tree_flatten_with_path(pytree.tree_unflatten(range(spec.num_leaves), spec))
    call = ep.module_call_graph[0].signature if ep.module_call_graph else None
    names = (call.forward_arg_names if call is not None else None) or []
    return [_path_text(path, names) for path, _ in paths]


def _path_text(path: tuple[Any, ...], names: list[str]) -> str:
    where, first, *rest = path  # (0 for args | 1 for kwargs), position or keyword, then the way inside the argument
    positional = where.idx == 0
    inside = pytree.keystr(tuple(rest))
    if not positional:
        return f"{first.key}{inside}"
    return (names[first.idx] if first.idx < len(names) else f"args[{first.idx}]") + inside


def read_inputs(ep: ExportedProgram) -> list[EdgeInput]:
    """Return the leaves of the caller's arguments, in order, each with its placeholder in the exported graph.

    Raises:
        ExportError: an input is one that an inference program cannot have.
    """
    inputs: list[EdgeInput] = []
    paths = iter(input_paths(ep))
    for spec in ep.graph_signature.input_specs:
        if spec.kind in _REFUSED_INPUTS:
            what, remedy = _REFUSED_INPUTS[spec.kind]
            raise ExportError(f"the program has {what} as an input", where=spec.target or spec.arg.name, remedy=remedy)
        if spec.kind is InputKind.USER_INPUT:
            inputs.append(_read_input(spec.arg, next(paths)))
    return inputs


def read_program(ep: ExportedProgram, module: GraphModule, name: str) -> EdgeProgram:
    """Return a program with the signature of an exported program and another graph.

    Args:
        ep: the exported program.
        module: its graph, whose results are put in the order of an edge program, in place. Placeholders with names of
            Python's own functions, e.g. the argument "input" of nn.Sequential, which copies of a graph would rename,
            get their own names.
        name: name of the method.

    Raises:
        ExportError: the inputs or outputs are some that an inference program cannot have.
    """
    specs, placeholders = ep.graph_signature.input_specs, module.graph.find_nodes(op="placeholder")
    inputs = read_inputs(ep)
    nodes: dict[str, str] = {}
    for spec, placeholder in zip(specs, placeholders, strict=True):
        if hasattr(builtins, placeholder.name):
            rename_uniquely(placeholder)
        nodes[spec.arg.name] = placeholder.name
    held = {nodes[spec.arg.name]: spec.target for spec in specs if spec.target is not None}
    mutations = _mutations(ep, OutputKind.BUFFER_MUTATION)
    writes = _mutations(ep, OutputKind.USER_INPUT_MUTATION)
    results: Any = module.graph.output_node().args[0]
    users = [result for i, result in enumerate(results) if i not in mutations and i not in writes]
    module.graph.output_node().args = ((*users, *(results[i] for i in (*mutations, *writes))),)
    in_spec, out_spec = ep.call_spec  # which torch makes a class for at each access
    return EdgeProgram(
        name=name,
        graph_module=module,
        inputs=tuple(replace(i, node=nodes[i.node]) for i in inputs),
        constants={node: _constant(ep, target) for node, target in held.items()},
        constant_names=held,
        states={node: target for node, target in held.items() if target in mutations.values()},
        mutated=tuple(mutations.values()),
        in_spec=in_spec,
        out_spec=out_spec,
        range_constraints=ep.range_constraints,
        written=tuple(nodes[target] for target in writes.values()),
    )


def warn_of_merged_inputs(ep: ExportedProgram, name: str) -> None:
    """Warn if torch made one input of several, since they were the same tensor in the example of the export."""
    specs = [spec for spec in ep.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
    examples = pytree.tree_leaves(ep.example_inputs, is_leaf=lambda leaf: leaf is None)
    if len(examples) != len(specs):
        return  # a program that was made without them
    used = {node.name for node in ep.graph.find_nodes(op="placeholder") if node.users}
    paths = list(input_paths(ep))
    for spec, example, path in zip(specs, examples, paths, strict=True):
        same = [p for s, e, p in zip(specs, examples, paths, strict=True) if e is example and s.arg.name in used]
        if isinstance(example, torch.Tensor) and spec.arg.name not in used and same:
            warn_user(
                f"method {name} computes with the input {same[0]!r} in place of {path!r}: the export got one tensor "
                "for both, and torch makes one input of it; export it again with another tensor for each input",
                UserWarning,
            )


def _read_input(arg: Any, path: str) -> EdgeInput:
    if not isinstance(arg, ConstantArgument):
        return EdgeInput(path, arg.name)
    if not isinstance(arg.value, int | float | bool | str | None):
        raise ExportError(
            f"an input is a constant of type {type(arg.value).__name__}",
            where=path,
            remedy="pass a tensor, a number, a string or None, or make it an attribute of the module",
        )
    return EdgeInput(path, arg.name, arg.value, is_literal=True)


def _constant(ep: ExportedProgram, target: str) -> torch.Tensor:
    value = ep.state_dict.get(target, ep.constants.get(target))
    if not isinstance(value, torch.Tensor):
        raise ExportError(
            f"the program's constant {target} is {type(value).__name__}, not a tensor",
            remedy="keep the model's state in parameters and buffers",
        )
    return plain(value.detach())


def _mutations(ep: ExportedProgram, kind: OutputKind) -> dict[int, str]:
    """Return the targets of results: position -> the buffer or the input's placeholder of that new value."""
    mutations: dict[int, str] = {}
    for position, spec in enumerate(ep.graph_signature.output_specs):
        if spec.kind in _REFUSED_OUTPUTS:
            what, remedy = _REFUSED_OUTPUTS[spec.kind]
            raise ExportError(f"the program {what}", where=spec.target or str(spec.arg), remedy=remedy)
        if spec.kind is kind:
            assert spec.target is not None
            mutations[position] = spec.target
    return mutations


def with_shared_states(methods: Mapping[str, EdgeProgram]) -> dict[str, EdgeProgram]:
    """Return the methods of a program; the buffers that others of them write are states, not constants.

    Methods share a buffer if it is one tensor, under any name, or has one name and equal content.

    Raises:
        ExportError: a method writes a buffer that shares only a part of its memory with another one.
    """
    written: list[_Written] = []
    for name, edge in methods.items():
        holders = {state: placeholder for placeholder, state in edge.states.items()}
        written += [_Written(name, state, edge.constants[holders[state]]) for state in edge.mutated]
    if not written:
        return dict(methods)
    by_name = {w.state: w for w in reversed(written)}
    by_memory = {storage_address(w.value): w for w in reversed(written) if storage_address(w.value)}
    return {name: _sharing(edge, by_name, by_memory) for name, edge in methods.items()}


def buffers_of_states(method: EdgeProgram) -> dict[str, str]:
    """Return the states of a method: name of the buffer in the method's module -> name of the state."""
    return {method.constant_names[placeholder]: state for placeholder, state in method.states.items()}


@dataclass(frozen=True, slots=True)
class _Written:
    """A buffer that a method writes, with its value at the start."""

    method: str
    state: str
    value: torch.Tensor


def _sharing(edge: EdgeProgram, by_name: Mapping[str, _Written], by_memory: Mapping[int, _Written]) -> EdgeProgram:
    states, renamed = dict(edge.states), dict[str, str]()
    used = {node.name for node in edge.graph.find_nodes(op="placeholder") if node.users} | states.keys()
    for placeholder, value in edge.constants.items():
        if placeholder not in used:
            continue
        name = edge.constant_names.get(placeholder, placeholder)
        same = by_memory.get(storage_address(value))
        if same is not None and same.method != edge.name:
            if memory_place(value) != memory_place(same.value):
                raise ExportError(
                    f"method {same.method!r} writes the buffer {same.state!r}, which shares a part of its memory with "
                    f"{name!r} of method {edge.name!r}",
                    remedy="register only one of them and create the views in forward, or clone them",
                )
            renamed[states.get(placeholder, name)] = states[placeholder] = same.state
        elif name in by_name and by_name[name].method != edge.name and _is_equal(value, by_name[name].value):
            states[placeholder] = name
    if states == edge.states:
        return edge
    shared = replace(edge, states=states, mutated=tuple(renamed.get(name, name) for name in edge.mutated))
    for placeholder_node in edge.graph.find_nodes(op="placeholder"):
        placeholder_node.meta[META_CONSTANT] = shared.is_constant(placeholder_node)
    return shared


def _is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
