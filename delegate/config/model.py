"""The pydantic models of a configuration. The descriptions of the fields document its keys for users."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

if TYPE_CHECKING:
    from delegate.partitioner.rules import PartitionRules


# YAML has lists, but strict mode would only accept tuples.
Patterns = Annotated[tuple[str, ...], Field(strict=False)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class BackendChoice(_Model):
    """A backend to use. In a file, its bare name is short for a mapping with only `name`."""

    name: str = Field(
        description="Name of the backend, as `delegate backends` lists it. A backend that is listed several times with "
        "different options gets a separate name after a colon, e.g. xnnpack:small. Plans, reports, pins and options at "
        "load use that name."
    )
    options: dict[str, Any] = Field(default={}, description="Options of the backend.")
    include: Patterns = Field(
        default=(), description="Operator patterns, e.g. aten.conv*. Only these run on this backend. Empty: no limit."
    )
    exclude: Patterns = Field(default=(), description="Operator patterns. These never run on this backend.")
    isolate: Literal["auto", "compile", "none"] = Field(
        default="auto",
        description="Process of the backend's compiler. auto: a compiler that may crash, as of a plugin, runs in a "
        "separate process for each new structure of a partition, otherwise in this process. compile: support checks "
        "and compiler always run in a separate process. none: always in this process. If the separate process crashes "
        "or hangs, its nodes are rejected with that reason, and this process continues. Requires POSIX.",
    )
    time_limit: float = Field(
        default=600.0,
        gt=0,
        description="Seconds that a separate process may take for the support checks of a graph, and for the "
        "compilation of each partition.",
    )

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, data: Any) -> Any:
        if not isinstance(data, str | Mapping | BackendChoice):
            raise ValueError("should be the name of a backend, or a mapping that holds it")
        return {"name": data} if isinstance(data, str) else data


class Partitioning(_Model):
    """The assignment of nodes to backends."""

    min_partition_size: int = Field(
        default=1,
        ge=0,
        description="Partitions with fewer operators stay on portable kernels, and so do partitions whose call would "
        "cost more than it saves. Operators that only rearrange data do not count. 0 delegates every partition; so "
        "does `policy.portable: error` without this key.",
    )
    include: Patterns = Field(
        default=(), description="Operator patterns, e.g. aten.add.*. Only these run on backends. Empty: no limit."
    )
    exclude: Patterns = Field(default=(), description="Operator patterns. These run on no backend.")
    pins: dict[str, str] = Field(
        default={},
        description="Module path pattern, e.g. encoder.layer.*: the only place where the module may run, the name of a "
        "backend or portable.",
    )
    node_pins: dict[str, str] = Field(
        default={}, description="Node name pattern: the only place where the node may run. Applied before `pins`."
    )


class Policy(_Model):
    """The reaction if a backend is not available, or if nodes cannot run on backends."""

    unavailable: Literal["error", "warn", "skip"] = Field(
        default="error",
        description="Reaction if a backend of `backends` is not installed, has no library or device on this machine, "
        "or is blocked.",
    )
    portable: Literal["allow", "warn", "error"] = Field(
        default="allow", description="Reaction if nodes stay on portable kernels although backends were requested."
    )


class Fallback(_Model):
    """The fallback of partitions whose delegate fails, or whose library or device is absent."""

    keep: bool | None = Field(
        default=None,
        description="Save every partition in portable kernels, too, in addition to the blob of its backend. The file "
        "becomes larger: constants of a blob are stored once more, shared by all methods. null: only partitions of "
        "plugins that were selected automatically, without `backends`.",
    )
    policy: Literal["allow", "warn", "error"] = Field(
        default="warn",
        description="Reaction if a delegate fails whose partition has kernels. allow: it runs on kernels, and only the "
        "report notes that. warn: it runs on kernels, with a warning. error: the failure is raised. The value is saved "
        "with the program; delegate.load can override it.",
    )


class AccuracyPolicy(_Model):
    """Bounds on the errors of partitions and results, for the inputs of `verify`; null: no bound."""

    sqnr_db: float | None = Field(
        default=20,
        allow_inf_nan=False,
        description="Least ratio of the power of the reference to that of the difference, in dB.",
    )
    max_error: float | None = Field(
        default=None, ge=0, allow_inf_nan=False, description="Greatest difference from the reference."
    )
    relative_error: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="Greatest difference from the reference, over the greatest magnitude in the reference.",
    )
    top1: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Least share of rows whose greatest element is at the same place as in the reference. It applies "
        "to outputs with one row of floats per sample.",
    )
    on_failure: Literal["error", "warn", "move"] = Field(
        default="error",
        description="Reaction to a failed accuracy check. error: it is raised. warn: a warning. move: the inaccurate "
        "nodes are located and run on the next backends or on kernels.",
    )


AUTO = "auto"  # the scheme of a quantization that measures all schemes


def _seconds(value: Any) -> Any:
    """Return a number of seconds for texts such as 90s and 2min; other values as they are."""
    if not isinstance(value, str):
        return value
    for unit, seconds in (("min", 60), ("s", 1)):
        if value.endswith(unit):
            try:
                return float(value.removesuffix(unit)) * seconds
            except ValueError:
                break
    raise ValueError("should be a number of seconds, e.g. 60, 90s or 2min")


Seconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0, allow_inf_nan=False)]


class Quantization(_Model):
    """The quantization of a float model, before it is lowered, for a backend that runs integers."""

    backend: str | None = Field(
        default=None,
        description="Backend to quantize for. Without the key: the first of the backends that supports quantization.",
    )
    scheme: str | None = Field(
        default=None,
        description="Scheme of all operators without a more specific rule: static_int8, dynamic_int8, dynamic_int4, "
        "weight_only_int8, weight_only_int4 of xnnpack and onnxruntime, or off. A number after / is a group size, e.g. "
        "dynamic_int4/64. auto: the schemes of each backend are measured, and the fastest program that "
        "keeps sqnr_db is chosen. Without the key: the first scheme of the backend.",
    )
    sqnr_db: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="For auto, which requires it: the least ratio of the power of the float result to that of the "
        "difference, in dB.",
    )
    budget: Seconds | None = Field(
        default=None,
        description="For auto: seconds for quantization and measurement. 90s and 2min are also accepted. Without the "
        "key: that of `placement`.",
        json_schema_extra={"type": ["number", "string"]},
    )
    operators: dict[str, str] = Field(
        default={}, description="Operator pattern, e.g. aten.add*: the scheme of these operators, or off."
    )
    module_types: dict[str, str] = Field(
        default={}, description="Class of modules, e.g. Linear: the scheme of their operators, or off."
    )
    modules: dict[str, str] = Field(
        default={}, description="Module path pattern, e.g. encoder.layer.*: the scheme of their operators, or off."
    )
    nodes: dict[str, str] = Field(
        default={},
        description="Name pattern of nodes in the float program, e.g. linear_3: the scheme of these nodes, or off. It "
        "selects one call of a module that is called several times. Applied before the other rules.",
    )
    group_size: int | None = Field(
        default=None,
        ge=0,
        description="Number of inputs of a channel that share a scale, in schemes with groups; 0: all inputs. Without "
        "the key: the default of the scheme, or all inputs of a layer that this default does not divide.",
    )
    observer: Literal["histogram", "minmax"] = Field(
        default="histogram",
        description="Method that finds the range of activations. histogram: the range of the least square error, "
        "without outliers. minmax: the range of all values.",
    )
    outliers: float = Field(
        default=1e-4,
        ge=0,
        le=0.01,
        description="Share of an activation's values that histogram may leave out at each end, if they are more than "
        "four times as large as all others. Of a thousand or more values, one may always be left out. Zeros do not "
        "count. 0: none.",
    )
    calibration: str | dict[str, str] | None = Field(
        default=None,
        description="Data for the ranges of static schemes: a .npz file, a folder of such files, or "
        "package.module:function that yields inputs. For a program with several methods: a mapping of method to data.",
    )
    batches: int | None = Field(
        default=None, ge=1, description="Greatest number of batches of the data. Without the key: all."
    )

    @field_validator("scheme", "operators", "module_types", "modules", "nodes", mode="before")
    @classmethod
    def _off(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {k: cls._off(v) for k, v in value.items()}
        is_off = value is False or (isinstance(value, str) and value.casefold() == "off")
        return "off" if is_off else value  # YAML reads an unquoted `off` as false

    @model_validator(mode="after")
    def _check_bounds(self) -> Quantization:
        if self.is_auto and self.sqnr_db is None:
            raise ValueError("scheme: auto requires sqnr_db, the least accuracy of the result, e.g. 30")
        if not self.is_auto and (self.sqnr_db, self.budget) != (None, None):
            raise ValueError("sqnr_db and budget are only for scheme: auto; `verify` has bounds for one scheme")
        return self

    @property
    def is_auto(self) -> bool:
        """Return if the scheme is chosen by measurement."""
        return self.scheme is not None and self.scheme.casefold() == AUTO


class PlacementCandidate(_Model):
    """A candidate of placement. In a file, its bare name is short for a mapping with only `name`."""

    name: str = Field(
        description="Name of a backend of `backends`, or of an instance with different options, e.g. openvino:bf16."
    )
    quantization: Quantization | None = Field(
        default=None,
        description="Quantization of the model before it is lowered for this candidate. Requires `accuracy`. Without "
        "the key: the model is not changed.",
    )

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, data: Any) -> Any:
        if not isinstance(data, str | Mapping | PlacementCandidate):
            raise ValueError("should be the name of a backend, or a mapping that holds it")
        return {"name": data} if isinstance(data, str) else data

    @model_validator(mode="after")
    def _one_scheme(self) -> PlacementCandidate:
        if self.quantization is not None and self.quantization.is_auto:
            raise ValueError("scheme: auto has candidates of its own: give it in `quantization` of the configuration")
        return self


class PlacementAccuracy(_Model):
    """The bound on the difference from torch's results, which permits candidates of lower precision."""

    sqnr_db: float = Field(
        gt=0,
        allow_inf_nan=False,
        description="Least ratio of the power of torch's result to that of the difference, in dB.",
    )
    inputs: str | None = Field(
        default=None,
        description="Inputs of the measurement: a .npz file, a folder of such files, or package.module:function that "
        "yields inputs. Without the key: the inputs of `verify`, else the example inputs of the export.",
    )


class PlacementSection(_Model):
    """The choice among the backends that support a node."""

    policy: Literal["preference", "estimated", "measured"] | None = Field(
        default=None,
        description="preference: a node runs on the first backend that supports it. estimated: the plan with the least "
        "estimated time is chosen. measured: plans of each candidate, and plans that mix candidates, run on this "
        "machine, and the best plan is chosen. Without the key: preference if backends are named, else estimated. See "
        "how-to/placement.md.",
    )
    budget: Seconds = Field(
        default=60.0,
        description="Seconds for the compilation and measurement of all candidates. 90s and 2min are also accepted.",
        json_schema_extra={"type": ["number", "string"]},
    )
    candidates: Annotated[tuple[PlacementCandidate, ...], Field(strict=False)] | None = Field(
        default=None, description="Candidates, the preferred first. Without the key: the backends."
    )
    objective: Literal["latency", "memory", "file size"] = Field(
        default="latency",
        description="Quantity to minimise: the time of a call, the memory of the process, or the size of the program "
        "file.",
    )
    threads: Annotated[tuple[Annotated[int, Field(gt=0, le=1024)], ...], Field(strict=False)] = Field(
        default=(),
        description="Numbers of threads to try, for backends with this option at load. Empty: the configured number.",
    )
    accuracy: PlacementAccuracy | None = Field(
        default=None,
        description="Bound on errors of candidates with lower precision. Without the key: only the program's own "
        "precision.",
    )

    @model_validator(mode="after")
    def _check_bounds(self) -> PlacementSection:
        if self.candidates is not None and not self.candidates:
            raise ValueError("candidates: has no value: name some, or leave the key out for all backends")
        if self.candidates and len(set(map(repr, self.candidates))) < len(self.candidates):
            raise ValueError("candidates: one of them is named twice")
        if self.accuracy is None and any(c.quantization is not None for c in self.candidates or ()):
            raise ValueError("a quantized candidate requires accuracy.sqnr_db, the bound on its errors")
        return self


class Cache(_Model):
    """The compile cache of artifacts, for the next lowering of the same partitions."""

    enabled: bool = Field(default=True, description="Get compiled partitions from the cache, and put new ones there.")
    folder: str | None = Field(
        default=None,
        description="Folder of the cache. Without the key: the folder in the environment variable DELEGATE_CACHE, else "
        "the platform's folder for caches; see `delegate cache path`.",
    )
    max_mb: int = Field(
        default=4096,
        ge=1,
        description="Greatest size of all entries in MiB. The entries that were unused for longest are removed first.",
    )


class Config(_Model):
    """A configuration of `delegate.to_backend`."""

    version: Literal[1] = Field(default=1, description="Version of this format.")
    backends: Annotated[tuple[BackendChoice, ...], Field(strict=False)] | None = Field(
        default=None,
        description="Backends in order of preference. []: only portable kernels. Without the key: every backend that "
        "is available.",
    )
    kernels: Patterns | None = Field(
        default=None,
        description="Kernel libraries for portable nodes, in order of preference, e.g. [aten, portable] for torch's "
        "own kernels if torch is installed. If portable is not listed, it comes last. Without the key: those of the "
        "installed plugins, then portable. The key applies to this process; a program file does not store it.",
    )
    partitioning: Partitioning = Field(default=Partitioning(), description="Assignment of nodes to backends.")
    policy: Policy = Field(
        default=Policy(), description="Reactions if a backend is not available, or if nodes cannot run on backends."
    )
    cache: Cache = Field(default=Cache(), description="Cache of compiled partitions on disk, for the next lowering.")
    fallback: Fallback = Field(
        default=Fallback(), description="Portable kernels for partitions whose delegate fails or is absent."
    )
    verify: AccuracyPolicy | None = Field(
        default=None,
        description="Bounds on the errors of results. The program runs when it is lowered, on the inputs of `verify`, "
        "or on the example inputs of the export. Without the key: it runs only if inputs are passed, without bounds.",
    )
    quantization: Quantization | None = Field(
        default=None,
        description="Quantization of the model before it is lowered. Without the key: the model is not changed.",
    )
    placement: PlacementSection = Field(
        default=PlacementSection(), description="Choice among the backends that support a node."
    )

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

    @model_validator(mode="after")
    def _one_choice(self) -> Config:
        placement, section = self.placement, self.quantization
        if section is not None and section.is_auto and (placement.candidates, placement.accuracy) != (None, None):
            raise ValueError("scheme: auto has candidates and a bound of its own: leave out those of `placement`")
        return self

    def measuring(self) -> PlacementSection:
        """Return the section `placement`, with the measurement that scheme: auto of the quantization requests."""
        section = self.quantization
        if section is None or not section.is_auto or section.sqnr_db is None:
            return self.placement
        accuracy = PlacementAccuracy(sqnr_db=section.sqnr_db)
        budget = self.placement.budget if section.budget is None else section.budget
        return self.placement.model_copy(update={"policy": "measured", "accuracy": accuracy, "budget": budget})

    def rules(self, backends: Collection[str]) -> PartitionRules:
        """Return the rules for the partitioner.

        Args:
            backends: names of the backends that are used. Pins to other backends of the configuration are left out;
                `policy.unavailable` permitted their absence.
        """
        from delegate.partitioner.rules import PartitionRules

        p = self.partitioning
        left_out = {choice.name for choice in self.backends or ()} - set(backends)
        # If portable nodes are forbidden, a partition must not stay portable because its call costs too much.
        keeps_all = self.policy.portable == "error" and "min_partition_size" not in p.model_fields_set
        return PartitionRules(
            min_partition_size=0 if keeps_all else p.min_partition_size,
            include=p.include,
            exclude=p.exclude,
            backend_include={c.name: c.include for c in self.backends or () if c.include},
            backend_exclude={c.name: c.exclude for c in self.backends or () if c.exclude},
            pins={pattern: place for pattern, place in p.pins.items() if place not in left_out},
            node_pins={pattern: place for pattern, place in p.node_pins.items() if place not in left_out},
        )
