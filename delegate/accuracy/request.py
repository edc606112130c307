"""The request of an accuracy check: inputs, a reference, and bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from delegate.config import AccuracyPolicy, Config
from delegate.errors import ConfigError
from delegate.plugins import one_line

OnFailure = Literal["error", "warn", "move"]


@dataclass(frozen=True, slots=True)
class Verify:
    """An accuracy check of a program, given as `to_backend(verify=...)`. See docs/accuracy.md.

    Bounds that are None are as the section `verify` of the configuration has them.

    Args:
        inputs: a tuple of arguments, a dict of keyword arguments, or a list of these; for several methods a dict of
            these by method. None: the example inputs of the export.
        reference: the float reference of the model, in any form that `to_backend` accepts, e.g. the program that was
            quantized to the model. A model that is quantized here has its own float program as reference.
        sqnr_db: least ratio of the power of the reference to that of the difference, in dB.
        max_error: greatest absolute difference.
        relative_error: greatest absolute difference, divided by the greatest size in the reference.
        top1: least share of rows whose greatest element is at the same place as in the reference, 0 to 1.
        on_failure: "error" raises AccuracyError. "warn" warns. "move" runs the nodes at fault on other backends or on
            kernels, and keeps the noisiest layers in float, until the bounds hold.
    """

    inputs: Any = None
    reference: Any = None
    sqnr_db: float | None = None
    max_error: float | None = None
    relative_error: float | None = None
    top1: float | None = None
    on_failure: OnFailure | None = None


_BOUNDS = ("sqnr_db", "max_error", "relative_error", "top1", "on_failure")


def with_bounds(config: Config, check: Verify) -> Config:
    """Return the configuration with the bounds of a request; raises ConfigError if these are invalid."""
    bounds = {name: value for name in _BOUNDS if (value := getattr(check, name)) is not None}
    if not bounds:
        return config
    configured = {} if config.verify is None else config.verify.model_dump()
    try:
        policy = AccuracyPolicy.model_validate(configured | bounds)
    except ValueError as error:
        raise ConfigError(f"the bounds of Verify are invalid: {one_line(error)}", where="verify") from error
    return config.model_copy(update={"verify": policy})
