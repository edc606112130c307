"""The step of `delegate lower` that quantizes, with progress."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch.export import ExportedProgram

from delegate.cli import output
from delegate.config import Config, load_config
from delegate.edge.sources import exported_programs
from delegate.errors import ConfigError
from delegate.lowering.quantized import configured
from delegate.registry import default_registry
from delegate.selection import select


def quantized(
    model: ExportedProgram | Path, backends: Sequence[str] | None, config: Path | None, calibration: str | None
) -> tuple[ExportedProgram | Path, Config | None]:
    """The model as the configuration wants it quantized, and what is left of the configuration.

    Args:
        model: as `to_backend` takes it.
        backends: of the command line.
        config: a file.
        calibration: data in place of that of the configuration.

    Raises:
        ConfigError: there is calibration data, and nothing is to be quantized; or as `select` and the flow raise.
        InputError: the calibration data does not fit.
    """
    settings = None if config is None else load_config(config)
    section = None if settings is None else settings.quantization
    if settings is None or section is None:
        if calibration is not None:
            remedy = "add a `quantization` section to the configuration, and give it by --config"
            raise ConfigError("--calibration is for models that are to be quantized", remedy=remedy)
        return model, settings
    if calibration is not None:
        section = section.model_copy(update={"calibration": calibration})
    selection = select(backends, settings, default_registry())
    with output.counting("calibrating", "batches") as progress:
        found = configured()(exported_programs(model), section, tuple(selection.backends), default_registry(), progress)
    return found["forward"], settings.model_copy(update={"quantization": None})
