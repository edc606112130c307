"""Random numbers of rare distributions, from the generator of this table, which `TABLE.seed` restarts."""

from __future__ import annotations

import numpy as np

from delegate.kernels.half_precision import Array
from delegate.kernels.operands import WIDE
from delegate.kernels.table import INT
from delegate_kernels_extra.table import TABLE


@TABLE.kernel("aten.cauchy.default", dtypes=WIDE, random=True)
def cauchy(x: Array, median: float, sigma: float, _generator: None, *, out: Array) -> None:
    np.copyto(out, TABLE.generator.standard_cauchy(out.shape) * sigma + median, casting="same_kind")


@TABLE.kernel("aten.geometric.default", dtypes=WIDE | INT, random=True)
def geometric(x: Array, probability: float, _generator: None, *, out: Array) -> None:
    """Draw the number of trials with this probability up to the first success."""
    np.copyto(out, TABLE.generator.geometric(probability, out.shape), casting="unsafe")


@TABLE.kernel("aten.log_normal.default", dtypes=WIDE, random=True)
def log_normal(x: Array, mean: float, std: float, _generator: None, *, out: Array) -> None:
    """Draw exp of normal numbers."""
    np.copyto(out, TABLE.generator.lognormal(mean, std, out.shape), casting="same_kind")
