"""`delegate run`: run a saved program without torch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

import delegate
from delegate.cli import output
from delegate.cli.arrays import Array, chosen_method, input_names, read_inputs
from delegate.cli.options import (
    OUTPUTS,
    Imports,
    LoadOptions,
    TraceFile,
    method_names,
    require_distinct,
    tracing,
)
from delegate.common.user_warnings import warn_user
from delegate.errors import BackendFailed, ConfigError, InputError
from delegate.kernels.half_precision import from_bfloat16
from delegate.plugins import load_developer_tool
from delegate.plugins.user_modules import import_modules
from delegate.program.dtypes import DType
from delegate.program.model import Ref
from delegate.runtime.arguments import leaf_names, leaves, random_inputs
from delegate.runtime.loaded import LoadedProgram
from delegate.runtime.method import Method

_NOT_FINITE = {"nan": "NaN", "infinite": "infinite"}  # key of the JSON -> word of the table


@dataclass(frozen=True, slots=True)
class TimingOptions:
    """The options that say how runs are timed."""

    repeat: Annotated[int, typer.Option(min=1, metavar="N", help="Number of timed runs.")] = 1
    profile: Annotated[bool, typer.Option("--profile", help="Show how long every instruction takes.")] = False
    inner: Annotated[
        bool, typer.Option("--inner", help="With --profile or --trace: also the operators inside the vendor libraries.")
    ] = False
    trace: TraceFile = None


def run(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A program file.")],
    load: LoadOptions,
    timing: TimingOptions,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", "-i", metavar="[NAME=]A.npy", help="Input, by order or by name. Default: random ones."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", callback=OUTPUTS, help="Write the outputs here."),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(metavar="NAME", autocompletion=method_names, help="Method to run, if the program has several."),
    ] = None,
    imports: Imports = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Run a program file on .npy files, or on seeded random inputs, without torch."""
    repeat, inner, trace = timing.repeat, timing.inner, timing.trace
    if inner and not (timing.profile or trace):
        raise typer.BadParameter("--inner adds to --profile or --trace: give one of them")
    require_distinct({"--trace": trace}, {"FILE": path})
    import_modules(imports)
    with ExitStack() as stack:
        tracer = stack.enter_context(tracing(trace))
        with output.working(f"loading {path}"):
            loaded = delegate.load(path, **load.arguments())
        program = stack.enter_context(_warn_if_close_fails(loaded))
        chosen = chosen_method(program, method, str(path))
        arrays = _read(chosen, inputs) if inputs else random_inputs(chosen.definition)
        arguments = leaves(chosen.inputs, arrays)
        results, seconds = [], []
        with (
            nullcontext() if tracer is None else program.listen(tracer, inner=inner),
            program.profile(inner=inner) if timing.profile else nullcontext() as watching,
        ):
            for _ in output.count_with_bar(repeat, f"running {path}"):
                start = time.perf_counter()
                results = chosen.run(arguments)
                seconds.append(time.perf_counter() - start)
        named = dict(zip(leaf_names(chosen.definition.out_tree), results, strict=True))
        files = _save(named, out) if out else {}
        outputs = [
            _Output(name, chosen.definition.values[ref.index].dtype if isinstance(ref, Ref) else None, result)
            for ref, (name, result) in zip(chosen.definition.outputs, named.items(), strict=True)
        ]
        fallbacks = program.fallback_events
        nan = None
        if any("nan" in o.describe() for o in outputs):
            try:
                nan = load_developer_tool("first_nan", "the search for the first NaN")(program, chosen.name, arguments)
            except ConfigError as error:
                warn_user(str(error))
    inputs_from = "files" if inputs else "random, seed 0"
    if as_json:
        output.print_json(
            {
                "file": str(path),
                "method": chosen.name,
                "inputs": [{"name": n, "dtype": str(a.dtype), "shape": list(a.shape)} for n, a in arrays.items()],
                "inputs_from": inputs_from,
                "outputs": [{"name": o.name, **o.describe(), "file": files.get(o.name)} for o in outputs],
                "seconds": seconds,
                "fallbacks": [asdict(event) for event in fallbacks],
                "profile": watching.to_json() if watching else None,
                "portable_share": watching.portable_shares().get(chosen.name) if watching else None,
                "trace": str(trace) if trace else None,
                "first_nan": nan,
            }
        )
        return
    rows = [(f"in  {name} ({inputs_from})", _type(array), "") for name, array in arrays.items()]
    rows += [(f"out {o.name}", o.type, "; ".join(filter(None, (o.values(), files.get(o.name))))) for o in outputs]
    output.table(("tensor", "type", ""), rows)
    if watching:
        output.show(watching.table())
        for name, share in watching.portable_shares().items():
            output.show(f"{name}: portable kernels took {share:.1%} of the time, measured")
    for event in fallbacks:
        output.show(f"note: {event}")
    if nan:
        output.show(f"note: NaN is first in {nan}; `delegate debug MODEL --nan` compares with torch")
    if trace:
        output.print_line(f"saved {trace}, {trace.stat().st_size:,} bytes: open it in ui.perfetto.dev")
    output.print_line(f"ran {chosen.name} {_times(seconds)}")


@contextmanager
def _warn_if_close_fails(program: LoadedProgram) -> Iterator[LoadedProgram]:
    """Close a program; a delegate that cannot be closed is a warning, since its results are valid."""
    ran = False
    try:
        with program:
            yield program
            ran = True
    except BackendFailed as error:
        if not ran:
            raise
        warn_user(str(error))


def _read(method: Method, arguments: Sequence[str]) -> dict[str, Array]:
    return read_inputs(method.name, input_names(method.definition), arguments)


def _save(results: Mapping[str, Any], directory: Path) -> dict[str, str]:
    """Write every output as .npy; output name -> path."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        files: dict[str, str] = {}
        for name, result in results.items():
            if result is not None:
                target = directory / f"{_file_name(name)}.npy"
                if str(target) in files.values():  # two names that differ in characters no file name has
                    target = target.with_stem(f"{target.stem}_{len(files)}")
                np.save(target, np.asarray(result), allow_pickle=False)
                files[name] = str(target)
        return files
    except OSError as error:
        what = f"cannot write the outputs to {str(directory)!r}: {error.strerror}"
        raise InputError(what, remedy="give another directory") from error


def _file_name(name: str) -> str:
    """Return a safe file name: keys of a result may hold any text."""
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in name).lstrip(".") or "output"


class _Output(NamedTuple):
    """An output of a call.

    Args:
        name: its path in the result, e.g. "logits" or "cache.0.1".
        dtype: the element type in the program; None of a number.
        result: an array (of bfloat16: its bits, as uint16), or a number.
    """

    name: str
    dtype: DType | None
    result: Any

    @property
    def type(self) -> str:
        """The element type and shape, e.g. "float32[1, 8]"."""
        if not isinstance(self.result, np.ndarray):
            return type(self.result).__name__
        return _type(self.result, "bfloat16" if self.dtype is DType.bfloat16 else "")

    def describe(self) -> dict[str, Any]:
        """Return the type, the range of the finite values, and counts of NaN and infinities if any, for JSON."""
        result = self.result
        if not isinstance(result, np.ndarray):
            return {"value": result}
        data: dict[str, Any] = {"dtype": self.type.partition("[")[0], "shape": list(result.shape)}
        if self.dtype is DType.bfloat16:
            result = from_bfloat16(result)
        if result.dtype.kind in "fc":
            counts = {"nan": int(np.isnan(result).sum()), "infinite": int(np.isinf(result).sum())}
            data |= {key: count for key, count in counts.items() if count}
            result = result[np.isfinite(result)]
        if result.size and result.dtype.kind in "fiub":
            data |= {"min": result.min().item(), "max": result.max().item()}
            data["mean"] = _number(result.mean(dtype=np.float64))
        return data

    def values(self) -> str:
        """Return one line on the values, e.g. "-1 to 2.5; 3 NaN and 1 infinite of 12"."""
        if not isinstance(self.result, np.ndarray):
            return repr(self.result)
        description = self.describe()
        parts = [f"{description['min']:.6g} to {description['max']:.6g}"] if "min" in description else []
        if counts := [f"{description[key]} {text}" for key, text in _NOT_FINITE.items() if description.get(key)]:
            parts.append(f"{' and '.join(counts)} of {self.result.size}")
        return "; ".join(parts)


def _number(number: np.floating[Any]) -> float | str:
    """Return a number as JSON holds it: a mean that overflows becomes text."""
    return number.item() if np.isfinite(number) else str(number)


def _type(array: Array, dtype: str = "") -> str:
    return f"{dtype or array.dtype}[{', '.join(map(str, array.shape))}]"


def _times(seconds: Sequence[float]) -> str:
    """Describe the number of runs and their times."""
    if len(seconds) == 1:
        return f"once: {seconds[0] * 1e3:.3g} ms"
    median, least = statistics.median(seconds) * 1e3, min(seconds) * 1e3
    return f"{len(seconds)} times: median {median:.3g} ms, least {least:.3g} ms"
