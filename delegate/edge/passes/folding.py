"""Folding: values that depend only on constants are computed once, ahead of time.

A convolution or linear layer takes over the scale and shift of the BatchNorm after it. Before quantization, weights are
folded in the exported module, since torchao's own folding would also run writes to buffers.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from delegate.edge.build import Constants, is_pure
from delegate.edge.graphs import call
from delegate.edge.node import arguments, is_static, nbytes, op_name, tensor, tensors, written_arguments
from delegate.edge.program import EdgeProgram
from delegate.edge.torch_private import OpOverload, schema_of

_NAMESPACES = frozenset({"aten", "prims"})
# The integers of a weight with fake quantization become constants. Its decoding stays, because backends match it.
_QUANTIZE = frozenset(f"quantized_decomposed.quantize_per_{form}.default" for form in ("tensor", "channel"))

_SMALL = frozenset({torch.int8, torch.uint8})
_UNDEFINED = frozenset({torch.ops.aten.empty, torch.ops.aten.new_empty, torch.ops.aten.empty_like})


def fold_constants(program: EdgeProgram, limit: int = 1 << 20, growth: float = 2.0) -> EdgeProgram:
    """Evaluate pure nodes on constants; only results that the rest of the graph uses are stored.

    Args:
        program: the program.
        limit: number of bytes that every result may have.
        growth: larger results may have this many times the bytes of their inputs.
    """
    known: dict[Node, Any] = {
        n: program.constants[n.name] for n in program.graph.find_nodes(op="placeholder") if program.is_constant(n)
    }
    folded: dict[Node, Any] = {}
    for node in program.graph.nodes:
        if _is_foldable(node, known, limit, growth) and (value := _evaluate(node, known)) is not None:
            known[node] = folded[node] = value
    return _store(program, folded)


def _is_foldable(node: Node, known: dict[Node, Any], limit: int, growth: float) -> bool:
    if node.op != "call_function" or not all(n in known for n in node.all_input_nodes):
        return False
    if node.target is operator.getitem:
        return True
    target = node.target
    if not isinstance(target, OpOverload):
        return False
    if target.namespace not in _NAMESPACES and op_name(node) not in _QUANTIZE:
        return False
    if target.overloadpacket in _UNDEFINED or not tensors(node) or not is_static(node) or not is_pure(node):
        return False
    taken = sum(map(nbytes, node.all_input_nodes))
    return nbytes(node) <= max(0 if _decodes(node) else limit, growth * taken)


def _decodes(node: Node) -> bool:
    """Return true if a node decodes a matrix of 8-bit integers: a weight, which backends match in its small form."""
    source = node.all_input_nodes[0] if node.all_input_nodes else node
    coded = [t for t in tensors(source) if t.dtype in _SMALL and t.dim() > 1]
    return bool(coded) and op_name(node) == "aten._to_copy.default" and tensors(node)[0].is_floating_point()


def _evaluate(node: Node, known: dict[Node, Any]) -> Any:
    args, kwargs = map_arg((node.args, node.kwargs), known.__getitem__)
    try:
        with torch.no_grad():
            return call(node.target, args, kwargs)
    except (RuntimeError, NotImplementedError):
        return None  # it fails on the caller's machine as it does here, if it is ever reached


def _store(program: EdgeProgram, folded: dict[Node, Any]) -> EdgeProgram:
    constants = Constants(program)
    for node, value in folded.items():
        if isinstance(value, torch.Tensor) and any(user not in folded for user in node.users):
            node.replace_all_uses_with(constants.add(f"{node.name}_folded", value, node.name))
    for node in reversed(folded):
        if not node.users:
            program.graph.erase_node(node)
    return constants.done()


_NORMS = frozenset({"aten._native_batch_norm_legit_no_training.default", "aten.batch_norm.default"})
# Layer -> positions of input, weight and bias among its arguments.
_CONVOLUTIONS = {f"aten.{name}": (0, 1, 2) for name in ("convolution.default", "conv1d.default", "conv2d.default")}
_CONVOLUTIONS |= {f"aten.{name}": (0, 1, 2) for name in ("conv3d.default", "conv_transpose1d.default")}
_CONVOLUTIONS |= {f"aten.{name}": (0, 1, 2) for name in ("conv_transpose2d.input", "conv_transpose3d.input")}
_LINEARS = {"aten.linear.default": (0, 1, 2), "aten.addmm.default": (1, 2, 0)}
_LAYERS = _CONVOLUTIONS | _LINEARS


def fold_batch_norms(program: EdgeProgram) -> EdgeProgram:
    """Fold each BatchNorm into the layer before it.

    The layer must have no other user, and all parameters must be constant, and new weights are computed in float64. The
    layer keeps its name, and the BatchNorm is removed.
    """
    constants = Constants(program)
    for norm in [n for n in program.graph.nodes if n.op == "call_function" and op_name(n) in _NORMS]:
        layer = norm.args[0]
        if isinstance(layer, Node) and _fits(program, layer, norm):
            _fold(constants, layer, norm)
    return constants.done()


def _fits(program: EdgeProgram, layer: Node, norm: Node) -> bool:
    if layer.op != "call_function" or op_name(layer) not in _LAYERS or len(layer.users) != 1:
        return False
    norm_arguments = arguments(norm)
    if norm_arguments.get("training") or not all(_picks_result(norm, user) for user in norm.users):
        return False
    if op_name(layer) in _LINEARS and tensor(layer).dim() != 2:
        return False  # the channels of BatchNorm are dimension 1, those of a linear layer the last one
    if op_name(layer) == "aten.addmm.default" and (arguments(layer)["beta"], arguments(layer)["alpha"]) != (1, 1):
        return False
    _, weight, bias = _parts(layer)
    parameters = [weight, bias, *(norm_arguments[n] for n in ("weight", "bias", "running_mean", "running_var"))]
    required = (weight, norm_arguments["running_mean"], norm_arguments["running_var"])
    if any(p is None for p in required) or not all(p is None or program.is_constant(p) for p in parameters):
        return False
    return bias is None or tensor(bias).dim() == 1


def _picks_result(norm: Node, user: Node) -> bool:
    if op_name(norm) == "aten.batch_norm.default":
        return True
    return user.target is operator.getitem and user.args[1:] == (0,)


def _parts(layer: Node) -> tuple[Any, Any, Any]:
    parts = [layer.args[i] if i < len(layer.args) else None for i in _LAYERS[op_name(layer)]]
    return parts[0], parts[1], parts[2]


def _fold(constants: Constants, layer: Node, norm: Node) -> None:
    _, weight, bias = _parts(layer)
    norm_args = arguments(norm)
    gamma, beta, mean, var = (
        None if norm_args[name] is None else constants.tensors[norm_args[name].name].double()
        for name in ("weight", "bias", "running_mean", "running_var")
    )
    assert mean is not None
    assert var is not None
    scale = torch.rsqrt(var + norm_args["eps"]) * (1.0 if gamma is None else gamma)
    old_weight = constants.tensors[weight.name]
    old_bias = 0.0 if bias is None else constants.tensors[bias.name].double()
    new_weight = _scale_channels(layer, old_weight.double(), scale).to(old_weight.dtype)
    new_bias = ((old_bias - mean) * scale + (0.0 if beta is None else beta)).to(old_weight.dtype)
    bias_source = bias if bias is not None else norm_args["bias"] or norm_args["running_mean"]
    weight_node = constants.add(f"{weight.name}_normed", new_weight, constants.names[weight.name])
    bias_node = constants.add(f"{bias_source.name}_normed", new_bias, constants.names[bias_source.name])
    _, weight_at, bias_at = _LAYERS[op_name(layer)]
    args = [*layer.args, *[None] * (bias_at + 1 - len(layer.args))]
    args[weight_at], args[bias_at] = weight_node, bias_node
    layer.args = tuple(args)
    for result in list(norm.users) if op_name(norm) != "aten.batch_norm.default" else [norm]:
        result.replace_all_uses_with(layer)
        if result is not norm:
            norm.graph.erase_node(result)
    norm.graph.erase_node(norm)


def _scale_channels(layer: Node, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return the weight with each output channel multiplied by its scale."""
    args = arguments(layer)
    if op_name(layer) == "aten.addmm.default":
        return weight * scale  # [in, out]
    if args.get("transposed") or "transpose" in op_name(layer):
        groups = args["groups"]  # [in, out / groups, ...]
        split = weight.reshape(groups, -1, *weight.shape[1:])
        return (split * scale.view(groups, 1, -1, *[1] * (weight.dim() - 2))).reshape(weight.shape)
    return weight * scale.view(-1, *[1] * (weight.dim() - 1))


def fold_parameters(module: GraphModule, is_selected: Callable[[Node], bool]) -> None:
    """Replace nodes that depend only on parameters and unwritten buffers by constants, in place.

    Args:
        module: the module; its weights are its attributes.
        is_selected: selects the nodes to replace. Earlier nodes may be constants already when it is called.
    """
    fixed, values = set(_fixed_nodes(module)), dict[Node, Any]()
    names = _find_unused_names(module)
    for node in list(module.graph.nodes):
        if node in fixed and node.op == "call_function" and is_selected(node):
            value = _value(module, node, values)
            if isinstance(value, torch.Tensor):
                _replace(module, node, next(names), value)
    module.graph.eliminate_dead_code()
    module.recompile()


def make_weights_parameters(module: GraphModule, is_weight: Callable[[Node], bool]) -> None:
    """Make parameters of buffers and plain attributes that are weights and not written, in place.

    Args:
        module: the module; its weights are its attributes.
        is_weight: selects the nodes that read them.
    """
    for node in list(_fixed_nodes(module)):
        if node.op == "get_attr" and is_weight(node):
            owner, _, name = str(node.target).rpartition(".")
            holder, value = module.get_submodule(owner), _attribute(module, node)
            if not isinstance(value, torch.nn.Parameter):
                delattr(holder, name)
                holder.register_parameter(name, torch.nn.Parameter(value.detach(), requires_grad=False))


def _find_unused_names(module: GraphModule) -> Iterator[str]:
    """Return unused names of attributes: a second fold must not overwrite the constants of the first."""
    return (name for number in itertools.count() if not hasattr(module, name := f"_constant_{number}"))


def _fixed_nodes(module: GraphModule) -> Iterator[Node]:
    written = set(_written_attributes(module))
    fixed = set[Node]()
    for node in module.graph.nodes:
        if node.op == "get_attr":
            known = str(node.target) not in written and isinstance(_attribute(module, node), torch.Tensor)
        else:
            known = is_pure(node) and bool(node.all_input_nodes) and fixed.issuperset(node.all_input_nodes)
        if known:
            fixed.add(node)
            yield node


def _written_attributes(module: GraphModule) -> Iterator[str]:
    """Yield the attributes that a node of the graph writes to, directly or through a view."""
    for node in module.graph.nodes:
        if isinstance(node.target, OpOverload):
            values = (arguments(node)[name] for name in written_arguments(node.target))
            yield from (str(_origin(value).target) for value in values if isinstance(value, Node))


def _origin(node: Node) -> Node:
    """Return the node that a node is a view of, or the node itself."""
    while isinstance(node.target, OpOverload) and node.args and isinstance(node.args[0], Node):
        returns = schema_of(node.target).returns
        if not returns or returns[0].alias_info is None:
            break
        node = node.args[0]
    return node


def _value(module: GraphModule, node: Node, values: dict[Node, Any]) -> Any:
    if node not in values:
        if node.op == "get_attr":
            values[node] = _attribute(module, node)
        else:
            args, kwargs = map_arg((node.args, node.kwargs), lambda source: _value(module, source, values))
            with torch.no_grad():
                values[node] = cast(Callable[..., Any], node.target)(*args, **kwargs)
    return values[node]


def _attribute(module: GraphModule, node: Node) -> Any:
    return operator.attrgetter(str(node.target))(module)


def _replace(module: GraphModule, node: Node, name: str, value: torch.Tensor) -> None:
    module.register_buffer(name, value.detach())
    with module.graph.inserting_before(node):
        constant = module.graph.get_attr(name)
    constant.meta = dict(node.meta)
    node.replace_all_uses_with(constant)
