"""Operators with several right answers, such as the order of equal elements: their results are compared by what counts.

An index is compared by the element that it picks, and the content of `empty`, or of random numbers, by nothing. The
debugger compares operators that only kernels run, such as factors of matrices, by rows of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from delegate.edge.torch_private import OpOverload, schema_of

Pair = tuple[Tensor, Tensor]  # of a result and torch's, in a form that all right answers share
Results = Mapping[int, Tensor]  # by number; some results are unknown if nothing reads them
Compare = Callable[[Mapping[str, Any], Results, Results], Iterator[Pair]]


def compare_of(target: Any, args: Mapping[str, Any]) -> Compare | None:
    """Return the comparison of an operator that has several right answers; None for another operator.

    Args:
        target: the operator.
        args: its arguments by name, or the nodes that compute them.
    """
    if not isinstance(target, OpOverload):
        return None
    if torch.Tag.nondeterministic_seeded in target.tags:
        return _anything
    namespace, _, name = str(schema_of(target).name).partition("::")
    if namespace != "aten" or args.get("stable"):
        return None
    return _COMPARISONS.get(name)


def _anything(args: Mapping[str, Any], actual: Results, expected: Results) -> Iterator[Pair]:
    """Compare nothing."""
    return iter(())


def _picks(
    args: Mapping[str, Any], actual: Results, expected: Results, *, index: int = 1, distinct: bool = False
) -> Iterator[Pair]:
    """Compare indices along a dimension by the elements at them.

    Args:
        args: arguments of the operator, with `dim`; None is all dimensions.
        actual, expected: the results; all but the indices are compared as they are.
        index: the number of the result that has the indices.
        distinct: no index may occur twice.
    """
    pairs = [(actual[i], expected[i]) for i in actual if i != index]
    if index in actual:
        source, dim = along(args)
        indices, own = (with_dim(r[index], source, dim) for r in (actual, expected))
        if indices.shape != own.shape:
            pairs.append((indices, own))  # infinitely far off
        else:
            pairs.append((elements(source, dim, indices), elements(source, dim, own)))
            if distinct:
                pairs.append((_repetitions(indices, dim), _repetitions(own, dim)))
    if args.get("sorted") is False:
        pairs = [tuple(t.sort(along(args)[1]).values for t in pair) for pair in pairs]  # type: ignore[misc]
    yield from pairs


def along(args: Mapping[str, Any]) -> tuple[Tensor, int]:
    """Return the input of an operator and the dimension along which it picks."""
    source, dim = args["self"], args.get("dim")
    if dim is None or source.dim() == 0:
        return source.flatten(), 0
    return source, dim % source.dim()


def with_dim(indices: Tensor, source: Tensor, dim: int) -> Tensor:
    """Return indices with as many dimensions as the input."""
    if source.dim() == 1 and indices.numel() == 1:
        return indices.reshape(1)
    return indices if indices.dim() == source.dim() else indices.unsqueeze(dim)


def elements(source: Tensor, dim: int, indices: Tensor) -> Tensor:
    """Return the elements at indices as float64; NaN for indices without an element."""
    size = source.shape[dim]
    if not size or not indices.numel():
        return indices.double()
    is_inside = (indices >= 0) & (indices < size)
    picked = source.gather(dim, indices.long().clamp(0, size - 1)).double()
    return torch.where(is_inside, picked, torch.nan)


def _repetitions(indices: Tensor, dim: int) -> Tensor:
    """Return 1 for each index that occurs before it, else 0, in order of the indices."""
    return indices.sort(dim).values.diff(dim=dim).eq(0).double()


def _windows(args: Mapping[str, Any], actual: Results, expected: Results, *, dims: int) -> Iterator[Pair]:
    """Compare the results of a max pooling; its indices count the last dimensions, flattened."""
    flat = {"self": args["self"].flatten(-dims), "dim": -1}
    results = ({i: t.flatten(-dims) for i, t in r.items()} for r in (actual, expected))
    return _picks(flat, *results)


_EMPTY = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
_COMPARISONS: Mapping[str, Compare] = {
    **dict.fromkeys(("max", "min", "median", "nanmedian", "kthvalue", "cummax", "cummin"), _picks),
    **dict.fromkeys(("argmax", "argmin"), partial(_picks, index=0)),
    **dict.fromkeys(("sort", "topk"), partial(_picks, distinct=True)),
    "argsort": partial(_picks, index=0, distinct=True),
    **{f"{kind}max_pool{n}d{ending}": partial(_windows, dims=n)
       for n in (2, 3) for kind, ending in (("", "_with_indices"), ("adaptive_", ""), ("fractional_", ""))},
    "adaptive_max_pool1d": partial(_windows, dims=1),
    "max_pool1d_with_indices": partial(_windows, dims=1),
    **dict.fromkeys(_EMPTY, _anything),
}  # fmt: skip
