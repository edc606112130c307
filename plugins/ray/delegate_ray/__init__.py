"""Programs over many rows, and work on Ray clusters: `Predictor` for Ray Data, and commands of `delegate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from delegate.usage_data import opt_out

if TYPE_CHECKING:
    from delegate_ray.runtime.predictor import Predictor as Predictor

__all__ = ["Predictor"]

opt_out(variables={"RAY_USAGE_STATS_ENABLED": "0"}, answers=("~/.ray/config.json",))


def __getattr__(name: str) -> Any:
    """Import `Predictor` when it is first used: the command line reads this package's facts without pyarrow."""
    if name != "Predictor":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from delegate_ray.runtime.predictor import Predictor

    return Predictor
