"""The quantized programs that compete in measured placement.

They are the configured candidates. With scheme: auto they are all schemes of all backends, and mixes of these schemes.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

from torch.export import ExportedProgram

from delegate.accuracy.bounds import Bounds
from delegate.accuracy.samples import Sample
from delegate.backends.quantizable import QuantizationScheme
from delegate.config import PlacementSection, Quantization
from delegate.errors import ConfigError
from delegate.lowering.compiler import Compiler
from delegate.lowering.quantized import BoundedQuantizer, QuantizedPrograms
from delegate.measured import Placement
from delegate.placement.layer_groups import LayerGroup, group_schemes, layer_groups
from delegate.placement.plans import BaseProgram, unquantized_candidates
from delegate.registry import Registry

if TYPE_CHECKING:
    from delegate.quantization.settings import SchemeChoice

_OFF = "off"
_ACCURATE = "dynamic_int8"  # the scheme of layers with too much noise in another one
_SIZES = (64, 128, 256, 0)  # of groups of weights, to try after the default one; 0: a scale per channel
_AT_ONCE = 3  # mixes that are measured together
_MOST_ATTEMPTS = 2 * _AT_ONCE  # mixes that are quantized for one measurement; some become equal to earlier programs
_MOST_STALE = 2  # measurements without a better mix, after which the search ends
_UNTRIED = 0.95  # of the least cost: the expected cost of a scheme that no whole program has


@dataclass(frozen=True, slots=True)
class QuantizedCandidate:
    """A quantized program for several backends.

    Args:
        section: the settings of the quantization.
        backends: these compile the program, one candidate each.
        mixed: name of a group of layers -> its scheme, for groups that have another scheme than the section.
    """

    section: Quantization
    backends: tuple[str, ...]
    mixed: Mapping[str, str] = field(default_factory=dict)

    def names(self, made: QuantizedPrograms | None = None) -> dict[str, str]:
        """Return the backends by name of the candidate, which has the layers that bounds changed."""
        size = self.section.group_size
        group = "" if size is None else f" in groups of {size}" if size else " per channel"
        scheme = "float" if self.section.scheme == _OFF else self.section.scheme or "quantized"
        parts = [f"{scheme}{group}", *(f"{g} in {s}" for g, s in self.mixed.items())]
        changed = {} if made is None else {_ACCURATE: made.fallback_layers, "float": made.float_layers}
        parts += [f"{len(n)} {'layer' if len(n) == 1 else 'layers'} in {where}" for where, n in changed.items() if n]
        return {f"{backend} {', '.join(parts)}": backend for backend in self.backends}

    def __str__(self) -> str:
        return ", ".join(self.names())


@dataclass(frozen=True, slots=True)
class _Change:
    """Another scheme for one group of layers.

    Args:
        group: the layers.
        scheme: as rules spell it.
        saving: the expected saving, in seconds or bytes.
    """

    group: LayerGroup
    scheme: str
    saving: float


class SchemePlanner:
    """The quantized programs of one method.

    `bases` has the configured candidates, or the method in every scheme. `mixes` changes the chosen program: a group of
    layers gets another scheme. The measurement keeps a change only if the changed program costs less.

    Args:
        method: its name.
        settings: of the placement.
        compiler: has the float programs of all methods.
        exported: the float programs of all methods.
        samples: the calls to compare by method.
        registry: of backends.
        progress: called with short progress texts.

    Attributes:
        not_tried: the candidates that were left out, with the reason.
        records: warnings for the user, whichever program is chosen: quantization changes nothing.
    """

    def __init__(
        self,
        method: str,
        settings: PlacementSection,
        compiler: Compiler,
        exported: Mapping[str, ExportedProgram],
        samples: Mapping[str, Sequence[Sample]],
        registry: Registry,
        progress: Callable[[str], None],
    ) -> None:
        self.method, self.not_tried, self.records = method, list[str](), list[warnings.WarningMessage]()
        self._settings, self._compiler, self._program = settings, compiler, exported[method]
        self._registry, self._progress, self._section = registry, progress, compiler.selection.quantization
        self._is_auto = self._section is not None and self._section.is_auto
        bound = settings.accuracy if self._is_auto else None
        bounds = Bounds() if bound is None else Bounds(sqnr_db=bound.sqnr_db)
        self._backends = tuple(compiler.selection.backends)
        self._quantizer = BoundedQuantizer(exported, bounds, samples, self._backends, registry, progress, (method,))
        self._candidates: list[tuple[BaseProgram, QuantizedCandidate]] = []
        self._tried: set[Hashable] = set()  # the schemes of all layers of changed programs, before bounds changed some
        self._made: set[Hashable] = set()  # the schemes of all layers of the quantized programs
        self._stale: tuple[BaseProgram | None, int] = None, 0  # the last chosen program, and how often it was chosen

    def bases(self, end: float) -> Iterator[BaseProgram]:
        """Yield the programs in which one scheme is that of all layers without a rule.

        Args:
            end: by `time.monotonic`, after which nothing is quantized.

        Raises:
            ConfigError: a section does not fit; or for scheme: auto, none of them fits.
        """
        from delegate.quantization.flow import NothingQuantized

        failures, noisy = list[ConfigError](), list[QuantizedCandidate]()
        for candidate in self._first_candidates:
            if why := self._left_out(candidate, noisy, end):
                self.not_tried.append(f"{candidate}: {why}")
                continue
            try:
                made = self._quantize(candidate, end, None)
            except ConfigError as error:
                if not self._is_auto:
                    raise
                failures.append(error)  # e.g. given groups that do not divide the inputs of a layer
                self.not_tried.append(f"{candidate}: {error.what}")
                continue
            unchanged = [record for record in made.records if issubclass(record.category, NothingQuantized)]
            if unchanged and not made.float_layers:  # with layers in float for the bound, mixes may quantize some
                self.records += unchanged
                if self._is_auto:
                    self.not_tried.append(f"{candidate}: {unchanged[0].message}")
                    continue
            noisy += [candidate] if made.float_layers else []
            yield from self._new_base(candidate, made)
        for candidate in noisy:
            if time.monotonic() < end:
                yield from self._new_base(candidate, self._quantize(candidate, end, _ACCURATE))
        if self._is_auto and self._candidates:
            self.records.clear()  # other schemes change the program
        if failures and not self._candidates and not self.records:
            raise failures[0]

    def _left_out(self, candidate: QuantizedCandidate, noisy: Sequence[QuantizedCandidate], end: float) -> str:
        """Return the reason that a candidate is not quantized; empty if it is."""
        if time.monotonic() > end and (self._candidates or unquantized_candidates(self._settings, self._backends)):
            return "the budget was spent before it was quantized"
        is_noisy = self._is_auto and candidate.section.scheme in {c.section.scheme for c in noisy}
        return "smaller groups miss the bound already" if is_noisy else ""

    def mixes(self, base: BaseProgram, placement: Placement, end: float) -> list[BaseProgram]:
        """Return programs in which one group of layers has another scheme than in the chosen program.

        Args:
            base: the chosen program.
            placement: its measurement, whose costs order the schemes.
            end: by `time.monotonic`, after which nothing is quantized.

        Returns:
            The most promising programs that were not tried yet; nothing at the end of the search.
        """
        last, count = self._stale
        self._stale = base, count + 1 if last is base else 1
        changed = self._changed(base, placement) if self._is_auto and self._stale[1] <= _MOST_STALE else iter(())
        mixes: list[BaseProgram] = []
        for candidate in islice(changed, _MOST_ATTEMPTS):
            if len(mixes) >= _AT_ONCE or time.monotonic() > end:
                break
            try:
                mixes += self._new_base(candidate, self._quantize(candidate, end, _ACCURATE))
            except ConfigError as error:  # e.g. a weight that has no scale
                self.not_tried.append(f"{candidate}: {error.what}")
        return mixes

    # -- programs -----------------------------------------------------------------------------------------------------

    def _quantize(self, candidate: QuantizedCandidate, end: float, fallback: str | None) -> QuantizedPrograms:
        """Return the program of a candidate.

        Args:
            candidate: the candidate.
            end: by `time.monotonic`, after which nothing is quantized again.
            fallback: the scheme of layers with too much noise, if the backend has it; None: these stay in float.
        """
        self._progress(f"quantizing for {candidate}")
        known = {scheme.name for scheme in self._schemes(candidate.backends[0])} - {candidate.section.scheme}
        return self._quantizer.quantize(candidate.section, fallback if fallback in known else None, end)

    def _new_base(self, candidate: QuantizedCandidate, made: QuantizedPrograms) -> Iterator[BaseProgram]:
        """Yield the quantized program of a candidate, if its layers have other schemes than in all earlier programs."""
        if not made.is_within and self._candidates:
            self.not_tried.append(f"{candidate}: the budget was spent before its results were accurate")
            return
        final = replace(candidate, section=made.section)
        schemes = self._schemes_of_layers(final)
        if self._is_auto and schemes in self._made:
            return
        self._made.add(schemes)
        compiler = self._compiler.fork_with({})
        compiler.add_methods(made.programs)
        names, earlier = candidate.names(made), [n for base, _ in self._candidates for n in base.candidates]
        counts = {name: sum(other.startswith(name) for other in earlier) for name in names}
        own = {f"{n} ({counts[n] + 1})" if counts[n] else n: backend for n, backend in names.items()}
        section = made.section.model_dump(mode="json")
        base = BaseProgram(compiler, made.programs, own, section, made.records, made.notes)
        self._candidates.append((base, final))
        yield base

    def _schemes_of_layers(self, candidate: QuantizedCandidate) -> Hashable:
        """Return the schemes of all layers; and the rules, if the scheme is also that of other operators."""
        section, choice = candidate.section, self._choice(candidate)
        layers = [node for group in self._groups(candidate) for node in group.nodes]
        is_static = any(scheme.name == section.scheme and not scheme.dynamic for scheme in choice.known.values())
        rules = section.model_dump_json(include={"scheme", "operators", "module_types", "modules", "nodes"})
        return tuple(choice.spelled(node) for node in layers), is_static and rules

    def _choice(self, candidate: QuantizedCandidate) -> SchemeChoice:
        from delegate.quantization.flow import settings_of
        from delegate.quantization.settings import SchemeChoice

        return SchemeChoice(settings_of(candidate.section, candidate.backends[0]), self._registry)

    def _groups(self, candidate: QuantizedCandidate) -> list[LayerGroup]:
        return layer_groups(self._program, self._schemes(candidate.backends[0]))

    # -- candidates ---------------------------------------------------------------------------------------------------

    def _schemes(self, backend: str) -> Sequence[QuantizationScheme]:
        """Return the schemes of a backend that may improve the objective: those without integers only save memory."""
        saves = self._settings.objective in ("memory", "file size")
        schemes = self._registry.aot(backend, absent_ok=True).quantization()
        return [s for s in schemes if s.activations is not None or saves] if self._is_auto else schemes

    @cached_property
    def _first_candidates(self) -> Sequence[QuantizedCandidate]:
        """Return the candidates in which one scheme is that of all layers without a rule.

        Those of scheme: auto are all schemes of all backends, in groups of several sizes and per channel. Those that
        are quantized in the least time come first, since the budget may end. Backends share a program if their schemes
        have the same name.
        """
        section = self._section
        if section is None or not section.is_auto:
            given = [(c.name, c.quantization) for c in self._settings.candidates or () if c.quantization is not None]
            return [QuantizedCandidate(s.model_copy(update={"backend": name}), (name,)) for name, s in given]
        backends = self._backends if section.backend is None else (section.backend,)
        known = {name: {s.name: s for s in self._schemes(name)} for name in backends}
        candidates = list[QuantizedCandidate]()
        for scheme in {s.name: s for schemes in reversed(known.values()) for s in schemes.values()}.values():
            if not self._has_data(scheme):
                self.not_tried.append(f"{scheme.name}: there is no calibration data")
                continue
            own = tuple(name for name in backends if scheme.name in known[name])
            for size in self._sizes(scheme, layer_groups(self._program, [scheme])):
                update = {"backend": own[0], "scheme": scheme.name, "sqnr_db": None, "budget": None, "group_size": size}
                candidates.append(QuantizedCandidate(section.model_copy(update=update), own))
        if not candidates and not self.not_tried:
            what = f"none of the backends supports quantized programs: {', '.join(backends)}"
            raise ConfigError(what, where="quantization", remedy="add one that does, or leave quantization out")
        order = {s.name: (bool(s.weights.group), not s.dynamic) for schemes in known.values() for s in schemes.values()}
        return sorted(candidates, key=lambda c: (c.section.group_size in _SIZES, order[c.section.scheme or ""]))

    def _sizes(self, scheme: QuantizationScheme, groups: Sequence[LayerGroup]) -> list[int | None]:
        """Return the group sizes to try for some layers; None is the default of the scheme."""
        given = None if self._section is None else self._section.group_size
        if given is not None or not scheme.weights.group:
            return [given if scheme.weights.group else None]
        least = scheme.weights.group
        fitting = [n for n in _SIZES if n and groups and not any(group.inputs % n for group in groups)]
        return [None, *fitting, *([0] if any(group.inputs % least == 0 for group in groups) else [])]

    def _has_data(self, scheme: QuantizationScheme) -> bool:
        """Return if there is the calibration data that a scheme requires."""
        data = None if self._section is None else self._section.calibration
        return scheme.activations is None or scheme.dynamic or isinstance(data, str) or self.method in (data or ())

    # -- mixes --------------------------------------------------------------------------------------------------------

    def _changed(self, base: BaseProgram, placement: Placement) -> Iterator[QuantizedCandidate]:
        """Yield the candidates that change one group of layers of a program, those that should save most first."""
        from delegate.quantization.settings import set_scheme

        known = next((candidate for other, candidate in self._candidates if other is base), None)
        candidate = known or next(iter(self._first_candidates), None)
        if candidate is None:
            return
        engines = {backend for name, backend in base.candidates.items() if name in placement.chosen}
        backends = tuple(b for b in candidate.backends if b in engines) or candidate.backends
        update: dict[str, object] = {"backend": backends[0]}
        if known is None:  # the float program was chosen
            update |= {"scheme": _OFF, "group_size": None}
        candidate = replace(candidate, section=candidate.section.model_copy(update=update), backends=backends)
        for change in self._changes(candidate, placement):
            nodes = [node.name for node in change.group.nodes]
            section = set_scheme(candidate.section, change.scheme, nodes=nodes)
            changed = replace(candidate, section=section, mixed={**candidate.mixed, change.group.name: change.scheme})
            schemes = self._schemes_of_layers(changed)
            if schemes not in self._tried | self._made:
                self._tried.add(schemes)
                yield changed

    def _changes(self, candidate: QuantizedCandidate, placement: Placement) -> list[_Change]:
        """Return the changes of a candidate, those that should save most first.

        A scheme is expected to cost as much as the program in which all layers have that scheme. A scheme without such
        a program is expected to cost a little less than the best program.
        """
        choice, groups, costs = self._choice(candidate), self._groups(candidate), self._costs(placement)
        total, unknown = sum(group.work for group in groups), _UNTRIED * min(costs.values(), default=0.0)
        changes = list[_Change]()
        for group in groups:
            own = [choice.spelled(node) for node in group.nodes]
            now = sum(costs.get(scheme, unknown) for scheme in own) / len(own)
            changes += (
                _Change(group, scheme, group.work / total * (now - costs.get(scheme, unknown)))
                for scheme in self._spellings(group, candidate.backends[0])
                if set(own) != {scheme}
            )
        return sorted(changes, key=lambda change: -change.saving)

    def _spellings(self, group: LayerGroup, backend: str) -> Iterator[str]:
        """Yield the schemes that a group of layers may have, as rules spell them."""
        for scheme in group_schemes(group, self._schemes(backend)):
            if self._has_data(scheme):
                for size in self._sizes(scheme, [group]):
                    if not group.inputs % (size or (scheme.weights.group if size is None else 0) or 1):
                        yield _spell(scheme.name, size)
        yield _OFF

    def _costs(self, placement: Placement) -> dict[str, float]:
        """Return the least cost of each scheme, of the programs in which all layers have that scheme."""
        rules = {} if self._section is None else self._section.nodes
        costs: dict[str, float] = {}
        for plan in placement.plans:
            owner, length = None, 0  # the candidate with the longest name that the plan's name begins with
            for base, candidate in self._candidates:
                most = max((len(name) for name in base.candidates if plan.name.startswith(name)), default=0)
                owner, length = (candidate, most) if most > length else (owner, length)
            is_uniform = owner is None or (not owner.mixed and owner.section.nodes == rules)
            if plan.cost is not None and is_uniform:
                spelled = _OFF if owner is None else _spell(owner.section.scheme or "", owner.section.group_size)
                costs[spelled] = min(costs.get(spelled, plan.cost), plan.cost)
        return costs


def _spell(scheme: str, size: int | None) -> str:
    """Return a scheme as rules spell it."""
    return scheme if size is None else f"{scheme}/{size}"
