"""The configuration of `to_backend`: a YAML file, its model, and errors that name file, line and key."""

from delegate.config.load import backend_options, json_schema, load_config, options_of_alias
from delegate.config.model import (
    AccuracyPolicy,
    BackendChoice,
    Cache,
    Config,
    Fallback,
    Partitioning,
    PlacementSection,
    Policy,
    Quantization,
)

__all__ = [
    "AccuracyPolicy",
    "BackendChoice",
    "Cache",
    "Config",
    "Fallback",
    "Partitioning",
    "PlacementSection",
    "Policy",
    "Quantization",
    "backend_options",
    "json_schema",
    "load_config",
    "options_of_alias",
]
