"""Quantization of programs before lowering, as configured; layers stay in float if a bound requires it."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch.export import ExportedProgram

from delegate.accuracy.bounds import Bounds
from delegate.accuracy.layer_noise import FloatRun, LayerNoise, blame, layer_noises, noisiest
from delegate.accuracy.program_run import Results, reference_figures, torch_results
from delegate.accuracy.samples import Sample
from delegate.accuracy.verification import samples_to_verify
from delegate.common.user_warnings import warn_user
from delegate.config import Quantization
from delegate.edge.graphs import is_random
from delegate.errors import ConfigError
from delegate.registry import Registry
from delegate.selection import Selection

_ROUNDS = 6  # of quantizing again; each allows half the noise of the one before
_MARGIN = 0.8  # of the noise that the bounds allow: libraries round in other places than the quantized reference

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class QuantizedPrograms:
    """Quantized programs, and what it took to keep bounds.

    Args:
        programs: Method name -> the quantized program.
        section: the settings, with rules for the layers that have another scheme or stay in float.
        fallback_layers: the layers that have the fallback scheme so that the bounds hold.
        float_layers: the layers that stay in float so that the bounds hold.
        records: the warnings of the last quantization.
        notes: the sentences of the last quantization on layers that the defaults of a scheme do not fit.
        is_within: False if the bounds do not hold yet, because the time was over.
    """

    programs: dict[str, ExportedProgram]
    section: Quantization
    fallback_layers: tuple[LayerNoise, ...]
    float_layers: tuple[LayerNoise, ...]
    records: Sequence[warnings.WarningMessage]
    notes: Sequence[str] = ()
    is_within: bool = True


def quantize_programs(
    programs: dict[str, ExportedProgram],
    selection: Selection,
    registry: Registry,
    verify: Any = None,
    progress: Progress | None = None,
    *,
    bounded: bool = True,
) -> tuple[dict[str, ExportedProgram], Selection]:
    """Return the programs, quantized if the configuration requests it, and the selection with notes on that.

    `verify.on_failure: move` keeps the layers with the most noise in float until the bounds hold in torch. The notes of
    the selection name these layers. A scheme that is chosen by measurement is the placement's to choose.

    Args:
        programs: the float programs by method.
        selection: the backends, and the policy.
        registry: the registry of backends.
        verify, progress: as of `to_backend`.
        bounded: keep the bounds; False if the rules of the section keep them.

    Raises:
        ConfigError, InputError, ExportError: as of `quantize_methods`.
        AccuracyError: torch cannot run a program.
    """
    section, policy = selection.quantization, selection.verify
    if section is None or section.is_auto:
        return programs, selection
    bounds = Bounds.of(policy)
    is_moving = policy is not None and policy.on_failure == "move" and bounds and bounded
    samples = samples_to_verify(verify, programs) if is_moving else {}
    tell = progress or (lambda text: None)
    made = BoundedQuantizer(programs, bounds, samples, tuple(selection.backends), registry, tell).quantize(section)
    for record in made.records:
        warn_user(record.message, record.category)
    selection = replace(selection, notes=(*selection.notes, *made.notes))
    if made.float_layers:
        note = _float_note(made.float_layers, bounds)
        selection = replace(selection, quantization=made.section, notes=(*selection.notes, note))
    return made.programs, selection


def _float_note(layers: Sequence[LayerNoise], bounds: Bounds) -> str:
    count = "1 layer stays" if len(layers) == 1 else f"{len(layers)} layers stay"
    return f"{count} in float, so that {bounds} holds against the float reference: {', '.join(map(str, layers))}"


class BoundedQuantizer:
    """A quantizer that changes the layers with the most noise until bounds hold in torch.

    The float programs run once for all quantizations.

    Args:
        programs: the float programs by method.
        bounds: The bounds that results keep against the float programs.
        samples: the calls to compare by method; methods without samples, or with random numbers, are not compared.
        backends: the backends in use, of which the first that runs integers is the default of a section.
        registry: the registry of backends.
        progress: called with short progress texts.
        methods: the methods to quantize; None for all.
    """

    def __init__(
        self,
        programs: Mapping[str, ExportedProgram],
        bounds: Bounds,
        samples: Mapping[str, Sequence[Sample]],
        backends: Sequence[str],
        registry: Registry,
        progress: Progress,
        methods: Collection[str] | None = None,
    ) -> None:
        self.programs, self._bounds, self._backends, self._registry = dict(programs), bounds, backends, registry
        self._progress, self._methods = progress, tuple(programs if methods is None else methods)
        self._samples = {
            name: samples[name]
            for name in self._methods
            if bounds and name in samples and not is_random(programs[name].graph_module)
        }  # without a bound, torch need not run the programs
        self._runs: dict[str, FloatRun] = {}

    def quantize(self, section: Quantization, fallback: str | None = None, end: float = math.inf) -> QuantizedPrograms:
        """Quantize the methods, and again with other layers, until the bounds hold.

        Args:
            section: the settings.
            fallback: the scheme of a layer with too much noise; if it has too much in that scheme too, it stays in
                float. None: it stays in float at once.
            end: A time by `time.monotonic`, after which nothing is quantized again, and the bounds may not hold.

        Raises:
            ConfigError, InputError, ExportError: as of `quantize_methods`.
            AccuracyError: torch cannot run a program.
        """
        operators = _layer_operators(section, self._backends, self._registry)
        changed: dict[tuple[str, str], tuple[str, LayerNoise]] = {}  # by method and operator: the scheme and the noise
        programs, records, notes = self._quantize(section)
        from delegate.quantization.settings import OFF, set_scheme  # which torchao, if absent, has refused by now

        for number in range(_ROUNDS):
            missed = self._find_missed(programs)
            if not missed or time.monotonic() > end:
                break
            noisy = self._noisy(missed, programs, operators, _MARGIN / 2**number if number < _ROUNDS - 1 else 0.0)
            for key, noise in noisy.items():
                scheme = OFF if fallback is None or key in changed else fallback
                changed[key] = scheme, noise
                section = set_scheme(section, scheme, nodes=noise.nodes)
            self._progress(f"quantizing again with {len(changed)} layers in float or in another scheme")
            programs, records, notes = self._quantize(section)
        fallen, floats = (
            tuple(noise for scheme, noise in changed.values() if (scheme == OFF) is is_float)
            for is_float in (False, True)
        )
        is_within = time.monotonic() <= end or not self._find_missed(programs)
        return QuantizedPrograms(programs, section, fallen, floats, records, notes, is_within)

    def _quantize(
        self, section: Quantization
    ) -> tuple[dict[str, ExportedProgram], list[warnings.WarningMessage], list[str]]:
        """Return the quantized methods, the warnings, and the notes."""
        notes: list[str] = []

        def count(number: int) -> None:
            self._progress(f"calibrating: batch {number}")

        listeners = {"progress": count, "note": notes.append}
        with warnings.catch_warnings(record=True) as records:  # of earlier rounds, they are about other programs
            warnings.simplefilter("always")
            programs = quantize_as_configured(
                self.programs, section, self._backends, self._registry, self._methods, **listeners
            )
            return programs, records, notes

    def _find_missed(self, programs: Mapping[str, ExportedProgram]) -> list[str]:
        """Return the methods that miss the bounds."""
        figures = reference_figures(torch_results(programs, self._samples), self._expected)
        return [name for name, accuracy in figures.items() if self._bounds.excess(accuracy) > _MARGIN]

    def _noisy(
        self, missed: Sequence[str], programs: Mapping[str, ExportedProgram], operators: frozenset[str], allowed: float
    ) -> dict[tuple[str, str], LayerNoise]:
        """Return the noisiest layers of some methods, by method and operator."""
        noisy: dict[tuple[str, str], LayerNoise] = {}
        for name in missed:
            if name not in self._runs:
                label = name if len(self.programs) > 1 else ""
                self._runs[name] = FloatRun.of(self.programs[name], self._samples[name][0], label)
            noises = layer_noises(self._runs[name], programs[name], self._bounds, operators)
            noisy.update(((name, noise.nodes[0]), noise) for noise in noisiest(noises, allowed))
        return noisy

    @cached_property
    def _expected(self) -> Results:
        """The results of the float programs."""
        return torch_results(self.programs, self._samples)


def find_blamed(
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
        backends: the backends in use, of which the first that runs integers is the default of the section.
        registry: the registry of backends.
    """
    for name in backends if section is None or section.backend is None else (section.backend,):
        if schemes := registry.aot(name, absent_ok=True).quantization():
            rows = (row for scheme in schemes for row in scheme.operators if not row.moves)
            return frozenset(row.op.rpartition(".")[0] or row.op for row in rows)
    return frozenset()


def quantize_as_configured(
    programs: Mapping[str, ExportedProgram],
    section: Quantization,
    backends: Sequence[str],
    registry: Registry,
    methods: Collection[str] | None = None,
    **listeners: Any,
) -> dict[str, ExportedProgram]:
    """Quantize methods as a section of the configuration has it.

    Args:
        programs, methods, listeners: see `quantize_methods`.
        section: the settings.
        backends: the backends in use, of which the first that runs integers is the default of the section.
        registry: the registry of backends.

    Raises:
        ConfigError, InputError, ExportError: as of `quantize_methods`; ConfigError if torchao is absent.
    """
    try:
        from delegate.quantization.flow import quantize_methods
        from delegate.quantization.settings import with_backend
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torchao":
            raise
        what = "quantization needs torchao, which is not installed"
        raise ConfigError(what, remedy="pip install 'delegate[quantization]'") from error
    settings = with_backend(section, backends, registry)
    return quantize_methods(programs, settings, registry=registry, methods=methods, **listeners)
