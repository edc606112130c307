"""Calls of lowered graphs at run time. A graph is compiled again if one of its constants changes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from delegate.edge.program import META_VALUE

logger = logging.getLogger(__name__)

_MAX_RECOMPILATIONS = 3  # with changed weights as constants; after that, weights become inputs

Run = Callable[..., Sequence[Any]]


class _CompiledConstant(NamedTuple):
    """A tensor that is compiled in as a constant, with its version and address at that time."""

    tensor: torch.Tensor
    version: int
    address: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _CompiledConstant:
        """Return the present state of a tensor."""
        return cls(tensor, tensor._version, tensor.data_ptr())

    def is_current(self, tensor: torch.Tensor) -> bool:
        """Return if a tensor is the constant, unchanged since it was compiled in."""
        return tensor is self.tensor and tensor._version == self.version and tensor.data_ptr() == self.address


class LoweredGraph:
    """A lowered graph of torch's compiler.

    Args:
        lower: called with constants by their positions among the inputs; returns a function that runs the graph.
        constants: the constants of the first lowering.
        results: the nodes of the results; results get the strides of eager.
        always_freeze: if constants never become inputs, however often they change.
    """

    def __init__(
        self,
        lower: Callable[[Mapping[int, torch.Tensor]], Run],
        constants: Mapping[int, torch.Tensor],
        results: Sequence[Node],
        always_freeze: bool = False,
    ) -> None:
        self._lower, self._recompilations, self._always_freeze = lower, 0, always_freeze
        self._orders = [(i, order) for i, node in enumerate(results) if (order := _order(node))]
        self._compile(constants)

    def __call__(self, args: list[Any]) -> list[Any]:
        """Run on the inputs of the graph, including constants, and return the computed results."""
        for number, constant in self._constants:
            if not constant.is_current(args[number]):
                self._recompile(args)
                break
        inputs = [arg for number, arg in enumerate(args) if number not in self._numbers]
        args.clear()
        results = list(self._run(*inputs))
        for i, order in self._orders:
            results[i] = _apply_order(results[i], order)
        return results

    def _compile(self, constants: Mapping[int, torch.Tensor]) -> None:
        self._constants = [(number, _CompiledConstant.of(tensor)) for number, tensor in constants.items()]
        self._numbers = frozenset(constants)
        self._run = self._lower(constants)

    def _recompile(self, args: Sequence[Any]) -> None:
        self._recompilations += 1
        freeze = self._always_freeze or self._recompilations <= _MAX_RECOMPILATIONS
        logger.info("weights have changed: the graph is compiled again, %s them", "with" if freeze else "without")
        self._compile({number: args[number] for number in self._numbers} if freeze else {})


def _order(node: Node) -> tuple[int, ...] | None:
    """Return the dimensions of a result in eager's memory order; None if that is row-major."""
    value = node.meta[META_VALUE]
    if not isinstance(value, torch.Tensor) or value.is_contiguous():
        return None
    strides = [int(stride) if isinstance(stride, int) else stride.node.hint or 0 for stride in value.stride()]
    order = tuple(sorted(range(value.dim()), key=lambda dim: -strides[dim]))
    return None if order == tuple(range(value.dim())) else order


def _apply_order(tensor: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return tensor.permute(order).contiguous().permute(inverse)
