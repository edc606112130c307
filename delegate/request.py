"""The checked arguments of `to_backend`, and the model with its placement before it is compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch.export import ExportedProgram

from delegate.accuracy.bounds import Verify, with_bounds
from delegate.cache.aot.artifacts import ArtifactCache
from delegate.config import PlacementSection, load_config
from delegate.edge.sources import Model, read_programs
from delegate.errors import ConfigError
from delegate.kernels.libraries import KernelRequest
from delegate.kernels.selection import kernels_of
from delegate.lowering.compiler import Compiler
from delegate.partitioner.saved import SavedPlan
from delegate.placement.estimated import Estimated
from delegate.placement.measured import Measured
from delegate.placement.policy import ByPolicy, PlacementPolicy
from delegate.placement.strategy import ByPreference, Placed, Strategy
from delegate.registry import Registry, default_registry
from delegate.selection import ConfigSource, Request, Selection, select

PlacementRequest = Strategy | SavedPlan | PlacementPolicy


@dataclass(frozen=True, slots=True)
class LoweringRequest:
    """The checked arguments of `to_backend`.

    Args:
        sources: the exported methods.
        check: the inputs, reference and bounds of the accuracy check.
        strategy: the placement.
        selection: the backends, kernels and policies.
        registry: the registry of backends.
        cache: use the caches on disk; None: as configured.
        progress: called with short progress texts; None: no progress.
        decomposed: compound operators that are not preserved for any backend.
    """

    sources: dict[str, ExportedProgram]
    check: Verify
    strategy: Strategy
    selection: Selection
    registry: Registry
    cache: bool | None
    progress: Callable[[str], None] | None
    decomposed: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        model: Model,
        backends: Request,
        config: ConfigSource = None,
        *,
        kernels: KernelRequest | None = None,
        placement: PlacementRequest | None = None,
        verify: Any = None,
        cache: bool | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> LoweringRequest:
        """Check the arguments of `to_backend`; raises ExportError, ConfigError, KernelError or BackendError."""
        registry = default_registry()
        check = verify if isinstance(verify, Verify) else Verify(verify)
        settings = with_bounds(load_config({} if config is None else config, registry=registry), check)
        is_named = backends is not None or settings.backends is not None
        strategy = open_strategy(placement, settings.measuring(), is_named=is_named)
        if settings.quantization is not None and settings.quantization.is_auto and not strategy.can_quantize:
            remedy = "leave placement out, or replay a lockfile"
            raise ConfigError("quantization with scheme: auto is measured", where="placement", remedy=remedy)
        selection = select(backends, settings, registry, kernels, strategy.backends, cache)
        sources = read_programs(model)
        strategy.require_model(sources, selection)
        strategy.calibrate(selection, cache, progress)
        return cls(sources, check, strategy, selection, registry, cache, progress)

    def place(
        self, artifacts: ArtifactCache | None, prepare: Callable[[Compiler], None] = lambda compiler: None
    ) -> Placed:
        """Quantize the methods, if requested, convert them to edge dialect, and place their nodes.

        Args:
            artifacts: the cache of artifacts; None without a cache.
            prepare: called with the compiler before it compiles anything.
        """
        inputs, registry = self.check.inputs, self.registry
        exported, selection = self.strategy.quantize(self.sources, self.selection, registry, inputs, self.progress)
        references = self.sources if self.check.reference is None else read_programs(self.check.reference)
        compiler = Compiler(
            selection, kernels_of(registry, selection.kernels), self.strategy.plan, artifacts, self.decomposed
        )
        prepare(compiler)
        compiler.add_methods(exported)
        placed = self.strategy.place(compiler, exported, replace(self.check, reference=references))
        floats = {name: ep for name, ep in references.items() if ep is not placed.exported.get(name)}
        return replace(placed, floats=floats)

    def forget_model(self, strategy: Strategy) -> LoweringRequest:
        """Return the request without models, inputs and progress, with a strategy that has the places of a program."""
        check = replace(self.check, inputs=None, reference=None)
        return replace(self, sources={}, check=check, strategy=strategy, progress=None)


def open_strategy(request: PlacementRequest | None, settings: PlacementSection, *, is_named: bool) -> Strategy:
    """Return the strategy of a request, for one lowering.

    Args:
        request: the argument of the user; None: as configured.
        settings: the section `placement` of the configuration.
        is_named: the user has named the backends, so that they are in an order of preference.

    Raises:
        ConfigError: the request is not a placement; and the errors of `Strategy.open`.
    """
    if request is None:
        request = read_request(settings, is_named=is_named)
    elif isinstance(request, SavedPlan):
        request = Strategy(request)
    elif isinstance(request, PlacementPolicy):
        request = ByPolicy(request)
    if isinstance(request, Strategy):
        return request.open(settings)
    known = ".Measured(), .Remote(bundle, costs), .Replay(lockfile), .ByPreference(), or a SavedPlan"
    remedy = f"give delegate.Estimated(), {known}"
    raise ConfigError(f"placement cannot be a {type(request).__name__}", where="to_backend", remedy=remedy)


def read_request(settings: PlacementSection, *, is_named: bool) -> ByPreference | Estimated | Measured:
    """Return the request that a configuration stands for; raises ConfigError if it has keys without effect.

    Args: see `open_strategy`.
    """
    policy = settings.policy or ("preference" if is_named else "estimated")
    if policy == "measured":
        return Measured()
    if unused := sorted(settings.model_fields_set - {"policy"}):
        what = f"{', '.join(unused)}: only measured placement uses {'this key' if len(unused) == 1 else 'these keys'}"
        remedy = "add policy: measured, or remove them"
        raise ConfigError(f"{what}, and it is by {policy}", where="placement", remedy=remedy)
    return ByPreference() if policy == "preference" else Estimated()
