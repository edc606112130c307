"""Programs quantized as the configuration says, before they are lowered."""

from __future__ import annotations

from collections.abc import Callable

from torch.export import ExportedProgram

from delegate.errors import ConfigError
from delegate.registry import Registry
from delegate.selection import Selection


def quantized(
    programs: dict[str, ExportedProgram], selection: Selection, registry: Registry
) -> dict[str, ExportedProgram]:
    """The programs, quantized where the configuration says so."""
    if selection.quantization is None:
        return programs
    return configured()(programs, selection.quantization, tuple(selection.backends), registry)


def configured() -> Callable[..., dict[str, ExportedProgram]]:
    """What carries out the `quantization` section; raises ConfigError where torchao is absent."""
    try:
        from delegate.quantization.configured import quantized_as_configured
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torchao":
            raise
        what = "quantization takes torchao, which is not installed"
        raise ConfigError(what, remedy="pip install 'delegate[quantization]'") from error
    return quantized_as_configured
