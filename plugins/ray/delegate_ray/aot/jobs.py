"""The jobs of `delegate lower-many`: a YAML file of models and configurations, each pair of which is a job."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

import delegate
from delegate.common.files import open_to_read
from delegate.config import Config, load_config
from delegate.config.source import Source, raise_all, read_yaml, validate
from delegate.errors import ConfigError, DelegateError

Files = Annotated[tuple[str, ...], Field(strict=False)]  # YAML has lists, but strict mode would only accept tuples


class _Keys(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ModelSource(_Keys):
    """A model. In a file, its bare source is short for a mapping with only `source`."""

    source: str = Field(description="file.pt2, or package.module:function returning (module, example_inputs).")
    calibration: str | None = Field(default=None, description="Data to quantize with, in place of the configuration's.")
    verify: Files = Field(default=(), description="Inputs for a comparison with torch: NAME=A.npy, or one .npz.")

    @model_validator(mode="before")
    @classmethod
    def _from_source(cls, data: Any) -> Any:
        if not isinstance(data, str | Mapping):
            raise ValueError("should be a model, or a mapping with the key `source`")
        return {"source": data} if isinstance(data, str) else data


def _configuration(value: Any) -> Any:
    if not isinstance(value, str | Mapping):
        raise ValueError("should be the path of a configuration, or a configuration")
    return value


class Pair(_Keys):
    """Patterns of names, as in shells, for pairs of a model and a configuration."""

    model: str = Field(default="*", description="Pattern for names of models.")
    configuration: str = Field(default="*", description="Pattern for names of configurations.")

    def matches(self, model: str, configuration: str) -> bool:
        """Return true if both names match."""
        return fnmatchcase(model, self.model) and fnmatchcase(configuration, self.configuration)


class JobsFile(_Keys):
    """The content of a jobs file."""

    version: Literal[1] = Field(default=1, description="Version of this format.")
    models: dict[str, ModelSource] = Field(description="Name: the model.")
    configurations: dict[str, Annotated[str | dict[str, Any], BeforeValidator(_configuration)]] = Field(
        description="Name: the path of a configuration, or the configuration."
    )
    exclude: Annotated[tuple[Pair, ...], Field(strict=False)] = Field(default=(), description="Pairs to leave out.")


@dataclass(frozen=True)
class LoweringJob:
    """A model to lower with a configuration, in any process that has the files.

    Args:
        model, configuration: their names.
        source, calibration, verify: see `ModelSource`.
        settings: the configuration.
        output: path of the program file.
        folder: the working directory, from which modules are imported.
        key: a checksum of all that the program depends on.
        version: The version of delegate with which the job was created.
    """

    model: str
    configuration: str
    source: str
    calibration: str | None
    verify: tuple[str, ...]
    settings: Config
    output: str
    folder: str
    key: str
    version: str

    @property
    def backends(self) -> tuple[str, ...]:
        """The names of the configured backends; empty: all that are available."""
        return tuple(b.name for b in self.settings.backends or ())

    @property
    def functions(self) -> tuple[str, ...]:
        """The functions that return the model and data, each as package.module:function."""
        names = (self.source, *filter(None, [self.calibration]), *_data(self.settings))
        return tuple(name for name in names if ":" in name and not os.path.exists(Path(self.folder, name)))


def read_jobs(path: Path, output: Path) -> list[LoweringJob]:
    """Read and check a file of jobs, and everything that it names.

    Args:
        path: the file, where relative paths in it begin at its folder.
        output: the folder of the program files, each named MODEL.CONFIGURATION.dlg.

    Raises:
        ConfigError: the file is invalid; it lists all problems, one per line, with place and key.
    """
    if not os.path.isfile(path):
        raise ConfigError(f"there is no file of jobs {str(path)!r}", remedy="check the path")
    written = read_yaml(path, "a file of jobs", "write at least `models` and `configurations`")
    jobs = validate(written, JobsFile)
    folder, settings = path.parent.absolute(), dict[str, Config]()
    raise_all([*_problems(jobs, written, folder), *_settings(jobs, written, folder, settings)])
    versions = sorted(f"{d.name} {d.version}" for d in metadata.distributions())
    pairs = [
        (model, name)
        for model in jobs.models
        for name in jobs.configurations
        if not any(pair.matches(model, name) for pair in jobs.exclude)
    ]
    if not pairs:
        raise ConfigError("no pair is left", where=written.where(("exclude",)), remedy="exclude fewer pairs")
    writers = dict[str, list[tuple[str, str]]]()
    for pair in pairs:
        writers.setdefault(_file_name(pair), []).append(pair)
    for name, several in writers.items():
        if len(several) > 1:
            what = f"two jobs would write {name!r}: {' and '.join(map(str, several))}"
            raise ConfigError(what, where=str(path), remedy="rename a model or a configuration")
    return [
        _job(jobs.models[model], settings[name], (model, name), output.absolute(), folder, versions)
        for model, name in pairs
    ]


def _file_name(names: tuple[str, str]) -> str:
    return ".".join((*names, "dlg"))


def _job(
    model: ModelSource, settings: Config, names: tuple[str, str], output: Path, folder: Path, versions: list[str]
) -> LoweringJob:
    source = str(folder / model.source) if _is_file(model.source) else model.source
    calibration = model.calibration and (
        str(folder / model.calibration) if os.path.exists(folder / model.calibration) else model.calibration
    )
    verify = tuple(_absolute(text, folder) for text in model.verify)
    files = [source if _is_file(source) else _module_file(source, folder)]
    files += [_data_file(data, folder) for data in (*_data(settings), *filter(None, [model.calibration]))]
    files += [text.rpartition("=")[2] for text in verify]
    described = [settings.model_dump_json(), model.source, model.verify, [digest_of(file) for file in files], versions]
    key = hashlib.sha256(json.dumps(described).encode()).hexdigest()
    path = str(output / _file_name(names))
    return LoweringJob(*names, source, calibration, verify, settings, path, str(folder), key, delegate.__version__)


def _problems(jobs: JobsFile, written: Source, folder: Path) -> Iterator[ConfigError]:
    """Yield the errors of names, models and pairs."""
    for section, names in (("models", jobs.models), ("configurations", jobs.configurations)):
        if not names:
            yield ConfigError(f"{section}: there is none", where=written.where((section,)), remedy="add one")
        for name in names:
            if not name or name.startswith(".") or not f"_{name}".replace("-", "").replace(".", "").isidentifier():
                what, where = f"{section}: {name!r} cannot be a part of a file name", (section, name)
                remedy = "use letters, digits, _, - and ."
                yield ConfigError(what, where=written.where(where, of_key=True), remedy=remedy)
    for name, model in jobs.models.items():
        place = written.where(("models", name))
        if _is_file(model.source) and not os.path.isfile(folder / model.source):
            what = f"models.{name}: there is no file {str(folder / model.source)!r}"
            yield ConfigError(what, where=place, remedy="correct the path, or name package.module:function")
        elif not _is_file(model.source) and _module_file(model.source, folder) is None:
            what = f"models.{name}: there is no module {model.source.partition(':')[0]!r}"
            yield ConfigError(what, where=place, remedy=f"modules are searched in {folder} and in installed packages")
        if model.calibration is not None and _data_file(model.calibration, folder) is None:
            what = f"models.{name}.calibration: there is no file or module {model.calibration!r}"
            yield ConfigError(what, where=place, remedy="correct the path, or name package.module:function")
        for text in model.verify:
            if not os.path.isfile(Path(_absolute(text, folder).rpartition("=")[2])):
                what = f"models.{name}.verify: there is no file {text.rpartition('=')[2]!r}"
                yield ConfigError(what, where=place, remedy="correct the path")
    for number, pair in enumerate(jobs.exclude):
        if not any(pair.matches(model, name) for model in jobs.models for name in jobs.configurations):
            what = f"exclude.{number} matches no pair"
            yield ConfigError(what, where=written.where(("exclude", number)), remedy="correct its names, or remove it")


def _settings(jobs: JobsFile, written: Source, folder: Path, settings: dict[str, Config]) -> Iterator[ConfigError]:
    """Add the configurations to `settings`; yield the errors of those that are invalid."""
    for name, value in jobs.configurations.items():
        place = written.where(("configurations", name))
        try:
            settings[name] = load_config(str(folder / value) if isinstance(value, str) else value)
            if missing := next((data for data in _data(settings[name]) if _data_file(data, folder) is None), None):
                raise ConfigError(f"there is no file or module {missing!r}", remedy=f"paths begin at {folder}")
        except DelegateError as error:
            yield ConfigError(f"configurations.{name}: {error.what}", where=place, remedy=error.remedy)


def _data(settings: Config) -> Iterator[str]:
    """Yield the files and functions that a configuration takes data from."""
    if settings.quantization is not None:
        calibration = settings.quantization.calibration
        yield from calibration.values() if isinstance(calibration, dict) else filter(None, [calibration])
    if settings.placement.accuracy is not None and settings.placement.accuracy.inputs is not None:
        yield settings.placement.accuracy.inputs


def _data_file(data: str, folder: Path) -> str | None:
    """Return the file or folder of data, or the file of their module; None if there is none."""
    if os.path.exists(folder / data):
        return str(folder / data)
    return _module_file(data, folder) if ":" in data else None


def _is_file(source: str) -> bool:
    return ":" not in source or os.path.isfile(source)


def _absolute(text: str, folder: Path) -> str:
    """Return NAME=FILE or FILE with the absolute path."""
    name, equals, file = text.rpartition("=")
    return f"{name}{equals}{folder / file}"


def _module_file(source: str, folder: Path) -> str | None:
    """Return the module file of package.module:function; None if there is none. Only parents are imported."""
    name = source.partition(":")[0]
    sys.path.insert(0, str(folder))
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    finally:
        sys.path.remove(str(folder))
    return None if spec is None else spec.origin


def digest_of(path: str | None) -> str:
    """Return the checksum of a file, or of the files in a folder; empty if there is none."""
    if path is None or not (os.path.isfile(path) or os.path.isdir(path)):
        return ""
    files = sorted(p for p in Path(path).rglob("*") if os.path.isfile(p)) if os.path.isdir(path) else [Path(path)]
    digest = hashlib.sha256()
    for each in files:
        with open_to_read(each) as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
