"""The quantized programs that compete in measured placement: as configured, or with scheme: auto all schemes."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from delegate.accuracy.bounds import Bounds
from delegate.accuracy.samples import Sample
from delegate.backend.quantizable import QuantizationScheme
from delegate.config import PlacementSection, Quantization
from delegate.edge.graphs import describe_graph
from delegate.edge.node import base_name, edge_names, tensor
from delegate.errors import ConfigError
from delegate.lowering.compiler import Compiler
from delegate.lowering.quantized import BoundedQuantizer, QuantizedPrograms
from delegate.placement.plans import Candidate, float_candidates
from delegate.registry import Registry

_ACCURATE = "dynamic_int8"  # the scheme of layers with too much noise in another one
_SIZES = (64, 128, 256, 0)  # of groups of weights, to try after the default one; 0: a scale per channel


@dataclass(frozen=True, slots=True)
class QuantizedCandidate:
    """A quantized program for several backends.

    Args:
        section: the settings of the quantization.
        backends: these compile the program, one candidate each.
    """

    section: Quantization
    backends: tuple[str, ...]

    def names(self, made: QuantizedPrograms | None = None) -> dict[str, str]:
        """Return the backends by name of the candidate, which has the layers that bounds changed."""
        size = self.section.group_size
        group = "" if size is None else f" in groups of {size}" if size else " per channel"
        parts = [f"{self.section.scheme or 'quantized'}{group}"]
        changed = {} if made is None else {_ACCURATE: made.fallback_layers, "float": made.float_layers}
        parts += [f"{len(n)} {'layer' if len(n) == 1 else 'layers'} in {where}" for where, n in changed.items() if n]
        return {f"{backend} {', '.join(parts)}": backend for backend in self.backends}

    def __str__(self) -> str:
        return ", ".join(self.names())


class SchemePlanner:
    """The quantized programs of one method.

    Args:
        method: its name.
        settings: The placement's settings.
        compiler: has the float programs of all methods.
        exported: the float programs of all methods.
        samples: the calls to compare by method.
        registry: The registry that knows the backends.
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
        self._made: list[Candidate] = []
        self._structures: set[bytes] = set()  # the graphs of the programs as text

    def make_candidates(self, end: float) -> Iterator[list[Candidate]]:
        """Yield the candidates of each program in which all layers without a rule have one scheme.

        Args:
            end: A time by `time.monotonic`, after which nothing is quantized.

        Raises:
            ConfigError: a section does not fit; or for scheme: auto, none of them fits.
        """
        from delegate.quantization.flow import NothingQuantized

        failures, noisy = list[ConfigError](), list[QuantizedCandidate]()
        for candidate in self._candidates():
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
            if unchanged and not made.float_layers:
                self.records += unchanged
                if self._is_auto:
                    self.not_tried.append(f"{candidate}: {unchanged[0].message}")
                    continue
            noisy += [candidate] if made.float_layers else []
            yield from self._add(candidate, made)
        for candidate in noisy:
            if time.monotonic() < end:
                yield from self._add(candidate, self._quantize(candidate, end, _ACCURATE))
        if self._is_auto and self._made:
            self.records.clear()  # other schemes change the program
        if failures and not self._made and not self.records:
            raise failures[0]

    def _left_out(self, candidate: QuantizedCandidate, noisy: Sequence[QuantizedCandidate], end: float) -> str:
        """Return the reason that a candidate is not quantized; empty if it is."""
        if time.monotonic() > end and (self._made or float_candidates(self._settings, self._backends)):
            return "the budget was spent before it was quantized"
        is_noisy = self._is_auto and candidate.section.scheme in {c.section.scheme for c in noisy}
        return "smaller groups miss the bound already" if is_noisy else ""

    def _quantize(self, candidate: QuantizedCandidate, end: float, fallback: str | None) -> QuantizedPrograms:
        """Return the program of a candidate.

        Args:
            candidate: the candidate.
            end: A time by `time.monotonic`, after which nothing is quantized again.
            fallback: the scheme of layers with too much noise, if the backend has it; None: these stay in float.
        """
        self._progress(f"quantizing for {candidate}")
        known = {scheme.name for scheme in self._schemes(candidate.backends[0])} - {candidate.section.scheme}
        return self._quantizer.quantize(candidate.section, fallback if fallback in known else None, end)

    def _add(self, candidate: QuantizedCandidate, made: QuantizedPrograms) -> Iterator[list[Candidate]]:
        """Yield the quantized program of a candidate for each backend, if no earlier one has the same structure."""
        if not made.is_within and self._made:
            self.not_tried.append(f"{candidate}: the budget was spent before its results were accurate")
            return
        structure = describe_graph(made.programs[self.method].graph_module)
        if self._is_auto and structure in self._structures:
            return
        self._structures.add(structure)
        compiler = self._compiler.fork_with({})
        compiler.add_methods(made.programs)
        group = []
        for name, backend in candidate.names(made).items():
            count = sum(other.name.startswith(name) for other in self._made)
            group.append(Candidate(f"{name} ({count + 1})" if count else name, backend, compiler, made))
        self._made += group
        yield group

    def _schemes(self, backend: str) -> Sequence[QuantizationScheme]:
        """Return the schemes of a backend that may improve the objective: those without integers only save memory."""
        saves = self._settings.objective in ("memory", "file size")
        schemes = self._registry.aot(backend, absent_ok=True).quantization()
        return [s for s in schemes if s.activations is not None or saves] if self._is_auto else schemes

    def _candidates(self) -> Sequence[QuantizedCandidate]:
        """Return the candidates in which all layers without a rule have one scheme.

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
            if not self._has_data(scheme, section):
                self.not_tried.append(f"{scheme.name}: there is no calibration data")
                continue
            own = tuple(name for name in backends if scheme.name in known[name])
            for size in _sizes(scheme, section.group_size, self._program):
                update = {"backend": own[0], "scheme": scheme.name, "sqnr_db": None, "budget": None, "group_size": size}
                candidates.append(QuantizedCandidate(section.model_copy(update=update), own))
        if not candidates and not self.not_tried:
            what = f"none of the backends supports quantized programs: {', '.join(backends)}"
            raise ConfigError(what, where="quantization", remedy="add one that does, or leave quantization out")
        order = {s.name: (bool(s.weights.group), not s.dynamic) for schemes in known.values() for s in schemes.values()}
        return sorted(candidates, key=lambda c: (c.section.group_size in _SIZES, order[c.section.scheme or ""]))

    def _has_data(self, scheme: QuantizationScheme, section: Quantization) -> bool:
        """Return if there is the calibration data that a scheme requires."""
        data = section.calibration
        return scheme.activations is None or scheme.dynamic or isinstance(data, str) or self.method in (data or ())


def _sizes(scheme: QuantizationScheme, given: int | None, program: ExportedProgram) -> list[int | None]:
    """Return the group sizes to try for the layers of a program; None is the default of the scheme."""
    if given is not None or not scheme.weights.group:
        return [given if scheme.weights.group else None]
    inputs = [count for node in program.graph.nodes if (count := _channel_inputs(program, node, scheme))]
    fitting = [size for size in _SIZES if size and inputs and not any(count % size for count in inputs)]
    return [None, *fitting, *([0] if any(count % scheme.weights.group == 0 for count in inputs) else [])]


def _channel_inputs(program: ExportedProgram, node: Node, scheme: QuantizationScheme) -> int:
    """Return the inputs per channel of a layer with a constant weight that the scheme quantizes; 0 for other nodes."""
    value = node.meta.get("val")
    if node.op != "call_function" or not isinstance(value, torch.Tensor) or value.dtype is not torch.float32:
        return 0
    names = edge_names(base_name(node))
    row = next((row for row in scheme.operators if (row.op.rpartition(".")[0] or row.op) in names), None)
    weight = None if row is None or row.weight is None or not row.inputs else node.args[row.weight]
    if not isinstance(weight, Node) or weight.op != "placeholder" or weight.name in program.graph_signature.user_inputs:
        return 0
    return int(tensor(weight).shape[-1])
