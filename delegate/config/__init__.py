"""The configuration of `to_backend`: a YAML file, its model, and errors that name file, line and key."""

from delegate.config.load import backend_options, load_config
from delegate.config.model import BackendChoice, Config, Fallback, Partitioning, Policy

__all__ = ["BackendChoice", "Config", "Fallback", "Partitioning", "Policy", "backend_options", "load_config"]
