"""BackendState: the state of a backend on this machine, and probes of plugins in the calling process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from typing import Any, ClassVar, Self

from delegate.backend.info import Availability, BackendAlias, BackendInfo
from delegate.common import vendor_output
from delegate.common.field_checks import text
from delegate.errors import BackendUnavailable
from delegate.plugins import InstalledPlugin, Plugin, PluginState, UnusablePlugin, import_plugin, load_object, one_line

# The base class of each part by name: naming it keeps torch out of this module.
_BASES = {"aot": ("delegate.backend.aot", "Backend"), "runtime": ("delegate.runtime.backend", "BackendRuntime")}
_OPTIONS = ("delegate.backend.aot", "Options")
_AOT_NEEDS = {"torch", "pydantic", "yaml"}  # packages that AOT parts import, of the extra `aot`


@dataclass(frozen=True, slots=True)
class BackendState(InstalledPlugin):
    """The state of a backend on this machine. The remedy of a backend that is ok is about the part that is not.

    Args:
        info: its BackendInfo; None if it is broken or blocked.
        availability: the result of its probe; None if it was not probed.
        stands_for: The name of the backend that an alias stands for here, whose state this is.
        kept: true if the state is from the cache of an earlier process.
    """

    noun: ClassVar[str] = "backend"

    info: BackendInfo | None = None
    availability: Availability | None = None
    stands_for: str = ""
    kept: bool = field(default=False, compare=False)

    @property
    def is_on_own_device(self) -> bool:
        """True if it works, on its own device."""
        return self.state is PluginState.OK and self.availability is not None and not self.availability.stand_in

    @classmethod
    def broken(cls, plugin: Plugin, problem: str, error: BaseException | None = None, traceback: str = "") -> Self:
        state = super(BackendState, cls).broken(plugin, problem, error, traceback)
        shows = f"`delegate backends {plugin.name}` shows the traceback; " if state.traceback else ""
        return replace(state, remedy=shows + state.remedy)


def probe_plugin(plugin: Plugin) -> BackendState | BackendAlias:
    """Import the object that a plugin's entry point names, and probe it."""
    info = import_plugin(BackendState, plugin, BackendInfo, BackendAlias)
    return probe_backend(info, plugin) if isinstance(info, BackendInfo) else info


def probe_backend(info: BackendInfo, plugin: Plugin) -> BackendState:
    """Compare the API version, then call the probe."""
    vendor_output.expect(info.noise)
    if other := BackendState.other_version(plugin, info.api_version, info=info):
        return other
    try:
        availability = info.probe()
    except (Exception, SystemExit) as error:
        return BackendState.broken(plugin, f"fails when it is probed: {one_line(error)}", error)
    if not isinstance(availability, Availability):
        return BackendState.broken(plugin, f"returns {type(availability).__name__}, not Availability, when probed")
    if availability.ok:
        return BackendState.of(plugin, info=info, availability=availability, remedy=availability.remedy)
    return BackendState.of(
        plugin,
        PluginState.UNAVAILABLE,
        info=info,
        availability=availability,
        detail=f"backend {info.name!r} is not available here: {' '.join(availability.reason.split())}",
        remedy=availability.remedy or info.install,
    )


def load_part(info: BackendInfo, part: str) -> type:
    """Import the "aot" or the "runtime" part of a backend.

    Raises:
        UnusablePlugin: the part cannot be imported, or is not a complete subclass of its base class.
        BackendUnavailable: torch or another requirement of compiling is absent.
    """
    path: str = getattr(info, part)
    try:
        made = load_object(path)
    except (Exception, SystemExit) as error:
        if part == "aot" and isinstance(error, ModuleNotFoundError) and error.name in _AOT_NEEDS:
            what = f"the AOT part of backend {info.name!r} needs {error.name}, which is not installed"
            raise BackendUnavailable(what, remedy="pip install 'delegate[aot]'") from error
        raise UnusablePlugin(f"fails to import {path}: {one_line(error)}") from error
    if not (isinstance(made, type) and _BASES[part] in {(c.__module__, c.__qualname__) for c in made.__mro__}):
        raise UnusablePlugin(f"provides {path}, which is not a subclass of {'.'.join(_BASES[part])}")
    if problem := _incomplete(made, part, info.name):
        raise UnusablePlugin(f"provides {path}, {problem}")
    return made


def _incomplete(part: type, which: str, name: str) -> str:
    """Return the end of a sentence about what a part lacks; empty if it is complete."""
    if missing := sorted(getattr(part, "__abstractmethods__", ())):
        return f"which has no {' and no '.join(missing)}"
    if which == "aot":
        if (own := getattr(part, "name", None)) != name:
            return f"whose name is {own!r}"
        options = getattr(part, "Options", None)
        if _OPTIONS not in {(c.__module__, c.__qualname__) for c in getattr(options, "__mro__", ())}:
            return f"whose Options is not a subclass of {'.'.join(_OPTIONS)}"
    return ""


def schema_of(part: Any) -> Any:
    """Return the JSON schema of an AOT part's options, whose references start with the backend's name."""
    return part.Options.model_json_schema(ref_template=f"#/$defs/{part.name}.{{model}}")


def to_json(answer: BackendState | BackendAlias) -> dict[str, Any]:
    """Return a result of `probe_plugin` as plain JSON, without the probe function."""
    if isinstance(answer, BackendAlias):
        return {"alias": asdict(answer)}
    data = {key: getattr(answer, key) for key in ("state", "detail", "remedy", "traceback")}
    if answer.info is not None:
        data["info"] = {f.name: getattr(answer.info, f.name) for f in fields(BackendInfo) if f.name != "probe"}
    if answer.availability is not None:
        versions = {str(library): str(version) for library, version in answer.availability.versions.items()}
        data["availability"] = {f.name: getattr(answer.availability, f.name) for f in fields(Availability)}
        data["availability"]["versions"] = versions
    return data


def from_json(data: Mapping[str, Any], plugin: Plugin) -> BackendState | BackendAlias:
    """Read what `to_json` wrote about a plugin; raises LookupError, TypeError or ValueError for other JSON."""
    if "alias" in data:
        alias = BackendAlias(**{**data["alias"], "stands_for": tuple(data["alias"]["stands_for"])})
        _require_name(alias.name, plugin)
        return alias
    info = availability = None
    if "info" in data:
        lists = {name: tuple(data["info"][name]) for name in ("api_version", "noise")}
        info = BackendInfo(**{**data["info"], **lists}, probe=partial(_probe_of, plugin.value))
        vendor_output.expect(info.noise)
        _require_name(info.name, plugin)
    if "availability" in data:
        availability = Availability(**{**data["availability"], "devices": tuple(data["availability"]["devices"])})
    words = {key: text(data, key) for key in ("detail", "remedy", "traceback")}
    return BackendState.of(plugin, PluginState(data["state"]), info=info, availability=availability, **words)


def _require_name(name: str, plugin: Plugin) -> None:
    if name != plugin.name:
        raise ValueError(f"it is about {name!r}")


def _probe_of(value: str) -> Availability:
    """Import a plugin's info and probe it in this process."""
    probe = getattr(load_object(value), "probe")  # noqa: B009 - of an object that is not checked again
    availability: Availability = probe()
    return availability
