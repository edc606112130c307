"""Layer, RMS, group, instance and batch normalization."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from delegate.errors import KernelError
from delegate.kernels.half_precision import Array
from delegate.kernels.operands import WIDE, along, row_blocks
from delegate.kernels.sums import add, add_rows, square_rows
from delegate.kernels.table import TABLE

Maybe = Array | None
_FAR = 2.0**12  # squares of means of as many variances: there the rounding of a mean shows in the differences from it


def standardize(rows: Array, eps: float, out: Array, mean: Array, rstd: Array) -> None:
    """Compute (x - mean) / sqrt(variance + eps) of every row, with the population variance.

    Args:
        rows, out: shape [N, width].
        eps: added to the variance.
        mean, rstd: results of shape [N]: the mean and 1 / sqrt(variance + eps) of each row.
    """
    width = rows.shape[1]
    for block in row_blocks(*rows.shape):
        x, y, m, r = rows[block], out[block], mean[block], rstd[block]
        np.divide(add_rows(x), width, out=m)
        np.subtract(x, m[:, None], out=y)
        np.divide(square_rows(y), width, out=r)
        if np.any(np.square(m) > _FAR * r):
            rest = add_rows(y) / width
            np.subtract(y, rest[:, None], out=y)
            np.add(m, rest, out=m)
            np.divide(square_rows(y), width, out=r)
        np.add(r, eps, out=r)
        np.reciprocal(np.sqrt(r, out=r), out=r)
        np.multiply(y, r[:, None], out=y)


def affine(out: Array, weight: Maybe, bias: Maybe) -> None:
    """Compute out * weight + bias in place; both broadcast, and either may be None."""
    if weight is not None:
        np.multiply(out, weight, out=out)
    if bias is not None:
        np.add(out, bias, out=out)


def _layer_norm(
    x: Array, shape: Sequence[int], weight: Maybe, bias: Maybe, eps: float, out: Array
) -> tuple[Array, Array]:
    width = math.prod(shape)
    rows = math.prod(x.shape[: x.ndim - len(shape)])
    mean, rstd = np.empty(rows, x.dtype), np.empty(rows, x.dtype)
    work = out if out.flags.c_contiguous else np.empty(out.shape, out.dtype)
    standardize(x.reshape(rows, width), eps, work.reshape(rows, width), mean, rstd)
    affine(work, weight, bias)
    if work is not out:
        np.copyto(out, work)
    return mean, rstd


@TABLE.kernel("aten.native_layer_norm.default", dtypes=WIDE)
def native_layer_norm(
    x: Array, shape: Sequence[int], weight: Maybe, bias: Maybe, eps: float, *, out: tuple[Array, Array, Array]
) -> None:
    """Normalize the last len(shape) dimensions; also compute mean and 1 / standard deviation."""
    mean, rstd = _layer_norm(x, shape, weight, bias, eps, out[0])
    np.copyto(out[1], mean.reshape(out[1].shape))
    np.copyto(out[2], rstd.reshape(out[2].shape))


@TABLE.kernel("aten.layer_norm.default", dtypes=WIDE, whole=True)
def layer_norm(
    x: Array, shape: Sequence[int], weight: Maybe, bias: Maybe, eps: float, _cudnn: bool, *, out: Array
) -> None:
    _layer_norm(x, shape, weight, bias, eps, out)


def _rms_norm(x: Array, shape: Sequence[int], weight: Maybe, eps: float | None, out: Array) -> Array:
    """Compute x / sqrt(mean(x**2) + eps) over the last dimensions, and return 1 / that root.

    An eps of None is the machine epsilon.
    """
    lead = x.ndim - len(shape)
    axes = tuple(range(lead, x.ndim))
    np.square(x, out=out)
    rstd = add(out, axes, keepdims=True)
    np.divide(rstd, math.prod(shape), out=rstd)
    np.add(rstd, float(np.finfo(x.dtype).eps) if eps is None else eps, out=rstd)
    np.reciprocal(np.sqrt(rstd, out=rstd), out=rstd)
    np.multiply(x, rstd, out=out)
    affine(out, weight, None)
    return rstd


@TABLE.kernel("aten.rms_norm.default", dtypes=WIDE, whole=True)
def rms_norm(x: Array, shape: Sequence[int], weight: Maybe, eps: float | None, *, out: Array) -> None:
    _rms_norm(x, shape, weight, eps, out)


def _group_norm(x: Array, groups: int, weight: Maybe, bias: Maybe, eps: float, out: Array) -> tuple[Array, Array]:
    """Normalize each group of C // groups channels of x [N, C, ...] by itself, for every N."""
    rows = x.shape[0] * groups
    width = x.size // rows if rows else 0
    mean, rstd = np.empty(rows, x.dtype), np.empty(rows, x.dtype)
    work = out if out.flags.c_contiguous else np.empty(out.shape, out.dtype)
    standardize(x.reshape(rows, width), eps, work.reshape(rows, width), mean, rstd)
    affine(work, _channels(weight, x), _channels(bias, x))
    if work is not out:
        np.copyto(out, work)
    return mean, rstd


def _channels(vector: Maybe, x: Array) -> Maybe:
    """Return a vector over the channels, shaped to broadcast with x."""
    return None if vector is None else along(vector, x.ndim, 1)


@TABLE.kernel("aten.native_group_norm.default", dtypes=WIDE)
def native_group_norm(
    x: Array, weight: Maybe, bias: Maybe, _n: int, _c: int, _hw: int, groups: int, eps: float, *, out: tuple[Array, ...]
) -> None:
    mean, rstd = _group_norm(x, groups, weight, bias, eps, out[0])
    np.copyto(out[1], mean.reshape(out[1].shape))
    np.copyto(out[2], rstd.reshape(out[2].shape))


@TABLE.kernel("aten.group_norm.default", dtypes=WIDE, whole=True)
def group_norm(x: Array, groups: int, weight: Maybe, bias: Maybe, eps: float, _cudnn: bool, *, out: Array) -> None:
    _group_norm(x, groups, weight, bias, eps, out)


@TABLE.kernel("aten.instance_norm.default", dtypes=WIDE, whole=True)
def instance_norm(
    x: Array, weight: Maybe, bias: Maybe, running_mean: Maybe, running_var: Maybe,
    use_input_stats: bool, momentum: float, eps: float, _cudnn: bool, *, out: Array,
) -> None:  # fmt: skip
    if not use_input_stats:
        assert running_mean is not None
        assert running_var is not None
        _with_stats(x, weight, bias, running_mean, running_var, eps, out)
        return
    _refuse_mutation("aten.instance_norm.default", running_mean is not None)
    _group_norm(x, x.shape[1], weight, bias, eps, out)


def _refuse_mutation(op: str, mutates: bool) -> None:
    if mutates:
        raise KernelError(
            "normalization in training mode changes its running statistics in place", where=op,
            remedy="export the model after model.eval()",
        )  # fmt: skip


def _with_stats(x: Array, weight: Maybe, bias: Maybe, mean: Array, var: Array, eps: float, out: Array) -> None:
    """Normalize with one multiplication and one addition per element, with scale and shift from the statistics."""
    scale: Array = np.reciprocal(np.sqrt(var + var.dtype.type(eps)))
    if weight is not None:
        scale = scale * weight
    shift = -mean * scale if bias is None else bias - mean * scale
    np.multiply(x, along(scale, x.ndim, 1), out=out)
    np.add(out, along(shift, x.ndim, 1), out=out)


def _batch_stats(x: Array) -> tuple[Array, Array]:
    """Return the mean and population variance of every channel."""
    axes = (0, *range(2, x.ndim))
    count = x.size // x.shape[1]
    mean = add(x, axes) / count
    difference = x - along(mean, x.ndim, 1)
    return mean, add(np.square(difference, out=difference), axes) / count


@TABLE.kernel("aten._native_batch_norm_legit_no_training.default", dtypes=WIDE)
def batch_norm_inference(
    x: Array,
    weight: Maybe,
    bias: Maybe,
    mean: Array,
    var: Array,
    _momentum: float,
    eps: float,
    *,
    out: tuple[Array, ...],
) -> None:
    """Normalize by running statistics; the saved statistics are zero."""
    for statistics in out[1:]:
        statistics.fill(0)
    _with_stats(x, weight, bias, mean, var, eps, out[0])


@TABLE.kernel("aten._native_batch_norm_legit.default", dtypes=WIDE)
def batch_norm_legit(
    x: Array, weight: Maybe, bias: Maybe, mean: Maybe, var: Maybe, training: bool, momentum: float, eps: float,
    *, out: tuple[Array, ...],
) -> None:  # fmt: skip
    """Normalize by running or batch statistics; training with running statistics would change them in place."""
    if not training and mean is not None and var is not None:
        for statistics in out[1:]:
            statistics.fill(0)
        _with_stats(x, weight, bias, mean, var, eps, out[0])
        return
    _refuse_mutation("aten._native_batch_norm_legit.default", mean is not None)
    batch_norm_no_stats(x, weight, bias, training, momentum, eps, out=out)


@TABLE.kernel("aten._native_batch_norm_legit.no_stats", dtypes=WIDE)
def batch_norm_no_stats(
    x: Array, weight: Maybe, bias: Maybe, _training: bool, _momentum: float, eps: float, *, out: tuple[Array, ...]
) -> None:
    """Normalize by the batch's own statistics; also compute mean and 1 / standard deviation."""
    mean, var = _batch_stats(x)
    _with_stats(x, weight, bias, mean, var, eps, out[0])
    np.copyto(out[1], mean)
    np.reciprocal(np.sqrt(var + var.dtype.type(eps)), out=out[2])


@TABLE.kernel("aten._native_batch_norm_legit_functional.default", dtypes=WIDE)
def batch_norm_functional(
    x: Array, weight: Maybe, bias: Maybe, mean: Array, var: Array, training: bool, momentum: float, eps: float,
    *, out: tuple[Array, ...],
) -> None:  # fmt: skip
    """Normalize; also compute the running statistics after this batch, with the unbiased variance."""
    if not training:
        for statistics in out[1:3]:
            statistics.fill(0)
        _with_stats(x, weight, bias, mean, var, eps, out[0])
        np.copyto(out[3], mean)
        np.copyto(out[4], var)
        return
    batch_norm_no_stats(x, weight, bias, training, momentum, eps, out=out[:3])
    batch_mean, batch_var = _batch_stats(x)
    count = x.size // x.shape[1]
    np.copyto(out[3], mean * (1 - momentum) + batch_mean * momentum)
    np.copyto(out[4], var * (1 - momentum) + batch_var * (momentum * count / (count - 1)))
