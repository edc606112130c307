"""The pydantic models of a configuration. The descriptions of the fields document its keys."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

if TYPE_CHECKING:
    from delegate.partitioner.rules import PartitionRules


# YAML writes lists; strict mode would take tuples alone.
Patterns = Annotated[tuple[str, ...], Field(strict=False)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class BackendChoice(_Model):
    """A backend to use; in a file, its bare name stands for a mapping that holds only `name`."""

    name: str = Field(
        description="The backend, as `delegate backends` lists it. One that stands here several times, with other "
        "options, gets a name of its own behind a colon, e.g. xnnpack:small; plans, reports, pins and options at load "
        "have that name."
    )
    options: dict[str, Any] = Field(default={}, description="Options of the backend itself.")
    include: Patterns = Field(
        default=(), description="Operator patterns, e.g. aten.conv*: this backend takes nothing else. Empty: no limit."
    )
    exclude: Patterns = Field(default=(), description="Operator patterns that this backend never takes.")
    isolate: Literal["auto", "compile", "none"] = Field(
        default="auto",
        description="Where its compiler runs. auto: a plugin's runs in a separate process on each structure of a "
        "partition that is new to it, and else in this process; compile: its checks and its compiler always run in a "
        "separate process; none: always in this process. If the separate process crashes or hangs, nodes are refused "
        "with that reason, and this process goes on. Needs POSIX.",
    )
    time_limit: float = Field(
        default=600.0,
        gt=0,
        description="Seconds of a separate process for the support checks of a graph, and to compile each partition.",
    )

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, data: Any) -> Any:
        if not isinstance(data, str | Mapping | BackendChoice):
            raise ValueError("should be the name of a backend, or a mapping that holds it")
        return {"name": data} if isinstance(data, str) else data


class Partitioning(_Model):
    """The partitioning of nodes among backends."""

    min_partition_size: int = Field(
        default=1,
        ge=0,
        description="A partition with fewer operators than this stays with the portable kernels. Operators that only "
        "lay data out anew do not count, and one whose call would cost more than it saves stays there too; 0 keeps "
        "every partition, as does `policy.portable: error` without this key.",
    )
    include: Patterns = Field(
        default=(), description="Operator patterns, e.g. aten.add.*: no backend takes anything else. Empty: no limit."
    )
    exclude: Patterns = Field(default=(), description="Operator patterns that no backend takes.")
    pins: dict[str, str] = Field(
        default={},
        description="Module path pattern, e.g. encoder.layer.*: the one place where it may run, a backend or portable.",
    )
    node_pins: dict[str, str] = Field(
        default={}, description="The same by patterns over names of nodes; looked at first."
    )
    together: Annotated[tuple[Patterns, ...], Field(strict=False)] = Field(
        default=(),
        description="Groups of module path patterns, e.g. [[text.*, image.*]]: what is under different patterns of a "
        "group shares no partition and runs at the same time, on threads. Each gets a share of the cores unless its "
        "backend's options say how many threads.",
    )


class Policy(_Model):
    """The reaction if something cannot run where it was requested."""

    unavailable: Literal["error", "warn", "skip"] = Field(
        default="error",
        description="A backend named here is not installed, has no library or device here, or is blocked.",
    )
    portable: Literal["allow", "warn", "error"] = Field(
        default="allow", description="Nodes land on portable kernels although backends were asked for."
    )


class Fallback(_Model):
    """The fallback of a partition whose delegate fails, or whose library or device is absent."""

    keep: bool | None = Field(
        default=None,
        description="Keep every partition in portable kernels too, beside the blob of its backend. It makes the file "
        "larger: constants that a blob holds are stored once more, shared by all methods. null: those of plugins that "
        "are used because nobody named any backend.",
    )
    policy: Literal["allow", "warn", "error"] = Field(
        default="warn",
        description="A delegate fails and its partition was kept. allow: it runs on kernels, and only the report says "
        "so; warn: with a warning; error: the failure is an error. Saved with the program; delegate.load can override.",
    )


class AccuracyPolicy(_Model):
    """Bounds on the errors of partitions and results on the inputs of `verify`; null: no bound."""

    sqnr_db: float | None = Field(
        default=20, allow_inf_nan=False, description="Least power of the reference over that of the difference, in dB."
    )
    max_error: float | None = Field(default=None, ge=0, allow_inf_nan=False, description="Greatest difference.")
    relative_error: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="Greatest difference over the greatest size in the reference.",
    )
    top1: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Least share of rows whose greatest element is where the reference's is, for outputs that are a "
        "row of floats per sample.",
    )
    on_failure: Literal["error", "warn", "move"] = Field(
        default="error",
        description="move: the nodes that cause it are found and run elsewhere, on the backends behind or on kernels.",
    )


class Quantization(_Model):
    """The quantization of a float model before it is lowered, for a backend that runs integers."""

    backend: str | None = Field(
        default=None, description="The backend that it is for. Key left out: the first of the backends that can."
    )
    scheme: str | None = Field(
        default=None,
        description="For all that nothing else is said of: static_int8, dynamic_int8, dynamic_int4, weight_only_int8, "
        "weight_only_int4 of xnnpack, or off. Key left out: the backend's first.",
    )
    operators: dict[str, str] = Field(
        default={}, description="Operator pattern, e.g. aten.add*: the scheme of these operators, or off."
    )
    module_types: dict[str, str] = Field(
        default={}, description="Class of modules, e.g. Linear: the scheme of what is in them, or off."
    )
    modules: dict[str, str] = Field(
        default={}, description="Module path pattern, e.g. encoder.layer.*: the scheme of what is in them, or off."
    )
    nodes: dict[str, str] = Field(
        default={},
        description="Pattern over names of the float program's nodes, e.g. linear_3: the scheme of these, or off. For "
        "one call of a module that is called several times. Looked at first.",
    )
    group_size: int | None = Field(
        default=None,
        ge=0,
        description="How many inputs of a channel share a scale, in schemes that have groups; 0 for all of them. Key "
        "left out: the scheme's own.",
    )
    observer: Literal["histogram", "minmax"] = Field(
        default="histogram",
        description="How the range of activations is found: histogram by the least square error and without outliers, "
        "minmax of all values.",
    )
    outliers: float = Field(
        default=1e-4,
        ge=0,
        le=0.01,
        description="Share of an activation's values that histogram may leave out at each end, if they are more than "
        "four times as large as all others: one of a thousand or more always may be. Zeros do not count. 0: none.",
    )
    calibration: str | dict[str, str] | None = Field(
        default=None,
        description="Data that static schemes measure ranges on: a .npz file, a folder of them, or "
        "package.module:function that yields inputs. For a program of several methods a mapping: method: data.",
    )
    batches: int | None = Field(default=None, ge=1, description="How many batches to take. Key left out: all.")

    @field_validator("scheme", "operators", "module_types", "modules", "nodes", mode="before")
    @classmethod
    def _off(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {k: cls._off(v) for k, v in value.items()}
        return "off" if value is False else value  # what YAML makes of it


class PlacementCandidate(_Model):
    """A candidate of placement; in a file, its bare name stands for a mapping that holds only `name`."""

    name: str = Field(
        description="A backend of `backends`; with other options than another, an instance: openvino:bf16."
    )
    quantization: Quantization | None = Field(
        default=None,
        description="Quantize the model so before it is lowered for this candidate. Needs `accuracy`. Key left out: as "
        "it is.",
    )

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, data: Any) -> Any:
        if not isinstance(data, str | Mapping | PlacementCandidate):
            raise ValueError("should be the name of a backend, or a mapping that holds it")
        return {"name": data} if isinstance(data, str) else data


class PlacementAccuracy(_Model):
    """The bound on errors against torch, which permits candidates of less precision."""

    sqnr_db: float = Field(
        gt=0, allow_inf_nan=False, description="Least power of torch's result over that of the difference, in dB."
    )
    inputs: str | None = Field(
        default=None,
        description="What that is measured on: a .npz file, a folder of them, or package.module:function that yields "
        "inputs. Key left out: the inputs of `verify`, else the export's example inputs.",
    )


class Placing(_Model):
    """The choice among the backends that support a node."""

    policy: Literal["preference", "measured"] = Field(
        default="preference",
        description="preference: the first that takes it. measured: plans of each candidate, and such as mix them, are "
        "run on this machine; the best is taken. See placement.md.",
    )
    budget: float = Field(
        default=60.0,
        gt=0,
        allow_inf_nan=False,
        description="Seconds that compiling candidates and measuring them may take together; 90s and 2min do as well.",
        json_schema_extra={"type": ["number", "string"]},
    )
    candidates: Annotated[tuple[PlacementCandidate, ...], Field(strict=False)] | None = Field(
        default=None, description="What is chosen from, the preferred first. Key left out: the backends."
    )
    objective: Literal["latency", "throughput", "memory", "file size"] = Field(
        default="latency",
        description="What is to be least: the time of a call, the time between results of as many callers as there "
        "are cores, the memory that the process takes, or the size of the program file.",
    )
    threads: Annotated[tuple[Annotated[int, Field(gt=0, le=1024)], ...], Field(strict=False)] = Field(
        default=(),
        description="Numbers of threads to try for backends that have this option at load. Empty: as they are set.",
    )
    accuracy: PlacementAccuracy | None = Field(
        default=None, description="Key left out: nothing but the program's own precision is taken."
    )

    @field_validator("budget", mode="before")
    @classmethod
    def _seconds(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        for unit, seconds in (("min", 60), ("s", 1)):
            if value.endswith(unit):
                try:
                    return float(value.removesuffix(unit)) * seconds
                except ValueError:
                    break
        raise ValueError("should be a number of seconds, e.g. 60, 90s or 2min")

    @model_validator(mode="after")
    def _bounded(self) -> Placing:
        if self.candidates is not None and not self.candidates:
            raise ValueError("candidates: has no value: name some, or leave the key out for all backends")
        if self.candidates and len(set(map(repr, self.candidates))) < len(self.candidates):
            raise ValueError("candidates: one of them is named twice")
        if self.accuracy is None and any(c.quantization is not None for c in self.candidates or ()):
            raise ValueError("a candidate that is quantized needs accuracy.sqnr_db: how far results may be off")
        return self


class Cache(_Model):
    """The compile cache of artifacts, for the next lowering of the same partitions."""

    enabled: bool = Field(default=True, description="Take compiled partitions from there, and keep them.")
    folder: str | None = Field(
        default=None,
        description="Where it lies. Key left out: what the environment variable DELEGATE_CACHE names, else the "
        "platform's own folder for caches; see `delegate cache path`.",
    )
    max_mb: int = Field(
        default=4096, ge=1, description="MiB that all entries may take; what was unused for longest goes first."
    )


class Config(_Model):
    """A configuration of `delegate.to_backend`."""

    version: Literal[1] = Field(default=1, description="Version of this format.")
    backends: Annotated[tuple[BackendChoice, ...], Field(strict=False)] | None = Field(
        default=None,
        description="Backends in order of preference. []: none, portable kernels alone. Key left out: every "
        "backend that is available.",
    )
    kernels: Patterns | None = Field(
        default=None,
        description="Kernel libraries for what no backend takes, in order of preference, e.g. [aten, portable] for "
        "torch's own kernels where torch is installed. portable comes last where it is not named. Key left out: those "
        "of the installed plugins, then portable. For this process: a program file does not hold it.",
    )
    partitioning: Partitioning = Field(default=Partitioning(), description="How nodes are given to backends.")
    policy: Policy = Field(
        default=Policy(), description="What happens when something does not run where it was asked to."
    )
    cache: Cache = Field(default=Cache(), description="What is kept for the next lowering of the same partitions.")
    fallback: Fallback = Field(default=Fallback(), description="What a partition runs on where its delegate cannot.")
    verify: AccuracyPolicy | None = Field(
        default=None,
        description="How far off results may be: the program is run when it is lowered, on the inputs of `verify`, or "
        "on the export's example inputs. Key left out: it is run if inputs are given, and nothing is asked of it.",
    )
    quantization: Quantization | None = Field(
        default=None, description="Quantize the model before it is lowered. Key left out: it is taken as it is."
    )
    placement: Placing = Field(default=Placing(), description="Which of the backends that take a node runs it.")

    @field_validator("version", mode="before")
    @classmethod
    def _whole(cls, value: Any) -> Any:
        if type(value) is not int or value != 1:
            raise PydanticCustomError("literal_error", "Input should be 1")  # true and 1.0 equal it
        return value

    @field_validator("backends", mode="before")
    @classmethod
    def _not_empty(cls, value: Any) -> Any:
        if value is None:
            raise ValueError("has no value: write [] for no backend, or leave the key out for all that are available")
        return value

    def rules(self, backends: Collection[str]) -> PartitionRules:
        """Return the rules for the partitioner.

        Args:
            backends: names of the backends that are used. Pins to other backends of the configuration are left out;
                `policy.unavailable` permitted their absence.
        """
        from delegate.partitioner.rules import PartitionRules

        p = self.partitioning
        left_out = {choice.name for choice in self.backends or ()} - set(backends)
        # If portable nodes are forbidden, a partition must not become portable because its call costs too much.
        keeps_all = self.policy.portable == "error" and "min_partition_size" not in p.model_fields_set
        return PartitionRules(
            min_partition_size=0 if keeps_all else p.min_partition_size,
            include=p.include,
            exclude=p.exclude,
            backend_include={c.name: c.include for c in self.backends or () if c.include},
            backend_exclude={c.name: c.exclude for c in self.backends or () if c.exclude},
            pins={pattern: place for pattern, place in p.pins.items() if place not in left_out},
            node_pins={pattern: place for pattern, place in p.node_pins.items() if place not in left_out},
            together=p.together,
        )
