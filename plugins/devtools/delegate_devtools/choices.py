"""More operators with several right answers, which only kernels run: factors of matrices, unique elements and modes.

A factor of a matrix is compared by the product, and unique elements in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from delegate.accuracy import choices
from delegate.accuracy.choices import Compare, Pair, Results, along, elements, with_dim
from delegate.edge.torch_private import OpOverload, schema_of


def compare_of(target: Any, args: Mapping[str, Any]) -> Compare | None:
    """Return the comparison of an operator; see `delegate.accuracy.choices.compare_of`."""
    name = str(schema_of(target).name) if isinstance(target, OpOverload) else ""
    return _COMPARISONS.get(name) or choices.compare_of(target, args)


def _frequent(args: Mapping[str, Any], actual: Results, expected: Results) -> Iterator[Pair]:
    """Compare modes by how often they occur, and their indices by the elements at them."""
    source, dim = along(args)
    for number in actual:
        one, other = (with_dim(r[number], source, dim) for r in (actual, expected))
        if number == 1:
            one, other = elements(source, dim, one), elements(source, dim, other)
        yield tuple((source == t.to(source.dtype)).sum(dim).double() for t in (one, other))  # type: ignore[misc]


def _set(args: Mapping[str, Any], actual: Results, expected: Results) -> Iterator[Pair]:
    """Compare unique elements, which may have any order: the inverse by the elements at it, counts in their order."""
    if 0 in actual and actual[0].shape == expected[0].shape:
        orders = actual[0].sort(), expected[0].sort()
        yield orders[0].values, orders[1].values
        if 1 in actual and actual[1].numel():
            yield elements(actual[0], 0, actual[1].flatten()), args["self"].flatten().double()
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


_FACTORS: Mapping[str, Callable[..., Tensor]] = {
    "linalg_qr": lambda q, r: q @ r,
    "_linalg_eigh": lambda values, vectors: (vectors * values.unsqueeze(-2)) @ vectors.mH,
    "_linalg_svd": lambda u, s, vh: (u[..., : s.shape[-1]] * s.unsqueeze(-2)) @ vh[..., : s.shape[-1], :],
}
_COMPARISONS: Mapping[str, Compare] = {
    **{f"aten::{name}": partial(_factors, product) for name, product in _FACTORS.items()},
    "aten::linalg_eig": _eigen,
    "aten::_unique2": _set,
    "aten::mode": _frequent,
}
