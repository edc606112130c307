"""Export of stacked layers: the first layers that differ are traced, and their nodes are repeated for the others.

torch.export needs most of its time for tracing, and the layers of a language model are equal but for their weights.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputSpec, OutputKind, TensorArgument
from torch.fx import Node

from delegate.edge.exported import UNPACK, with_inputs
from delegate.edge.torch_private import is_traceable_wrapper_subclass

_OWN = ("extra_repr", "layer_idx", "training")  # attributes that do not change what a layer computes


@torch.library.custom_op("delegate_llm::between", mutates_args=())
def _between(x: Tensor) -> Tensor:
    """Mark the value between two layers; the marks are removed after the export."""
    return x.clone()


_between.register_fake(torch.empty_like)
_MARK = torch.ops.delegate_llm.between.default


def export_stack(
    module: nn.Module, stacks: Sequence[str], inputs: tuple[Any, ...], sizes: Any = None
) -> ExportedProgram:
    """Export a module that calls the layers of a stack one after the other.

    Args:
        module: hands the value of each layer to the next one as it is, and calls no layer twice.
        stacks: names of its lists of submodules, of which the first one has the layers. In the others, the i-th
            submodule belongs to layer i, e.g. as its cache.
        inputs: example inputs.
        sizes: its dynamic sizes, as `dynamic_shapes` of `torch.export.export`.

    Returns:
        The program that `torch.export.export` makes, but for the names and the order of inputs and nodes.

    Raises:
        Exception: what `torch.export.export` raises.
    """
    lists = [module.get_submodule(name) for name in stacks]
    kinds = [tuple(map(_kind, parts)) for parts in zip(*(stack.children() for stack in lists), strict=True)]
    like = [kinds.index(kind) for kind in kinds]
    traced = max(like) + 1
    with ExitStack() as shortened:
        for name in stacks:
            shortened.enter_context(_first(module, name, traced))
        shortened.enter_context(_mark_layers([*module.get_submodule(stacks[0]).children()]))
        ep = torch.export.export(module, inputs, dynamic_shapes=sizes)
    assert all(spec.kind is OutputKind.USER_OUTPUT for spec in ep.graph_signature.output_specs)
    stack = _Stack(ep, stacks)
    for layer in range(traced, len(like)):
        stack.repeat(like[layer], layer)
    return stack.program(module)


def _kind(module: nn.Module) -> tuple[Any, ...]:
    """Return what a module computes, as a value to compare: all but the values of tensors."""
    return tuple((name, type(part), _attributes(part), _tensors(part)) for name, part in module.named_modules())


def _attributes(module: nn.Module) -> tuple[Any, ...]:
    public = {name: value for name, value in vars(module).items() if not name.startswith("_") and name not in _OWN}
    return tuple((name, _value(value)) for name, value in public.items())


def _value(value: Any) -> Any:
    """Return an attribute as a value to compare: objects of unknown kinds are equal if they are the same."""
    if isinstance(value, functools.partial):
        return id(value.func), value.args, tuple(value.keywords.items())
    return value if isinstance(value, bool | int | float | str | tuple | None) else id(value)


def _tensors(module: nn.Module) -> tuple[Any, ...]:
    members = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
    return tuple((name, _layout(tensor)) for name, tensor in members)


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    inner: tuple[Any, ...] = ()
    if is_traceable_wrapper_subclass(tensor):
        names, context = tensor.__tensor_flatten__()
        inner = (repr(context), *(_layout(getattr(tensor, name)) for name in names))
    return type(tensor), tuple(tensor.shape), tensor.dtype, inner


@contextmanager
def _mark_layers(layers: Sequence[nn.Module]) -> Iterator[None]:
    """Return a context in which a mark stands before each layer, and behind the last one."""

    def before(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (_between(args[0]), *args[1:])

    def behind(_: nn.Module, __: tuple[Any, ...], result: Any) -> Any:
        return _between(result) if isinstance(result, Tensor) else (_between(result[0]), *result[1:])

    hooks = [layer.register_forward_pre_hook(before) for layer in layers]
    hooks.append(layers[-1].register_forward_hook(behind))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _first(module: nn.Module, name: str, count: int) -> Iterator[None]:
    """Return a context in which a list of submodules has only its first ones."""
    parent, _, attribute = name.rpartition(".")
    owner = module.get_submodule(parent)
    whole = getattr(owner, attribute)
    setattr(owner, attribute, whole[:count])
    try:
        yield
    finally:
        setattr(owner, attribute, whole)


class _Stack:
    """The layers of an exported program.

    Args:
        ep: the program of the traced layers, with marks between them; it is changed.
        stacks: names of the submodule lists that belong to layers.
    """

    def __init__(self, ep: ExportedProgram, stacks: Sequence[str]) -> None:
        self._ep, self._graph, self._stacks = ep, ep.graph_module.graph, stacks
        placeholders = self._graph.find_nodes(op="placeholder")
        self._inputs = dict(zip(placeholders, ep.graph_signature.input_specs, strict=True))
        self._traced = dict(self._inputs)
        self._marks = list(self._graph.find_nodes(op="call_function", target=_MARK))
        self._results = [mark.all_input_nodes[0] for mark in self._marks[1:]]  # of the traced layers
        self._parts: list[list[Node]] = [[] for _ in self._marks]  # the nodes behind each mark
        number = -1
        for node in self._graph.nodes:
            if node.target is _MARK:
                number += 1
            elif number >= 0:
                self._parts[number].append(node)

    def repeat(self, source: int, layer: int) -> None:
        """Add a layer behind the last one, with the nodes of the traced layer `source`."""
        end = self._marks[-1]
        env: dict[Node, Any] = {self._marks[source]: end.args[0]}
        for node, spec in self._traced.items():
            for stack in self._stacks:
                if spec.target is not None and spec.target.startswith(f"{stack}.{source}."):
                    self._add_input(node, spec, _rename_part(spec.target, stack, source, layer), env)
        with self._graph.inserting_before(end):
            for node in self._parts[source]:
                env[node] = self._graph.node_copy(node, lambda n: env.get(n, n))
                modules = node.meta.get("nn_module_stack", {}).items()
                env[node].meta["nn_module_stack"] = {
                    key: (_rename_part(path, self._stacks[0], source, layer), kind) for key, (path, kind) in modules
                }
        end.args = (env[self._results[source]],)

    def _add_input(self, node: Node, spec: InputSpec, target: str, env: dict[Node, Any]) -> None:
        """Add an input behind the traced layer's input, with the nodes that unpack it if it is a subclass of Tensor."""
        with self._graph.inserting_after(node):
            placeholder = self._graph.placeholder(f"{spec.kind.name[0].lower()}_{target.replace('.', '_')}")
        placeholder.meta, env[node] = dict(node.meta), placeholder
        self._inputs[placeholder] = replace(spec, arg=TensorArgument(placeholder.name), target=target)
        for user in node.users:
            if user.target is UNPACK:
                with self._graph.inserting_after(user):
                    env[user] = self._graph.node_copy(user, lambda n: env.get(n, n))

    def program(self, module: nn.Module) -> ExportedProgram:
        """Return the program of all layers of a module, without marks."""
        for mark in self._marks:
            mark.replace_all_uses_with(mark.all_input_nodes[0])
            self._graph.erase_node(mark)
        tensors: dict[str | None, Tensor] = dict(module.named_parameters(remove_duplicate=False))
        tensors |= module.named_buffers(remove_duplicate=False)
        placeholders = self._graph.find_nodes(op="placeholder")
        new = (self._inputs[node].target for node in placeholders if node not in self._traced)
        added = {target: tensors[target] for target in new if target is not None}
        return with_inputs(self._ep, self._ep.graph_module, [self._inputs[node] for node in placeholders], added)


def _rename_part(name: str, stack: str, source: int, layer: int) -> str:
    """Return the name of another layer's part; other names stay."""
    old = f"{stack}.{source}"
    return f"{stack}.{layer}{name[len(old) :]}" if f"{name}.".startswith(f"{old}.") else name
