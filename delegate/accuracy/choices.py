"""Operators with several right answers, such as the order of equal elements: their results are compared by what counts.

An index is compared by the element that it picks, a factor of a matrix by the product, and the content of `empty`, or
of random numbers, by nothing.
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
        source, dim = _along(args)
        indices, own = (_with_dim(r[index], source, dim) for r in (actual, expected))
        if indices.shape != own.shape:
            pairs.append((indices, own))  # infinitely far off
        else:
            pairs.append((_elements(source, dim, indices), _elements(source, dim, own)))
            if distinct:
                pairs.append((_repetitions(indices, dim), _repetitions(own, dim)))
    if args.get("sorted") is False:
        pairs = [tuple(t.sort(_along(args)[1]).values for t in pair) for pair in pairs]  # type: ignore[misc]
    yield from pairs


def _along(args: Mapping[str, Any]) -> tuple[Tensor, int]:
    """Return the input of an operator and the dimension along which it picks."""
    source, dim = args["self"], args.get("dim")
    if dim is None or source.dim() == 0:
        return source.flatten(), 0
    return source, dim % source.dim()


def _with_dim(indices: Tensor, source: Tensor, dim: int) -> Tensor:
    """Return indices with as many dimensions as the input."""
    if source.dim() == 1 and indices.numel() == 1:
        return indices.reshape(1)
    return indices if indices.dim() == source.dim() else indices.unsqueeze(dim)


def _elements(source: Tensor, dim: int, indices: Tensor) -> Tensor:
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


def _frequent(args: Mapping[str, Any], actual: Results, expected: Results) -> Iterator[Pair]:
    """Compare modes by how often they occur, and their indices by the elements at them."""
    source, dim = _along(args)
    for number in actual:
        one, other = (_with_dim(r[number], source, dim) for r in (actual, expected))
        if number == 1:
            one, other = _elements(source, dim, one), _elements(source, dim, other)
        yield tuple((source == t.to(source.dtype)).sum(dim).double() for t in (one, other))  # type: ignore[misc]


def _set(args: Mapping[str, Any], actual: Results, expected: Results) -> Iterator[Pair]:
    """Compare unique elements, which may have any order: the inverse by the elements at it, counts in their order."""
    if 0 in actual and actual[0].shape == expected[0].shape:
        orders = actual[0].sort(), expected[0].sort()
        yield orders[0].values, orders[1].values
        if 1 in actual and actual[1].numel():
            yield _elements(actual[0], 0, actual[1].flatten()), args["self"].flatten().double()
        if 2 in actual and actual[2].numel():
            yield actual[2][orders[0].indices], expected[2][orders[1].indices]
    else:
        yield from ((actual[i], expected[i]) for i in actual)


def _factors(
    product: Callable[..., Tensor], args: Mapping[str, Any], actual: Results, expected: Results
) -> Iterator[Pair]:
    """Compare the factors of matrices by their product, and by what makes each a right factor.

    Args:
        product: The function that multiplies the factors in all results.
        args, actual, expected: as of `Compare`.
    """
    ordered = [[r[i] for i in sorted(r)] for r in (actual, expected)]
    if len(actual) < len(expected) or any(a.shape != e.shape or not a.numel() for a, e in zip(*ordered, strict=True)):
        yield from ((t.abs(), expected[i].abs()) for i, t in actual.items())  # the sign is free
        return
    yield product(*ordered[0]), product(*ordered[1])
    for one, other in zip(*ordered, strict=True):
        if one.dim() == _matrix(args).dim() - 1:  # singular values or eigenvalues, in ascending or descending order
            yield one, other
        else:
            yield _gram(one), _gram(other)


def _matrix(args: Mapping[str, Any]) -> Tensor:
    """Return the matrix that an operator decomposes."""
    matrix: Tensor = args["A"] if "A" in args else args["self"]
    return matrix


def _gram(matrix: Tensor) -> Tensor:
    """Return the absolute products of columns with themselves, and so the same for columns of other signs or phases."""
    return (matrix.mH @ matrix).abs()


def _eigen(args: Mapping[str, Any], actual: Results, expected: Results) -> Iterator[Pair]:
    """Compare eigenvalues of any order by the nearest of torch, and eigenvectors by what the matrix does to them."""
    values = actual.get(0)
    if values is not None:
        distances = (expected[0].unsqueeze(-1) - values.unsqueeze(-2)).abs()
        yield values.gather(-1, distances.argmin(-1)), expected[0]
        yield values.sum(-1), expected[0].sum(-1)
    if 1 in actual and values is not None:
        vectors = actual[1]
        yield vectors * values.unsqueeze(-2), _matrix(args).to(vectors.dtype) @ vectors
        yield vectors.abs().square().sum(-2), torch.ones_like(vectors[..., 0, :].abs())


_PICKING: Mapping[str, Compare] = {
    **dict.fromkeys(("max", "min", "median", "nanmedian", "kthvalue", "cummax", "cummin"), _picks),
    **dict.fromkeys(("argmax", "argmin"), partial(_picks, index=0)),
    **dict.fromkeys(("sort", "topk"), partial(_picks, distinct=True)),
    "argsort": partial(_picks, index=0, distinct=True),
    "mode": _frequent,
    **{f"{kind}max_pool{n}d{ending}": partial(_windows, dims=n)
       for n in (2, 3) for kind, ending in (("", "_with_indices"), ("adaptive_", ""), ("fractional_", ""))},
    "adaptive_max_pool1d": partial(_windows, dims=1),
    "max_pool1d_with_indices": partial(_windows, dims=1),
}  # fmt: skip
_FACTORS: Mapping[str, Callable[..., Tensor]] = {
    "linalg_qr": lambda q, r: q @ r,
    "_linalg_eigh": lambda values, vectors: (vectors * values.unsqueeze(-2)) @ vectors.mH,
    "_linalg_svd": lambda u, s, vh: (u[..., : s.shape[-1]] * s.unsqueeze(-2)) @ vh[..., : s.shape[-1], :],
}
_EMPTY = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
_COMPARISONS: Mapping[str, Compare] = {
    **_PICKING,
    **{name: partial(_factors, product) for name, product in _FACTORS.items()},
    "linalg_eig": _eigen,
    "_unique2": _set,
    **dict.fromkeys(_EMPTY, _anything),
}
