"""Quantization of programs before lowering, as configured; layers stay in float if a bound requires it."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch.export import ExportedProgram

from delegate.accuracy.bounds import Bounds
from delegate.accuracy.samples import Sample
from delegate.accuracy.verification import reference_figures, samples_to_verify, torch_results
from delegate.config import Quantization
from delegate.edge.graphs import is_random
from delegate.errors import ConfigError
from delegate.lowering.layer_noise import FloatRun, LayerNoise, blame, layer_noises, noisiest
from delegate.registry import Registry
from delegate.selection import Selection

_ROUNDS = 6  # of quantizing again; each allows half the noise of the one before
_MARGIN = 0.8  # of the noise that the bounds allow: libraries round in other places than the quantized reference

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class QuantizedPrograms:
    """Quantized programs, and what it took to keep bounds.

    Args:
        programs: by method.
        section: the settings, with rules for the layers that stay in float.
        float_layers: the layers that stay in float so that the bounds hold.
        records: the warnings of the last quantization.
    """

    programs: dict[str, ExportedProgram]
    section: Quantization
    float_layers: tuple[LayerNoise, ...]
    records: Sequence[warnings.WarningMessage]


def quantized(
    programs: dict[str, ExportedProgram],
    selection: Selection,
    registry: Registry,
    verify: Any = None,
    progress: Progress | None = None,
) -> tuple[dict[str, ExportedProgram], Selection]:
    """Return the programs, quantized if the configuration requests it, and the selection with notes on that.

    `verify.on_failure: move` keeps the layers with the most noise in float until the bounds hold in torch. The notes of
    the selection name these layers. A scheme that is chosen by measurement is the placement's to choose.

    Args:
        programs: the float programs by method.
        selection: the backends, and the policy.
        registry: the registry of backends.
        verify: the inputs to verify on, see `samples_of`.
        progress: called with short progress texts.

    Raises:
        ConfigError, InputError, ExportError: as of `quantize_as_configured`.
        AccuracyError: torch cannot run a program.
    """
    section, policy = selection.quantization, selection.verify
    if section is None or section.is_auto:
        return programs, selection
    bounds = Bounds.of(policy)
    samples: Mapping[str, Sequence[Sample]] = {}
    if policy is not None and policy.on_failure == "move" and bounds:
        samples = samples_to_verify(verify, programs)
    made = quantize_within(
        programs, section, bounds, samples, tuple(selection.backends), registry, progress or (lambda text: None)
    )
    for record in made.records:
        warnings.warn(record.message, record.category, stacklevel=4)
    if not made.float_layers:
        return made.programs, selection
    names = ", ".join(map(str, made.float_layers))
    count_text = "1 layer stays" if len(made.float_layers) == 1 else f"{len(made.float_layers)} layers stay"
    note = f"{count_text} in float, so that {bounds} holds against the float reference: {names}"
    return made.programs, replace(selection, quantization=made.section, notes=(*selection.notes, note))


def quantize_within(
    programs: dict[str, ExportedProgram],
    section: Quantization,
    bounds: Bounds,
    samples: Mapping[str, Sequence[Sample]],
    backends: Sequence[str],
    registry: Registry,
    progress: Progress,
    end: float = math.inf,
) -> QuantizedPrograms:
    """Quantize programs, and again with the layers with the most noise in float, until bounds hold in torch.

    Args:
        programs: the float programs by method.
        section: the settings.
        bounds: of results against the float programs.
        samples: the calls to compare by method; methods without samples, or with random numbers, are not compared.
        backends: the backends in use. The first that runs integers is the default of the section.
        registry: the registry of backends.
        progress: called with short progress texts.
        end: by `time.monotonic`, after which nothing is quantized again, and the bounds may not hold.

    Raises:
        ConfigError, InputError, ExportError: as of `quantize_as_configured`.
        AccuracyError: torch cannot run a program.
    """
    quantize = configured()

    def quantize_by(section: Quantization) -> tuple[dict[str, ExportedProgram], list[warnings.WarningMessage]]:
        with warnings.catch_warnings(record=True) as records:  # of earlier rounds, they are about other programs
            warnings.simplefilter("always")
            count = "calibrating: batch {}".format
            return quantize(programs, section, backends, registry, lambda n: progress(count(n))), records

    quantized_programs, records = quantize_by(section)
    compared = samples.items() if bounds else ()  # without a bound, torch need not run the programs
    samples = {name: calls for name, calls in compared if not is_random(programs[name].graph_module)}
    operators = _layer_operators(section, backends, registry)
    float_layers: dict[tuple[str, ...], LayerNoise] = {}  # by method and nodes
    expected, runs = torch_results(programs, samples), dict[str, FloatRun]()
    for number in range(_ROUNDS):
        figures = reference_figures(torch_results(quantized_programs, samples), expected)
        missed = [name for name, accuracy in figures.items() if bounds.excess(accuracy) > _MARGIN]
        if not missed or time.monotonic() > end:
            break
        for name in missed:
            if name not in runs:
                runs[name] = FloatRun.of(programs[name], samples[name][0], name if len(programs) > 1 else "")
            noises = layer_noises(runs[name], quantized_programs[name], bounds, operators)
            allowed = _MARGIN / 2**number if number < _ROUNDS - 1 else 0.0
            float_layers.update(((name, *noise.nodes), noise) for noise in noisiest(noises, allowed))
        from delegate.quantization.settings import keep_in_float

        progress(f"quantizing again with {len(float_layers)} layers in float")
        section = keep_in_float(section, nodes=[node for noise in float_layers.values() for node in noise.nodes])
        quantized_programs, records = quantize_by(section)
    return QuantizedPrograms(quantized_programs, section, tuple(float_layers.values()), records)


def blamed(
    quantized: Mapping[str, ExportedProgram],
    floats: Mapping[str, ExportedProgram],
    verify: Any,
    selection: Selection,
    registry: Registry,
    methods: Sequence[str],
    bounds: Bounds,
) -> tuple[str, str]:
    """Return the layers of methods whose quantization misses bounds in words, and the remedy."""
    samples = samples_to_verify(verify, quantized)
    operators = _layer_operators(selection.quantization, tuple(selection.backends), registry)
    noises: list[LayerNoise] = []
    for name in methods:
        run = FloatRun.of(floats[name], samples[name][0], name if len(quantized) > 1 else "")
        noises += noisiest(layer_noises(run, quantized[name], bounds, operators), _MARGIN)
    return blame(noises)


def _layer_operators(section: Quantization | None, backends: Sequence[str], registry: Registry) -> frozenset[str]:
    """Return the edge operators, without overloads, that the rules of a quantization can keep in float.

    Args:
        section: the section of the configuration; None if the model was quantized before.
        backends: the backends in use. The first that runs integers is the default of the section.
        registry: the registry of backends.
    """
    for name in backends if section is None or section.backend is None else (section.backend,):
        if schemes := registry.aot(name, absent_ok=True).quantization():
            rows = (row for scheme in schemes for row in scheme.operators if not row.moves)
            return frozenset(row.op.rpartition(".")[0] or row.op for row in rows)
    return frozenset()


def configured() -> Callable[..., dict[str, ExportedProgram]]:
    """Return the function that carries out the `quantization` section; raises ConfigError if torchao is absent."""
    try:
        from delegate.quantization.flow import quantize_as_configured
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torchao":
            raise
        what = "quantization needs torchao, which is not installed"
        raise ConfigError(what, remedy="pip install 'delegate[quantization]'") from error
    return quantize_as_configured
