"""load_config: read a file or a mapping as a Config, and check all keys, including the options of backends.

`json_schema` describes the same keys for editors.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError
from pydantic.json_schema import models_json_schema

from delegate.config.model import AUTO, BackendChoice, Config, PlacementCandidate, Quantization
from delegate.config.source import Path, Source, dot_path, problems, raise_all, read_yaml
from delegate.errors import BackendError, ConfigError, did_you_mean
from delegate.plugins import INSTANCE, PORTABLE, PluginState, backend_of, in_known_spelling
from delegate.registry import Registry, default_registry

if TYPE_CHECKING:
    from delegate.backend.aot import Options


_PINS = ("pins", "node_pins")
_RULES = ("operators", "module_types", "modules", "nodes")  # of quantization, each pattern -> scheme
Named = TypeVar("Named", BackendChoice, PlacementCandidate)


def load_config(
    source: str | os.PathLike[str] | Mapping[str, Any] | Config, *, registry: Registry | None = None
) -> Config:
    """Read and check a configuration; aliases are replaced by the backends that they stand for.

    Args:
        source: path of a YAML file, the same as a mapping, or a Config.
        registry: the registry of backends; the default one if None.

    Raises:
        ConfigError: the configuration is invalid; it lists all problems, one per line, with place and key.
            What is wrong between valid keys, such as a name that is not installed, comes after the keys of its section.
    """
    registry = registry or default_registry()
    if isinstance(source, Config):
        raise_all(_semantics(source, Source(None), registry))
        return _resolve_aliases(source, registry)
    if not isinstance(source, str | os.PathLike | Mapping):
        what = f"a {type(source).__name__} is not a configuration"
        raise ConfigError(what, remedy="give the path of a YAML file, a dict, or a delegate.config.Config")
    written = Source(source) if isinstance(source, Mapping) else read_yaml(FilePath(source))
    try:
        config = Config.model_validate(written.data)
    except ValidationError as error:
        wrong = {details["loc"][0] for details in error.errors(include_url=False) if details["loc"]}
        found = problems(error, Config, written)
        with suppress(ValidationError):  # of a value that contradicts another
            rest = Config.model_validate({key: value for key, value in written.data.items() if key not in wrong})
            found += _semantics(rest, written, registry)
        raise_all(found)
        raise AssertionError("pydantic refused the configuration without a reason") from error
    raise_all(_semantics(config, written, registry))
    return _resolve_aliases(config, registry)


def _resolve_aliases(config: Config, registry: Registry) -> Config:
    """Return the configuration with aliases replaced by the backends that they stand for."""
    update: dict[str, Any] = {
        "partitioning": config.partitioning.model_copy(
            update={
                key: {pattern: registry.resolve(place) for pattern, place in getattr(config.partitioning, key).items()}
                for key in _PINS
            }
        )
    }
    if config.backends is not None:
        update["backends"] = tuple(_resolve_name(choice, registry) for choice in config.backends)
    if config.quantization is not None and config.quantization.backend is not None:
        backend = registry.resolve(config.quantization.backend)
        update["quantization"] = config.quantization.model_copy(update={"backend": backend})
    if config.placement.candidates is not None:
        candidates = tuple(_resolve_name(candidate, registry) for candidate in config.placement.candidates)
        update["placement"] = config.placement.model_copy(update={"candidates": candidates})
    resolved = config.model_copy(update=update)
    return config if resolved == config else resolved


def _resolve_name(named: Named, registry: Registry) -> Named:
    """Return a backend or a candidate with the name of the backend that its name stands for."""
    return named.model_copy(update={"name": registry.resolve(named.name)})


def backend_options(choice: BackendChoice, registry: Registry | None = None) -> Options:
    """Return the options of a chosen backend as its own model, with defaults filled in.

    Raises:
        ConfigError: an option is unknown, or its value is not allowed.
        BackendError: the backend cannot be used, for another reason than an absent library.
    """
    model = (registry or default_registry()).aot(choice.name, absent_ok=True).Options
    prefix: Path = (choice.name, "options")
    try:
        return _validate_options(model, choice)
    except ValidationError as error:
        raise_all(problems(error, model, Source(choice.options), prefix))
        raise AssertionError("pydantic refused the options without a reason") from error


def options_of_alias(alias: str, backend: str) -> ConfigError:
    """Return the error for options of an alias."""
    what = f"{alias!r} has no options: it stands for the best available backend"
    return ConfigError(what, remedy=f"name the backend whose options they are, e.g. {backend}")


def _validate_options(model: type[Options], choice: BackendChoice) -> Options:
    """Validate options as JSON; only there pydantic's strict mode accepts lists for tuples and text for enums."""
    try:
        text = json.dumps(choice.options, default=str)
    except (TypeError, ValueError, RecursionError) as error:
        what = f"the options of backend {choice.name!r} must be plain values (numbers, text, lists, mappings): {error}"
        raise ConfigError(what) from error
    return model.model_validate_json(text, strict=True)


def _semantics(config: Config, source: Source, registry: Registry) -> Iterator[ConfigError]:
    """Yield the errors of a configuration that the models alone cannot detect."""
    seen: dict[str, str] = {}
    for i, choice in enumerate(config.backends or ()):
        path: Path = ("backends", i)
        meant = registry.resolve(choice.name)
        if meant in seen:
            other = {choice.name, seen[meant]} - {meant}
            subject = f"{meant!r}, which {other.pop()!r} means here," if other else repr(meant)
            remedy = f"give one of them another name, e.g. {backend_of(meant)}{INSTANCE}second"
            yield ConfigError(f"{dot_path(path)}: {subject} appears twice", where=source.where(path), remedy=remedy)
        seen[meant] = choice.name
        if backend_of(meant) in registry.names() or config.policy.unavailable == "error":
            yield from _backend(choice, path, source, registry)
    places = {PORTABLE, *(seen if config.backends is not None else registry.names())}
    for key in _PINS:
        for pattern, place in getattr(config.partitioning, key).items():
            if registry.resolve(place) not in places:
                path = ("partitioning", key, pattern)
                yield _not_among(place, path, source, place, places)
    if config.backends == ():
        yield from _without_backends(config, source)
    if config.quantization is not None:
        yield from _schemes(config.quantization, ("quantization",), tuple(seen), source, registry)
    for i, candidate in enumerate(config.placement.candidates or ()):
        path, name = ("placement", "candidates", i), registry.resolve(candidate.name)
        if config.backends and name not in seen:
            yield _not_among(candidate.name, path, source, name, seen)
        elif candidate.quantization is not None:
            yield from _schemes(candidate.quantization, (*path, "quantization"), (name,), source, registry)


def _without_backends(config: Config, source: Source) -> Iterator[ConfigError]:
    """Yield an error for each section that needs a backend, of a configuration without any."""
    sections = ["quantization"] if config.quantization is not None else []
    sections += ["placement"] if config.placement.policy == "measured" else []
    for section in sections:
        what = f"{section}: it needs a backend, but `backends` is empty"
        yield ConfigError(what, where=source.where((section,)), remedy="name one, or leave `backends` out for all")


def _not_among(name: str, path: Path, source: Source, known: str, backends: Iterable[str]) -> ConfigError:
    """Return the error for a name that is not a backend of this configuration.

    `known` is the name without its alias.
    """
    what = f"{dot_path(path)}: {name!r} is not among the backends of this configuration"
    return ConfigError(what, where=source.where(path), remedy=did_you_mean(known, backends))


def _schemes(
    section: Quantization, path: Path, backends: Sequence[str], source: Source, registry: Registry
) -> Iterator[ConfigError]:
    """Yield an error for each scheme that the backend of a section does not have.

    Args:
        section: the section.
        path: its path in the source.
        backends: the backends in use, of which the first that runs integers is the default of the section.
        source: where the data came from.
        registry: the registry of backends.
    """
    own = None if section.backend is None else registry.resolve(section.backend)
    if own is not None and backends and own not in backends:
        yield _not_among(str(section.backend), (*path, "backend"), source, own, backends)
        return
    known: list[str] = []
    for backend in backends if own is None else (own,):
        with suppress(BackendError):  # which is reported with the backends
            known = known or [s.name for s in registry.aot(backend, absent_ok=True).quantization()]
    if not known:
        return
    known.append("off")
    if section.is_auto:
        known.append(AUTO)
    rules = {(*path, key, pattern): s for key in _RULES for pattern, s in getattr(section, key).items()}
    for place, scheme in {(*path, "scheme"): section.scheme or known[0], **rules}.items():
        name = scheme.partition("/")[0]  # the rest is a group size
        if in_known_spelling(name, known) not in known:
            what = f"{dot_path(place)}: there is no scheme {name!r}"
            yield ConfigError(what, where=source.where(place), remedy=did_you_mean(name, known))


def _backend(choice: BackendChoice, path: Path, source: Source, registry: Registry) -> Iterator[ConfigError]:
    if registry.resolve(choice.name) == PORTABLE:
        what = f"{dot_path(path)}: {PORTABLE!r} is not a backend: its kernels run the nodes that no backend supports"
        yield ConfigError(what, where=source.where((*path, "name")), remedy="remove it; [] means only portable kernels")
        return
    try:
        state = registry.state(choice.name)
        if state.stands_for and choice.options:
            error = options_of_alias(choice.name, state.stands_for)
            where = source.where((*path, "options"))
            yield ConfigError(f"{dot_path(path)}: {error.what}", where=where, remedy=error.remedy)
            return
        if state.state is PluginState.BLOCKED:
            return  # its options stay unread; `policy.unavailable` decides
        if choice.isolate == "compile":
            registry.check_part(choice.name, "aot")  # where it crashes when it is imported
        model = registry.aot(choice.name, absent_ok=True).Options
    except BackendError as error:
        where = source.where((*path, "name"))
        yield ConfigError(f"{dot_path(path)}: {error.what}", where=where, remedy=error.remedy)
        return
    try:
        _validate_options(model, choice)
    except ValidationError as error:
        yield from problems(error, model, source, (*path, "options"))


_USABLE = (PluginState.OK, PluginState.UNAVAILABLE)


def json_schema(registry: Registry | None = None) -> dict[str, Any]:
    """Return the schema (draft 2020-12), without backends that are broken or blocked."""
    registry = registry or default_registry()
    _, definitions = models_json_schema([(Config, "validation"), (BackendChoice, "validation")])
    defs: dict[str, Any] = definitions["$defs"]
    root, choice = defs.pop("Config"), defs["BackendChoice"]
    usable = {s.name: s.info for s in registry.states() if s.state in _USABLE and s.info}
    options = {name: schema for name in usable if (schema := _options(name, registry, defs)) is not None}
    choices = [{"const": name, "description": usable[name].description} for name in options]
    choices += [_instance(name) for name in options]
    choices += [_choice(choice, name, schema) for name, schema in options.items()]
    root["properties"]["backends"] = {
        "type": "array",
        "items": {"oneOf": choices} if choices else False,
        "description": root["properties"]["backends"]["description"],
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **root, "$defs": defs}


def _options(name: str, registry: Registry, defs: dict[str, Any]) -> dict[str, Any] | None:
    """Add the schema of a backend's options to `defs` and return a reference to it; None if it is not available."""
    if registry.resolve(name) != name:
        return {"maxProperties": 0}  # they are those of the backend that it stands for
    try:
        schema = registry.check_part(name, "aot")["options"]
    except BackendError as error:
        registry.warn(name, str(error))
        return None
    defs.update({f"{name}.{model}": inner for model, inner in schema.pop("$defs", {}).items()})
    own = f"{name}.{schema['title']}"
    defs[own] = schema
    return {"$ref": f"#/$defs/{own}"}


def _choice(base: dict[str, Any], name: str, options: dict[str, Any]) -> dict[str, Any]:
    properties = {**base["properties"], "name": {"anyOf": [{"const": name}, _instance(name)]}, "options": options}
    return {**base, "title": name, "properties": properties}


def _instance(name: str) -> dict[str, Any]:
    """Return the schema for the name of a backend instance."""
    return {"type": "string", "pattern": rf"^{re.escape(name)}{INSTANCE}\w[\w.-]*$"}
