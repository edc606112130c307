"""Programs over many rows: `Predictor` for Ray Data, and the command `delegate batch`."""

from delegate_ray.runtime.predictor import Predictor

__all__ = ["Predictor"]
