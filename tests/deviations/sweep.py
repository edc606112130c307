"""One case on one backend: lowered once for each dtype, and run on all groups of points."""

from __future__ import annotations

import copy
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.utils._pytree import tree_leaves, tree_map_only

import delegate
from delegate.backend.aot import Backend, PreprocessResult, Region
from delegate.backend.deviations import Deviation, Handling, deviations_of
from delegate.errors import DelegateError, InputError
from delegate.plugins import PORTABLE
from delegate.registry import default_registry
from delegate.verdict import YES, Verdict
from tests.deviations import lengths
from tests.deviations.comparison import Difference, differences
from tests.deviations.points import groups, sizes
from tests.support.cases import operators
from tests.support.functions import Function

_OVERFLOWING = ("limits",)
_UNTAGGED = frozenset(  # whose results are compared one by one, though torch does not tag them as pointwise
    f"aten.{name}.default" for name in ("_softmax", "_to_copy", "copy", "glu", "hardswish", "log_sigmoid", "prelu")
)
# Their scripts register and release a provider of ONNX Runtime, after which this process can open no session of it.
_REGISTERING = frozenset({"webgpu"})
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Lowered:
    """A case that a backend runs.

    Args:
        program: the lowered program.
        module: its source.
        precision: the dtype whose digits the results have.
        operators: the operators that the backend runs.
        loses_nan: a note of the report says that NaN may become a number.
        alone: runs the artifact with the vendor's library alone; None if that cannot be done.
    """

    program: Callable[..., Any]
    module: nn.Module
    precision: torch.dtype
    operators: frozenset[str]
    loses_nan: bool
    alone: Callable[[Inputs], list[Any]] | None


def names() -> list[str]:
    """Return the names of all cases; each begins with its operator."""
    relative = [name for name in operators.CASES if name.endswith(", relative")]  # as every comparison is here
    return [name for name in (*operators.CASES, *lengths.CASES) if name not in relative]


def table(backend: str) -> Sequence[Deviation]:
    """Return the deviations of a backend; kernels have none."""
    return () if backend == PORTABLE else default_registry().aot(backend).deviations


def records(name: str, backend: str) -> Iterator[dict[str, Any]]:
    """Yield a record of each difference of a case, and one at the end that says what the backend runs.

    A rejection of a row of the table of deviations is lifted in turn, to see whether the library still differs.
    Quantizers of bfloat16 have no kernel.
    """
    rejections = [d for d in deviations_of(table(backend), operator_of(name)) if d.handling is Handling.REJECTED]
    taken: set[str] = set()
    for dtype in DTYPES[:2] if _is_quantized(name) else DTYPES:
        lowered = _lowered(name, backend, dtype)
        if lowered is not None:
            taken |= lowered.operators
            yield from _differences(name, lowered, dtype)
    if name in operators.CASES and (dynamic := _lowered(name, backend, torch.float32, dynamic=True)) is not None:
        yield from _differences(name, dynamic, torch.float32, sizes(operators.CASES[name][1]))
    for row in rejections:
        with _accepting(row) as lifted:
            lowered = _lowered(name, backend, torch.float32)
        if lowered is not None and lifted:
            found = next(_differences(name, lowered, torch.float32), None) is not None
            yield {"row": row.message, "differs": found}
    yield {"operators": sorted(taken)}


def _inputs(name: str, dtype: torch.dtype) -> tuple[Iterator[tuple[str, Inputs]], Inputs]:
    """Return the inputs of a case by group, and those of the export."""
    if name in lengths.CASES:
        inputs = [(group, (x.to(dtype),)) for group, x in lengths.CASES[name][1]]
        return iter(inputs), inputs[0][1]
    example = tuple(x.clone().to(dtype) if x.is_floating_point() else x.clone() for x in operators.CASES[name][1])
    return groups(example, elementwise=_is_elementwise(name)), example


def _module(name: str, dtype: torch.dtype) -> nn.Module:
    """Return a case as a module in a dtype; with quantizers it stays in float32, as scales are in every scheme."""
    function, _ = lengths.CASES.get(name) or operators.CASES[name]
    module = copy.deepcopy(function) if isinstance(function, nn.Module) else Function(function)
    return module.eval().to(torch.float32 if _is_quantized(name) else dtype)


def _is_quantized(name: str) -> bool:
    return name.startswith("quantized_decomposed.")


def _lowered(name: str, backend: str, dtype: torch.dtype, *, dynamic: bool = False) -> Lowered | None:
    """Return a lowered case; None if torch does not export it so, or the backend runs nothing of it."""
    module, (_, example) = _module(name, dtype), _inputs(name, dtype)
    shapes = tuple([dict.fromkeys(range(x.dim()), Dim.AUTO) for x in example]) if dynamic else None
    try:
        exported = torch.export.export(module, example, dynamic_shapes=shapes)
    except Exception:  # an operator without that dtype, or without dynamic sizes
        return None
    config = {
        "backends": [] if backend == PORTABLE else [{"name": backend, "isolate": "none"}],
        "partitioning": {"min_partition_size": 0},
        "cache": {"enabled": False},
    }
    made: list[tuple[Backend, Region, PreprocessResult]] = []
    with nullcontext() if backend == PORTABLE else _recording(default_registry().aot(backend), made):
        program = delegate.to_backend(exported, config=config)
    taken = frozenset(n.op for n in program.report.nodes if n.backend == backend)
    if not taken:
        return None
    precision = made[0][0].float32_precision if made and dtype is torch.float32 else dtype
    source = exported.module() if dynamic else _module(name, precision)  # whose guards refuse sizes
    loses_nan = any(note.startswith("nan: fast") for p in program.report.partitions for note in p.notes)
    return Lowered(
        program, source, precision, taken, loses_nan, _alone(*made[-1], len(example)) if len(made) == 1 else None
    )


@contextmanager
def _recording(part: type[Backend], made: list[tuple[Backend, Region, PreprocessResult]]) -> Iterator[None]:
    """Record the artifacts of a backend."""
    preprocess = part.preprocess

    def recorded(self: Backend, region: Region) -> PreprocessResult:
        artifact = preprocess(self, region)
        made.append((self, region, artifact))
        return artifact

    with patch.object(part, "preprocess", recorded):
        yield


@contextmanager
def _accepting(row: Deviation) -> Iterator[list[Deviation]]:
    """Let a backend run what a row rejects; the list holds the row once for each node that it would reject."""
    reject, lifted = Deviation.reject, list[Deviation]()

    def accepted(self: Deviation) -> Verdict:
        if self != row:
            return reject(self)
        lifted.append(self)
        return YES

    with patch.object(Deviation, "reject", accepted):
        yield lifted


def _alone(backend: Backend, region: Region, artifact: PreprocessResult, count: int) -> Callable[..., Any] | None:
    """Return a function that runs an artifact with the vendor's library alone."""
    script = None if backend.name in _REGISTERING else backend.reproduction(artifact)
    if script is None or len(region.inputs) != count:
        return None

    def run(inputs: Inputs) -> list[Any]:
        with tempfile.TemporaryDirectory() as folder:
            for name, content in script.files.items():
                Path(folder, name).write_bytes(content)
            scope: dict[str, Any] = {"HERE": Path(folder), "np": np}
            exec(compile(script.code, "reproduction", "exec"), scope)
            return list(scope["run"]([_array(x) for x in inputs]))

    return run


def _array(x: Tensor) -> np.ndarray[Any, Any]:
    return (x.float() if x.dtype is torch.bfloat16 else x).numpy()


def _differences(
    name: str, lowered: Lowered, dtype: torch.dtype, points: Iterator[tuple[str, Inputs]] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the worst difference of each group and kind; `points` replaces the points of the dtype.

    A backend that computes float32 at a lower precision is compared with torch in that precision.
    """
    try:
        wide = _module(name, torch.float64)
    except Exception:
        wide = None
    is_elementwise, is_half = _is_elementwise(name), lowered.precision is not torch.float32
    worst: dict[tuple[str, str], tuple[Difference, Inputs]] = {}
    for group, inputs in points or _inputs(name, lowered.precision)[0]:
        plain = tuple(x.contiguous() for x in inputs)  # an exported program reads every input as contiguous
        eager, exact = _run(lowered.module, plain), _run(wide, _doubled(plain))
        if isinstance(eager, Exception):
            continue  # torch refuses them
        if group in _OVERFLOWING and not is_elementwise and not _selects(eager, inputs):
            continue  # the order of a sum decides what overflows
        given = _cast(inputs, lowered.precision, dtype)
        result = _run(lowered.program, given)
        if isinstance(result, InputError):
            continue  # the program states which sizes it takes
        if isinstance(result, Exception):
            yield _record(name, dtype, group, Difference("errors", 1.0, str(result)[:200], "results"), None)
            continue
        result, eager = (_cast(x, dtype, lowered.precision) for x in (result, eager))
        exact = eager if isinstance(exact, Exception) else exact
        terms = None if is_elementwise else _run(wide, tuple(x.abs() for x in _doubled(inputs)))
        terms = exact if isinstance(terms, Exception) else terms
        for found in differences(result, eager, exact, terms):
            if found.kind != "values" and is_half and _is_right_in_float32(name, inputs, result):
                continue  # computed in float32 and rounded at the border of the partition, as documented
            if lowered.loses_nan and (found.kind == "NaN" or not _are_finite(inputs)):
                continue  # the report says so
            largest = worst.get((group, found.kind))
            if largest is None or found.error > largest[0].error:
                worst[group, found.kind] = (found, given)
    for (group, _), (found, inputs) in worst.items():
        yield _record(name, dtype, group, found, _is_theirs(lowered, inputs))


def _is_right_in_float32(name: str, inputs: Inputs, result: Any) -> bool:
    """Return true if results in 16 bits have the integers, NaN and infinities of those of float32, rounded."""
    wide = _run(_module(name, torch.float32), tuple(_floats(x) for x in inputs))
    if isinstance(wide, Exception):
        return False
    pairs = zip(tree_leaves(result), tree_leaves(wide), strict=True)
    rounded = [(r, w.to(r.dtype)) for r, w in pairs]
    return all(
        torch.equal(r.isnan(), w.isnan()) and torch.equal(r.isinf(), w.isinf())
        if r.is_floating_point()
        else torch.equal(r, w)
        for r, w in rounded
    )


def _are_finite(inputs: Inputs) -> bool:
    return all(bool(x.isfinite().all()) for x in inputs)


def _cast(values: Any, source: torch.dtype, to: torch.dtype) -> Any:
    """Return values with the tensors of one dtype in another."""
    return tree_map_only(Tensor, lambda x: x.to(to) if x.dtype is source else x, values)


def _floats(x: Tensor) -> Tensor:
    return x.float() if x.is_floating_point() else x


def _record(name: str, dtype: torch.dtype, group: str, found: Difference, theirs: bool | None) -> dict[str, Any]:
    return {
        "case": name, "dtype": str(dtype).removeprefix("torch."), "points": group, **asdict(found), "theirs": theirs,
    }  # fmt: skip


def _is_theirs(lowered: Lowered, inputs: Inputs) -> bool | None:
    """Return true if the library alone returns the same as the program; None if it cannot run alone."""
    if lowered.alone is None:
        return None
    try:
        alone = [torch.as_tensor(np.asarray(x)) for x in lowered.alone(inputs)]
        ours = [torch.as_tensor(x) for x in tree_leaves(lowered.program(*inputs))]
    except Exception:
        return None
    return len(alone) == len(ours) and all(
        a.shape == o.shape and torch.equal(a.double().nan_to_num(12345.0), o.double().nan_to_num(12345.0))
        for a, o in zip(alone, ours, strict=True)
    )


def _selects(results: Any, inputs: Inputs) -> bool:
    """Return true for results that are elements of the inputs, or no floats."""
    known = torch.cat([x.flatten().double() for x in inputs if x.is_floating_point()])
    floats = [t for t in tree_leaves(results) if t.is_floating_point()]
    return all(bool(torch.isin(t.double(), known).all()) for t in floats)


def _run(function: Callable[..., Any] | None, inputs: Inputs) -> Any:
    if function is None:
        return RuntimeError("none")
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(*inputs)
    except (RuntimeError, AssertionError, DelegateError, IndexError, ValueError, TypeError) as error:
        return error


def _doubled(inputs: Sequence[Tensor]) -> Inputs:
    return tuple(x.double() if x.is_floating_point() else x for x in inputs)


def operator_of(name: str) -> str:
    """Return the operator that a case is named after."""
    return name.partition(",")[0]


def _is_elementwise(name: str) -> bool:
    if operator_of(name) in _UNTAGGED:
        return True
    packet, _, overload = operator_of(name).rpartition(".")
    namespace, _, operator = packet.partition(".")
    target = getattr(getattr(getattr(torch.ops, namespace), operator), overload)
    return torch.Tag.pointwise in target.tags
