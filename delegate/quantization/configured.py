"""The `quantization` section of a configuration, carried out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch.export import ExportedProgram

from delegate.config.model import Quantization
from delegate.errors import ConfigError, did_you_mean
from delegate.quantization.calibration import input_names, read_calibration
from delegate.quantization.flow import Progress, quantize_methods
from delegate.quantization.settings import Settings, schemes
from delegate.registry import Registry


def quantized_as_configured(
    programs: Mapping[str, ExportedProgram],
    section: Quantization,
    backends: Sequence[str],
    registry: Registry,
    progress: Progress | None = None,
) -> dict[str, ExportedProgram]:
    """The methods of a program, quantized.

    Args:
        programs: by the names of the methods.
        section: of the configuration.
        backends: that are used, in order of preference.
        registry: where they are looked up.
        progress: told of each batch of calibration data.

    Raises:
        ConfigError: none of the backends runs integers, the one that is named is not used, or the section does not fit
            the model.
        InputError: the calibration data cannot be read, or does not fit.
        ExportError: torchao does not take the program.
    """
    settings = settings_of(section, _backend(section, backends, registry))
    sources = _calibration(section, tuple(programs))
    data = {name: read_calibration(source, input_names(programs[name])) for name, source in sources.items()}
    return quantize_methods(programs, settings, data, batches=section.batches, progress=progress, registry=registry)


def _calibration(section: Quantization, methods: Sequence[str]) -> Mapping[str, str]:
    """Return the source of each method's calibration data; raises ConfigError if it is for no method or for which."""
    given = section.calibration
    if given is None:
        return {}
    where = "quantization.calibration"
    if isinstance(given, str):
        if len(methods) > 1:
            what = f"one source of calibration data is for one method, and the program has {len(methods)}"
            raise ConfigError(what, where=where, remedy=f"give each its own: {{{methods[0]}: DATA, ...}}")
        return {methods[0]: given}
    for name in given:
        if name not in methods:
            raise ConfigError(f"the program has no method {name!r}", where=where, remedy=did_you_mean(name, methods))
    return given


def settings_of(section: Quantization, backend: str) -> Settings:
    """What a section says, for a backend."""
    return Settings(
        backend,
        section.scheme or "",
        section.operators,
        section.module_types,
        section.modules,
        section.nodes,
        section.group_size,
        section.observer,
        section.outliers,
    )


def _backend(section: Quantization, backends: Sequence[str], registry: Registry) -> str:
    if section.backend is not None:
        if section.backend not in backends:
            what = f"quantization.backend: {section.backend!r} is not among the backends that are used"
            raise ConfigError(what, remedy=f"name one of {', '.join(backends) or 'them'}")
        return section.backend
    able = [name for name in backends if registry.aot(name).quantization()]
    if able:
        return able[0]
    if not backends:
        raise ConfigError("quantization is for a backend, and none is used", remedy="name one that runs integers")
    schemes(backends[0], registry)  # raises the error that names those that run integers
    raise AssertionError("a backend without schemes has some")
