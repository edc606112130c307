"""BatchNorm folding: a convolution or linear layer takes over the scale and shift of the BatchNorm after it."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from delegate.edge.build import Constants
from delegate.edge.node import arguments, op_name, tensor
from delegate.edge.passes import PassResult
from delegate.edge.program import EdgeProgram

_NORMS = frozenset({"aten._native_batch_norm_legit_no_training.default", "aten.batch_norm.default"})
# Layer -> positions of input, weight and bias among its arguments.
_CONVOLUTIONS = {f"aten.{name}": (0, 1, 2) for name in ("convolution.default", "conv1d.default", "conv2d.default")}
_CONVOLUTIONS |= {f"aten.{name}": (0, 1, 2) for name in ("conv3d.default", "conv_transpose1d.default")}
_CONVOLUTIONS |= {f"aten.{name}": (0, 1, 2) for name in ("conv_transpose2d.input", "conv_transpose3d.input")}
_LINEARS = {"aten.linear.default": (0, 1, 2), "aten.addmm.default": (1, 2, 0)}
_LAYERS = _CONVOLUTIONS | _LINEARS


@dataclass(frozen=True, slots=True)
class BatchNormFolding:
    """A pass that folds a BatchNorm into the layer before it.

    The layer must have no other user, and all parameters must be constant. New weights are computed in float64. The
    layer keeps its name. The BatchNorm is removed.
    """

    def __call__(self, program: EdgeProgram) -> PassResult:
        constants, folded = Constants(program), 0
        for norm in [n for n in program.graph.nodes if n.op == "call_function" and op_name(n) in _NORMS]:
            layer = norm.args[0]
            if isinstance(layer, Node) and _fits(program, layer, norm):
                _fold(constants, layer, norm)
                folded += 1
        return PassResult(constants.done(), folded > 0)


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
    new_weight = _scaled(layer, old_weight.double(), scale).to(old_weight.dtype)
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


def _scaled(layer: Node, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return the weight with each output channel multiplied by its scale."""
    args = arguments(layer)
    if op_name(layer) == "aten.addmm.default":
        return weight * scale  # [in, out]
    if args.get("transposed") or "transpose" in op_name(layer):
        groups = args["groups"]  # [in, out / groups, ...]
        split = weight.reshape(groups, -1, *weight.shape[1:])
        return (split * scale.view(groups, 1, -1, *[1] * (weight.dim() - 2))).reshape(weight.shape)
    return weight * scale.view(-1, *[1] * (weight.dim() - 1))
