"""The documentation of the configuration: its example is valid and shows every key."""

from __future__ import annotations

import re
from pathlib import Path

from delegate.config import (
    AccuracyPolicy,
    BackendChoice,
    Cache,
    Config,
    Fallback,
    Partitioning,
    PlacementSection,
    Policy,
    Quantization,
    load_config,
)

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "configuration.md").read_text()


def test_example_is_valid_and_complete(tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    file = tmp_path / "example.yaml"
    file.write_text(example)
    config = load_config(file)
    assert config.backends is not None
    assert config.model_fields_set == set(Config.model_fields)
    assert config.backends[0].model_fields_set == set(BackendChoice.model_fields)
    assert config.partitioning.model_fields_set == set(Partitioning.model_fields)
    assert config.policy.model_fields_set == set(Policy.model_fields)
    assert config.cache.model_fields_set == set(Cache.model_fields)
    assert config.fallback.model_fields_set == set(Fallback.model_fields)
    assert config.verify is not None
    assert config.verify.model_fields_set == set(AccuracyPolicy.model_fields)
    assert config.placement.model_fields_set == set(PlacementSection.model_fields)
    assert config.placement.accuracy is not None
    assert config.placement.accuracy.model_fields_set == set(type(config.placement.accuracy).model_fields)
    assert config.quantization is not None
    assert config.quantization.model_fields_set == set(Quantization.model_fields)
