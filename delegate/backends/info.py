"""BackendInfo: all that is known of a backend before its library is touched. Data only, cheap to import."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from delegate.field_checks import expect, is_texts
from delegate.plugins import PORTABLE

API_VERSION = (1, 1)  # (major, minor): a plugin of another major, or of a newer minor, is incompatible


@dataclass(frozen=True, slots=True)
class Availability:
    """The result of a probe on this machine.

    Args:
        ok: whether programs of this backend can run here.
        reason: why not, e.g. "ai-edge-litert is not installed"; of one that is ok, what of it cannot be used and why.
        versions: library -> version.
        devices: names of what it would run on, e.g. "CPU, 2 threads"; "(software)" or "(emulated)" where so.
        stand_in: a CPU plays the device, slowly: such a backend is used only where it is named.
        remedy: what mends it, where that is not the install command of the backend.
    """

    ok: bool
    reason: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    stand_in: bool = False
    remedy: str = ""

    def __post_init__(self) -> None:
        for name in ("ok", "stand_in"):
            expect(self, name, isinstance(getattr(self, name), bool), "True or False")
        for name in ("reason", "remedy"):
            expect(self, name, isinstance(getattr(self, name), str), "text")
        expect(self, "versions", isinstance(self.versions, Mapping), "a mapping of libraries to versions")
        expect(self, "devices", is_texts(self.devices), "a tuple of texts")


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """A backend, as its entry point in group `delegate.backends` gives it.

    Args:
        name: what users write, e.g. "xnnpack"; must be the entry point's name.
        description: one line.
        aot: "package.module:Class" of the AOT half, a subclass of `delegate.backends.aot.Backend`.
        runtime: "package.module:Class" of the runtime half, a subclass of `delegate.runtime.backend.BackendRuntime`.
        probe: says what is here; imports the vendor library, catches its absence, never raises.
        install: the exact command that installs what is missing.
        api_version: of this project's plugin API that it was written for.
        licence: of the vendor library, where it is not an open one.
        preference: where no backend is named, those of higher preference come first.
    """

    name: str
    description: str
    aot: str
    runtime: str
    probe: Callable[[], Availability]
    install: str
    api_version: tuple[int, int] = API_VERSION
    licence: str = ""
    preference: int = 0

    def __post_init__(self) -> None:
        for field_ in ("name", "description", "aot", "runtime", "install", "licence"):
            expect(self, field_, isinstance(getattr(self, field_), str), "text")
        expect(self, "name", re.fullmatch(r"\w[\w.-]*", self.name) is not None, "letters, digits, '_', '-' and '.'")
        expect(self, "name", self.name != PORTABLE, "another: so the project's own kernels are called")
        version = self.api_version
        pair = isinstance(version, tuple) and [type(part) for part in version] == [int, int]
        expect(self, "api_version", pair, "two whole numbers, (major, minor)")
        expect(self, "preference", isinstance(self.preference, int), "a whole number")


@dataclass(frozen=True, slots=True)
class BackendAlias:
    """A name for the best of several backends on this machine, as an entry point in group `delegate.backends` gives it.

    It has no options of its own: these belong to the backend that it stands for. Plans, reports and program files hold
    the name of that backend.

    Args:
        name: what users write, e.g. "gpu"; must be the entry point's name.
        description: one line.
        stands_for: names of backends: the first whose device is here; where none is, the last one that works at all.
    """

    name: str
    description: str
    stands_for: tuple[str, ...]

    def __post_init__(self) -> None:
        for field_ in ("name", "description"):
            expect(self, field_, isinstance(getattr(self, field_), str), "text")
        several = isinstance(self.stands_for, tuple) and is_texts(self.stands_for) and self.stands_for
        expect(self, "stands_for", bool(several), "a tuple of names of backends")
        expect(self, "stands_for", self.name not in self.stands_for, "names of other backends")
