"""Measured placement, as `placement` of the configuration requests it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

from torch.export import ExportedProgram

from delegate.cache.folder import CHOICES
from delegate.cache.store import Store
from delegate.config import Placing
from delegate.errors import ConfigError
from delegate.kernels.libraries import KernelRequest
from delegate.lowering.compiler import Compiler
from delegate.lowering.quantized import configured
from delegate.partitioner.saved import SavedPlan
from delegate.placement.cache import MOST_BYTES
from delegate.placement.calls import samples_to_place
from delegate.placement.cluster import Cluster
from delegate.placement.program_placement import (
    BaseProgram,
    Outcome,
    PlacementContext,
    choose_placements,
    unquantized_candidates,
)
from delegate.placement.remote_placement import RemotePlacement
from delegate.registry import Registry
from delegate.selection import Selection, configured_cache_folder

RAY = "a Ray cluster"
_QUANTIZED = 0.3  # the share of the budget after which no other candidate is quantized


def to_measure(
    place: str | None, selection: Selection, saved: SavedPlan | None, remote: Mapping[str, object]
) -> Placing | None:
    """Return the settings of measured placement, if it is requested; raises ConfigError on contradictions.

    Args:
        place: the argument of the caller.
        selection: the selection, with the configuration.
        saved: a plan to apply.
        remote: the arguments that request remote measurement, by name; None if one is absent.
    """
    if place not in (None, "preference", "measured"):
        raise ConfigError(f"{place!r} is no policy of placement", remedy='give "preference" or "measured"')
    requested = [what for what, argument in remote.items() if argument is not None]
    if requested and place == "preference":
        what = f"places are to be by preference, and {requested[0]} is for those that are measured"
        raise ConfigError(what, where="to_backend", remedy="give one of both")
    if len(requested) > 1 and RAY in requested:
        what = f"{requested[0]} is for what is measured by hand, and Ray does it now"
        raise ConfigError(what, where="to_backend", remedy="give one of both")
    if not requested and (place or selection.placement.policy) != "measured":
        return None
    if saved is not None:
        what = "places are to be measured, and a plan says where nodes run"
        raise ConfigError(what, where="to_backend", remedy="give one of both")
    if not selection.backends:
        raise ConfigError("places are to be measured, and there is no backend", remedy="name some")
    return selection.placement


def measured_places(
    compiler: Compiler,
    exported: Mapping[str, ExportedProgram],
    floats: Mapping[str, ExportedProgram],
    verify: Any,
    registry: Registry,
    cache: bool | None,
    progress: Callable[[str], None] | None,
    remote: RemotePlacement | None,
    ray: str | None,
) -> Outcome:
    """Measure placements and return the outcome.

    Args:
        compiler: the compiler, with the methods added.
        exported: the methods.
        floats: the float references of methods that are other programs, e.g. quantized ones.
        remote: the remote measurement that is requested, if any.
        verify, registry, cache, progress, ray: see `to_backend`.
    """
    selection = compiler.selection
    settings = selection.placement
    begun, not_tried = time.monotonic(), list[str]()
    bases = [BaseProgram(compiler, exported, unquantized_candidates(settings, tuple(selection.backends)))]
    for candidate in settings.candidates or ():
        if candidate.quantization is not None:
            section = candidate.quantization.model_copy(update={"backend": candidate.name})
            name = f"{candidate.name} {section.scheme or 'quantized'}"
            same = sum(label.startswith(name) for base in bases for label in base.candidates)
            name += f" ({same + 1})" * bool(same)
            is_late = time.monotonic() - begun > _QUANTIZED * settings.budget
            if is_late and remote is None and any(base.candidates for base in bases):
                not_tried.append(f"{name}: the budget was over before it was quantized")
                continue
            quantized = configured()(exported, section, tuple(selection.backends), registry)
            other = Compiler(selection, compiler.kernels, None, compiler.artifact_cache)
            other.add_methods(quantized)
            bases.append(BaseProgram(other, quantized, {name: candidate.name}, section.model_dump(mode="json")))
    begun = max(begun, time.monotonic() - _QUANTIZED * settings.budget)  # the rest of the budget is for measuring
    artifacts = compiler.artifact_cache
    identities = {} if artifacts is None else {name: artifacts.identity(name) for name in selection.backends}
    folder = configured_cache_folder(selection.cache, cache)
    is_here = remote is None and ray is None
    with contextlib.ExitStack() as stack:
        circumstances = PlacementContext(
            settings=settings,
            samples=samples_to_place(settings, verify, exported, compiler),
            floats=floats,
            registry=registry,
            kernels=_names(selection.kernels),
            identities={name: text for name, text in identities.items() if text is not None},
            rules=repr(selection.rules),
            store=Store(folder / CHOICES, MOST_BYTES) if folder is not None and is_here else None,
            progress=progress or (lambda text: None),
            begun=begun,
            not_tried=not_tried,
            remote=remote,
            cluster=None if ray is None else stack.enter_context(Cluster(ray)),
        )
        outcome = choose_placements(bases, circumstances)
    if remote is not None:
        remote.finish()
    return outcome


def _names(kernels: KernelRequest | None) -> list[str] | None:
    """Return the names of the kernel libraries; another process can load only those that have a name."""
    requested = [kernels] if isinstance(kernels, str) else kernels
    return None if requested is None else [k for k in requested if isinstance(k, str)]
