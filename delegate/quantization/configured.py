"""Quantization by the `quantization` section of a configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch.export import ExportedProgram

from delegate.config.model import Quantization
from delegate.errors import ConfigError, did_you_mean
from delegate.quantization.calibration import input_names, read_calibration
from delegate.quantization.flow import Progress, quantize_methods
from delegate.quantization.settings import Settings, schemes
from delegate.registry import Registry


def quantize_as_configured(
    programs: Mapping[str, ExportedProgram],
    section: Quantization,
    backends: Sequence[str],
    registry: Registry,
    progress: Progress | None = None,
) -> dict[str, ExportedProgram]:
    """Quantize the methods of a program.

    Args:
        programs: the exported methods by name.
        section: the section of the configuration.
        backends: the backends in use, in order of preference.
        registry: the registry that holds the backends.
        progress: called with the number of each finished batch of calibration data.

    Raises:
        ConfigError: none of the backends runs integers, the named backend is not in use, or the section does not fit
            the model.
        InputError: the calibration data cannot be read, or does not fit.
        ExportError: torchao does not accept the program.
    """
    settings = _settings(section, _backend(section, backends, registry))
    sources = _calibration(section, tuple(programs))
    data = {name: read_calibration(source, input_names(programs[name])) for name, source in sources.items()}
    return quantize_methods(programs, settings, data, batches=section.batches, progress=progress, registry=registry)


def _calibration(section: Quantization, methods: Sequence[str]) -> Mapping[str, str]:
    """Return the source of each method's calibration data.

    Raises:
        ConfigError: a source names no method of the program, or one source stands for several methods.
    """
    sources = section.calibration
    if sources is None:
        return {}
    where = "quantization.calibration"
    if isinstance(sources, str):
        if len(methods) > 1:
            what = f"one source of calibration data is for one method, and the program has {len(methods)}"
            raise ConfigError(what, where=where, remedy=f"give each its own: {{{methods[0]}: DATA, ...}}")
        return {methods[0]: sources}
    for name in sources:
        if name not in methods:
            raise ConfigError(f"the program has no method {name!r}", where=where, remedy=did_you_mean(name, methods))
    return sources


def _settings(section: Quantization, backend: str) -> Settings:
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
