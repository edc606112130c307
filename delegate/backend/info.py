"""BackendInfo: the facts about a backend that need no vendor library. Data only, cheap to import."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from delegate.common.field_checks import expect, expect_texts, expect_version, is_texts
from delegate.plugins import API_VERSION, NAME, PORTABLE


@dataclass(frozen=True, slots=True)
class Availability:
    """The result of a probe on this machine.

    Args:
        ok: whether programs of this backend can run here.
        reason: the reason if not ok, e.g. "ai-edge-litert is not installed"; if ok, the part that cannot be used.
        versions: library -> version.
        devices: names of its devices, e.g. "CPU, 2 threads", with "(software)" or "(emulated)" if the CPU imitates one.
        stand_in: true if a CPU imitates the device, which is used only if it is named.
        remedy: the fix, if it is not the install command of the backend.
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
        expect_texts(self, "reason", "remedy")
        expect(self, "versions", isinstance(self.versions, Mapping), "a mapping of libraries to versions")
        expect(self, "devices", is_texts(self.devices), "a tuple of text values")


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """The description of a backend, to which its entry point in group `delegate.backends` refers.

    Args:
        name: the name that users write, e.g. "xnnpack"; also the entry point's name.
        description: one line.
        aot: "package.module:Class" of the AOT part, a subclass of `delegate.backend.aot.Backend`.
        runtime: "package.module:Class" of the runtime part, a subclass of `delegate.runtime.backend.BackendRuntime`.
        probe: returns the availability; imports the vendor library, catches its absence, never raises.
        install: the exact command that installs missing libraries.
        api_version: the version of this project's plugin API for which the backend was written.
        licence: the vendor library's licence, if it is not an open one.
        preference: if no backend is named, backends with higher preference come first.
        noise: regular expressions of whole lines that its library prints and that mean nothing to users. Commands
            leave these lines out, except with `--debug`.
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
    noise: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        expect_texts(self, "name", "description", "aot", "runtime", "install", "licence")
        expect(self, "name", NAME.fullmatch(self.name) is not None, "letters, digits, '_', '-' and '.'")
        expect(self, "name", self.name != PORTABLE, "other than the name of the project's own kernels")
        expect_version(self)
        expect(self, "preference", type(self.preference) is int, "a whole number")
        expect(
            self, "noise", is_texts(self.noise) and all(map(_is_pattern, self.noise)), "a tuple of regular expressions"
        )


def _is_pattern(text: str) -> bool:
    try:
        re.compile(text)
    except re.error:
        return False
    return True


@dataclass(frozen=True, slots=True)
class BackendAlias:
    """A name for the best of several backends on this machine; an entry point in `delegate.backends` refers to it.

    It has no options of its own: these belong to the backend that it stands for. Plans, reports and program files hold
    the name of that backend.

    Args:
        name: the name that users write, e.g. "gpu"; also the entry point's name.
        description: one line.
        stands_for: names of backends, of which the first one whose device is here is used, else the last one that
            works. Backends that are not installed are passed over.
    """

    name: str
    description: str
    stands_for: tuple[str, ...]

    def __post_init__(self) -> None:
        expect_texts(self, "name", "description")
        several = isinstance(self.stands_for, tuple) and is_texts(self.stands_for) and self.stands_for
        expect(self, "stands_for", bool(several), "a tuple of names of backends")
        expect(self, "stands_for", self.name not in self.stands_for, "names of other backends")
