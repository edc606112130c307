"""Places by measuring: what `placement` of the configuration asks for, for a compiler that has taken the methods."""

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
from delegate.kernels.libraries import Wanted
from delegate.lowering.compiler import Compiler
from delegate.lowering.quantized import configured
from delegate.partitioner.saved import SavedPlan
from delegate.placement.calls import samples_to_place
from delegate.placement.cluster import Cluster
from delegate.placement.kept import MOST_BYTES
from delegate.placement.placing import Base, Circumstances, Outcome, named_candidates, placed
from delegate.placement.replaying import Elsewhere
from delegate.registry import Registry
from delegate.selection import Selection, kept_folder

RAY = "a Ray cluster"
_QUANTIZED = 0.3  # the share of the budget after which no other candidate is quantized


def to_measure(
    place: str | None, selection: Selection, saved: SavedPlan | None, elsewhere: Mapping[str, object]
) -> Placing | None:
    """How places are to be measured, here or elsewhere, if so; raises ConfigError where that cannot be.

    Args:
        place: as the caller says.
        selection: that has the configuration.
        saved: a plan.
        elsewhere: what says that it is measured elsewhere, by name; None where it does not.
    """
    if place not in (None, "preference", "measured"):
        raise ConfigError(f"{place!r} is no policy of placement", remedy='give "preference" or "measured"')
    said = [what for what, given in elsewhere.items() if given is not None]
    if said and place == "preference":
        what = f"places are to be by preference, and {said[0]} is for those that are measured"
        raise ConfigError(what, where="to_backend", remedy="give one of both")
    if len(said) > 1 and RAY in said:
        what = f"{said[0]} is for what is measured by hand, and Ray does it now"
        raise ConfigError(what, where="to_backend", remedy="give one of both")
    if not said and (place or selection.placement.policy) != "measured":
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
    elsewhere: Elsewhere | None,
    ray: str | None,
) -> Outcome:
    """Return the choice of measuring, for a compiler that has taken the methods.

    Args:
        compiler: that has taken the methods.
        exported: the methods.
        floats: the float references of methods that are other programs, e.g. quantized ones.
        verify, registry, cache, progress, elsewhere, ray: see `to_backend`.
    """
    selection = compiler.selection
    settings = selection.placement
    begun, not_tried = time.monotonic(), list[str]()
    bases = [Base(compiler, exported, named_candidates(settings, tuple(selection.backends)))]
    for candidate in settings.candidates or ():
        if candidate.quantization is not None:
            section = candidate.quantization.model_copy(update={"backend": candidate.name})
            name = f"{candidate.name} {section.scheme or 'quantized'}"
            same = sum(given.startswith(name) for base in bases for given in base.candidates)
            name += f" ({same + 1})" * bool(same)
            is_late = time.monotonic() - begun > _QUANTIZED * settings.budget
            if is_late and elsewhere is None and any(base.candidates for base in bases):
                not_tried.append(f"{name}: the budget was over before it was quantized")
                continue
            quantized = configured()(exported, section, tuple(selection.backends), registry)
            other = Compiler(selection, compiler.kernels, None, compiler.kept)
            other.take(quantized)
            bases.append(Base(other, quantized, {name: candidate.name}, section.model_dump(mode="json")))
    begun = max(begun, time.monotonic() - _QUANTIZED * settings.budget)  # what is left is for measuring
    kept = compiler.kept
    identities = {} if kept is None else {name: kept.identity(name) for name in selection.backends}
    folder = kept_folder(selection.cache, cache)
    is_here = elsewhere is None and ray is None
    with contextlib.ExitStack() as stack:
        circumstances = Circumstances(
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
            elsewhere=elsewhere,
            cluster=None if ray is None else stack.enter_context(Cluster(ray)),
        )
        outcome = placed(bases, circumstances)
    if elsewhere is not None:
        elsewhere.finish()
    return outcome


def _names(kernels: Wanted | None) -> list[str] | None:
    """The kernel libraries that another process can find: those that are named."""
    wanted = [kernels] if isinstance(kernels, str) else kernels
    return None if wanted is None else [k for k in wanted if isinstance(k, str)]
