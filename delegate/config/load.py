"""load_config: read a file or a mapping as a Config, and check all keys, including the options of backends."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from delegate.config.model import BackendChoice, Config
from delegate.config.plain_yaml import Path, dotted
from delegate.config.source import Source, problems, raise_all, read_yaml
from delegate.errors import BackendError, ConfigError, did_you_mean
from delegate.plugins import INSTANCE, PORTABLE, PluginState, backend_of
from delegate.registry import Registry, default_registry

if TYPE_CHECKING:
    from delegate.backends.aot import Options


_PINS = ("pins", "node_pins")


def load_config(
    source: str | os.PathLike[str] | Mapping[str, Any] | Config, *, registry: Registry | None = None
) -> Config:
    """Read and check a configuration; aliases are replaced by the backends that they stand for.

    Args:
        source: path of a YAML file, the same as a mapping, or a Config.
        registry: the registry of backends; the default one if None.

    Raises:
        ConfigError: the configuration is invalid; it lists all problems, one per line, with place and key.
    """
    registry = registry or default_registry()
    if isinstance(source, Config):
        raise_all(_semantics(source, Source(None), registry))
        return _resolved(source, registry)
    if not isinstance(source, str | os.PathLike | Mapping):
        what = f"a {type(source).__name__} is not a configuration"
        raise ConfigError(what, remedy="give the path of a YAML file, a dict, or a delegate.config.Config")
    written = Source(source) if isinstance(source, Mapping) else read_yaml(FilePath(source))
    if not isinstance(written.data, Mapping):
        what = f"a configuration is a mapping (key: value), not {type(written.data).__name__}"
        raise ConfigError(what, where=written.where(()), remedy="write at least `version: 1`")
    try:
        config = Config.model_validate(written.data)
    except ValidationError as error:
        raise_all([*problems(error, Config, written), *_option_problems(written, registry)])
        raise AssertionError("pydantic refused the configuration without a reason") from error
    raise_all(_semantics(config, written, registry))
    return _resolved(config, registry)


def _option_problems(source: Source, registry: Registry) -> Iterator[ConfigError]:
    """Yield the errors in the options of valid backend entries, in a configuration whose keys have errors too."""
    entries = source.data.get("backends")
    for i, entry in enumerate(entries if isinstance(entries, list | tuple) else ()):
        try:
            (choice,) = Config.model_validate({"version": 1, "backends": [entry]}).backends or ()
        except ValidationError:
            continue  # its own errors are known
        if backend_of(choice.name) in registry.names():
            yield from _backend(choice, ("backends", i), source, registry)


def _resolved(config: Config, registry: Registry) -> Config:
    """Return the configuration with aliases replaced by the backends that they stand for."""
    named = {c.name for c in config.backends or ()}
    named.update(place for key in _PINS for place in getattr(config.partitioning, key).values())
    aliases = {name: meant for name in named if (meant := registry.resolve(name)) != name}
    if not aliases:
        return config
    pins = {
        key: {pattern: aliases.get(place, place) for pattern, place in getattr(config.partitioning, key).items()}
        for key in _PINS
    }
    update: dict[str, Any] = {"partitioning": config.partitioning.model_copy(update=pins)}
    if config.backends is not None:
        choices = (c.model_copy(update={"name": aliases.get(c.name, c.name)}) for c in config.backends)
        update["backends"] = tuple(choices)
    return config.model_copy(update=update)


def backend_options(choice: BackendChoice, registry: Registry | None = None) -> Options:
    """Return the options of a chosen backend as its own model, with defaults filled in.

    Raises:
        ConfigError: an option is unknown, or its value is not allowed.
        BackendError: the backend cannot be used, for another reason than an absent library.
    """
    model = (registry or default_registry()).aot(choice.name, absent_ok=True).Options
    prefix: Path = (choice.name, "options")
    try:
        return _validated(model, choice)
    except ValidationError as error:
        raise_all(problems(error, model, Source(choice.options), prefix))
        raise AssertionError("pydantic refused the options without a reason") from error


def options_of_alias(alias: str, backend: str) -> ConfigError:
    """Return the error for options of an alias."""
    what = f"{alias!r} has no options: it stands for the best available backend"
    return ConfigError(what, remedy=f"name the backend whose options they are, e.g. {backend}")


def _validated(model: type[Options], choice: BackendChoice) -> Options:
    """Validate options as JSON; only there pydantic's strict mode accepts lists for tuples and text for enums."""
    try:
        text = json.dumps(choice.options, default=str)
    except (TypeError, ValueError, RecursionError) as error:
        what = f"the options of backend {choice.name!r} must be plain values (numbers, text, lists, mappings): {error}"
        raise ConfigError(what) from error
    return model.model_validate_json(text, strict=True)


def _semantics(config: Config, source: Source, registry: Registry) -> Iterator[ConfigError]:
    """Yield the errors that the models alone cannot detect."""
    seen: dict[str, str] = {}
    for i, choice in enumerate(config.backends or ()):
        path: Path = ("backends", i)
        meant = registry.resolve(choice.name)
        if meant in seen:
            other = {choice.name, seen[meant]} - {meant}
            subject = f"{meant!r}, which {other.pop()!r} means here," if other else repr(meant)
            remedy = f"give one of them another name, e.g. {backend_of(meant)}{INSTANCE}second"
            yield ConfigError(f"{dotted(path)}: {subject} appears twice", where=source.where(path), remedy=remedy)
        seen[meant] = choice.name
        if backend_of(choice.name) in registry.names() or config.policy.unavailable == "error":
            yield from _backend(choice, path, source, registry)
    places = {PORTABLE, *(seen if config.backends is not None else registry.names())}
    for key in _PINS:
        for pattern, place in getattr(config.partitioning, key).items():
            if registry.resolve(place) not in places:
                path = ("partitioning", key, pattern)
                what = f"{dotted(path)}: {place!r} is not among the backends of this configuration"
                yield ConfigError(what, where=source.where(path), remedy=did_you_mean(place, places))


def _backend(choice: BackendChoice, path: Path, source: Source, registry: Registry) -> Iterator[ConfigError]:
    if choice.name == PORTABLE:
        what = f"{dotted(path)}: {PORTABLE!r} is not a backend: its kernels run the nodes that no backend supports"
        yield ConfigError(what, where=source.where((*path, "name")), remedy="remove it; [] means only portable kernels")
        return
    try:
        state = registry.state(choice.name)
        if state.stands_for and choice.options:
            error = options_of_alias(choice.name, state.stands_for)
            where = source.where((*path, "options"))
            yield ConfigError(f"{dotted(path)}: {error.what}", where=where, remedy=error.remedy)
            return
        if state.state is PluginState.BLOCKED:
            return  # its options stay unread; `policy.unavailable` decides
        if choice.isolate == "compile":
            registry.check_part(choice.name, "aot")  # where it crashes when it is imported
        model = registry.aot(choice.name, absent_ok=True).Options
    except BackendError as error:
        where = source.where((*path, "name"))
        yield ConfigError(f"{dotted(path)}: {error.what}", where=where, remedy=error.remedy)
        return
    try:
        _validated(model, choice)
    except ValidationError as error:
        yield from problems(error, model, source, (*path, "options"))
