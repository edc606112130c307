"""What torch's compiler calls at run time: a lowered graph, compiled again where what it holds as constant changes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from delegate.edge.program import META_VALUE

logger = logging.getLogger(__name__)

_PATIENCE = 3  # times that a graph is compiled again with other weights, before these become inputs

Run = Callable[..., Sequence[Any]]


class Held(NamedTuple):
    """A tensor that was compiled in, as it was then."""

    tensor: torch.Tensor
    version: int
    address: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Held:
        """This tensor, now."""
        return cls(tensor, tensor._version, tensor.data_ptr())


class Call:
    """A graph of torch's compiler, lowered.

    Args:
        lower: gives what runs the graph, given its constants by their numbers among the inputs.
        constants: with which it is lowered first.
        results: the nodes that it gives, whose strides are those of eager.
        always_hold: constants never become inputs, however often they change.
    """

    def __init__(
        self,
        lower: Callable[[Mapping[int, torch.Tensor]], Run],
        constants: Mapping[int, torch.Tensor],
        results: Sequence[Node],
        always_hold: bool = False,
    ) -> None:
        self._lower, self._turns, self._always_hold = lower, 0, always_hold
        self._orders = [(i, order) for i, node in enumerate(results) if (order := _order(node))]
        self._compile(constants)

    def __call__(self, args: list[Any]) -> list[Any]:
        """Run on the inputs of the graph, constants included; gives the results that it computes."""
        for number, held in self._held:
            tensor = args[number]
            if tensor is not held.tensor or tensor._version != held.version or tensor.data_ptr() != held.address:
                self._renew(args)
                break
        given = [arg for number, arg in enumerate(args) if number not in self._numbers]
        args.clear()
        results = list(self._run(*given))
        for i, order in self._orders:
            results[i] = _laid_out(results[i], order)
        return results

    def _compile(self, constants: Mapping[int, torch.Tensor]) -> None:
        self._held = [(number, Held.of(tensor)) for number, tensor in constants.items()]
        self._numbers = frozenset(constants)
        self._run = self._lower(constants)

    def _renew(self, args: Sequence[Any]) -> None:
        self._turns += 1
        keep = self._always_hold or self._turns <= _PATIENCE
        logger.info("weights have changed: the graph is compiled again, %s them", "with" if keep else "without")
        self._compile({number: args[number] for number in self._numbers} if keep else {})


def _order(node: Node) -> tuple[int, ...] | None:
    """The dimensions of a result in the order in which eager lays them out; None where that is row-major."""
    value = node.meta[META_VALUE]
    if not isinstance(value, torch.Tensor) or value.is_contiguous():
        return None
    strides = [int(stride) if isinstance(stride, int) else stride.node.hint or 0 for stride in value.stride()]
    order = tuple(sorted(range(value.dim()), key=lambda dim: -strides[dim]))
    return None if order == tuple(range(value.dim())) else order


def _laid_out(tensor: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return tensor.permute(order).contiguous().permute(inverse)
