"""The command: lower the network to each backend, run each saved program without torch, and compare."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from delegate.cli import options, output
from delegate.errors import DelegateError
from delegate.plugins import PORTABLE, PluginState

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from delegate_demo.network import Digits

REPORT = Path("report.html")
SCHEMES = ("static_int8", "dynamic_int8")  # each is shown for the backends that have it
_CALIBRATION = 64  # images that ranges are measured on
_EXACT = 0.0005  # loss of accuracy that the table does not show
_TORCH = "torch (eager)"


@dataclass(frozen=True)
class DemoRow:
    """A line of the table.

    Args:
        backend: its name; "portable", or "torch (eager)", which has no file.
        scheme: "float", or a scheme of quantization.
        accuracy: share of the images with the right class, 0 to 1.
        seconds: median latency of one image.
        file_bytes: size of the program file; None for torch.
        devices: what the backend runs on.
        stand_in: true if a CPU imitates the device.
        layers: number of layers with weights; 0 for torch.
        integer_layers: how many of them the scheme runs in integers.
    """

    backend: str
    scheme: str
    accuracy: float
    seconds: float
    file_bytes: int | None
    devices: tuple[str, ...] = ()
    stand_in: bool = False
    layers: int = 0
    integer_layers: int = 0

    @property
    def name(self) -> str:
        """Backend and scheme."""
        return self.backend if self.backend == _TORCH else f"{self.backend} {self.scheme}"

    def cells(self) -> tuple[str, str, str, str]:
        """Return the cells of the table."""
        size = "" if self.file_bytes is None else f"{self.file_bytes / 1024:5.0f} KiB"
        return self.name, f"{self.accuracy:8.2%}", f"{self.seconds * 1e6:8,.0f} us", size


def demo(
    backend: Annotated[
        list[str] | None,
        typer.Option(
            "--backend",
            "-b",
            metavar="NAME",
            help="Backend to show; several with one -b each. Default: all that work here.",
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", callback=options.OUTPUTS, help="Write the program files here."),
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help=f"Write {REPORT}: graph, placement, memory and time of the fastest.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Lower a trained network to every backend, save it, and run it in processes without torch."""
    if report:
        options.REPORT(REPORT)
    with tempfile.TemporaryDirectory() as temporary, _progress() as step:
        choices = _choose(backend, step)
        shown = _Demo(Path(temporary), folder or Path(temporary), step)
        rows, failures = shown.rows(choices)
        saved = shown.write_report(rows) if report else None
        count = len(shown.held_out.labels)
    real = sorted((r for r in rows if not r.stand_in), key=lambda r: r.seconds)
    stand_ins = sorted((r for r in rows if r.stand_in), key=lambda r: r.seconds)
    if as_json:
        output.print_json(
            {
                "images": count,
                "rows": [asdict(r) for r in (*real, *stand_ins)],
                "conclusion": conclusion(real),
                "failures": failures,
                "report": saved,
            }
        )
    else:
        _print(real, stand_ins, count)
        for name, message in failures.items():
            output.print_line(f"{name} failed: {message}")
        if folder is not None:
            output.print_line(f"saved the program files in {folder}")
        if saved:
            output.print_line(f"saved {saved}, {Path(saved).stat().st_size:,} bytes: open it in a browser")
        _print_next(folder, report)
    if failures:
        raise typer.Exit(1)


def _print(real: Sequence[DemoRow], stand_ins: Sequence[DemoRow], count: int) -> None:
    output.show(f"{count} images of digits in changing light, one at a time, without torch", "")
    header = ("backend", "accuracy", "latency", "file")
    output.table(header, [r.cells() for r in real])
    if stand_ins:
        output.show("", "Stand-ins: a CPU imitates the device, so the latency is not the device's.")
        output.table(header, [r.cells() for r in stand_ins])
    output.show("", conclusion(real), "")
    rows = (*real, *stand_ins)
    output.show(
        *(f"{name}: {devices[0]}" for name, devices in {r.backend: r.devices for r in rows if r.devices}.items())
    )
    if any(r.scheme == SCHEMES[0] for r in real):
        output.show("static_int8 has one range for bright and dark images: dark ones lose detail.")
    output.show(*partly_quantized(rows))


def partly_quantized(rows: Sequence[DemoRow]) -> list[str]:
    """Return a line for each row whose scheme leaves layers in float, since such a row is close to the row in float."""
    return [
        f"{r.name} runs {r.integer_layers} of {r.layers} layers in int8, and the others in float."
        for r in rows
        if r.scheme in SCHEMES and r.integer_layers < r.layers
    ]


def conclusion(real: Sequence[DemoRow]) -> str:
    """Return one sentence on the fastest program, its speed against torch, and its cost.

    Args:
        real: the rows that are not stand-ins, the fastest first.
    """
    eager = next(r for r in real if r.backend == _TORCH)
    programs = [r for r in real if r is not eager]
    if not programs:
        return "No backend ran on its own device."
    fastest = programs[0]
    if eager.seconds < fastest.seconds:
        return f"torch is fastest; {fastest.name} is next, at {_speed(eager, fastest)} torch's speed."
    text = f"{fastest.name} is fastest: {_speed(eager, fastest)} as fast as torch, {_cost(eager, fastest)}"
    exact = next((r for r in programs if eager.accuracy - r.accuracy < _EXACT), None)
    if exact is None or exact is fastest:
        return f"{text}."
    return f"{text};\n{exact.name} loses none at {_speed(eager, exact)}."


def _speed(eager: DemoRow, row: DemoRow) -> str:
    return f"{eager.seconds / row.seconds:.2g} times"


def _cost(eager: DemoRow, row: DemoRow) -> str:
    lost = eager.accuracy - row.accuracy
    return f"for {lost * 100:.1f} points of accuracy" if lost >= _EXACT else "with the same accuracy"


def _print_next(folder: Path | None, report: bool) -> None:
    lines = [] if report else [("delegate demo --report", "graph, memory and time of the fastest as a page")]
    if folder is not None:
        lines.append((f"delegate inspect {next(iter(sorted(folder.glob('*.dlg'))))}", "what is in a program file"))
    lines += [
        ("delegate backends", "what is installed here, and the fix of what is not"),
        ("delegate lower MODEL -o model.dlg", "your own model; README.md has the Python code"),
    ]
    output.print_line("\nNext:")
    for command, purpose in lines:
        output.print_line(f"  {command}\n      {purpose}")


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the present step: on a terminal by a spinner, else as lines on stderr."""
    if sys.stderr.isatty():
        with output.working("demo") as show:
            yield show
    else:
        yield lambda text: print(f"demo: {text}", file=sys.stderr, flush=True)


class _Choice(NamedTuple):
    """A backend to show, or "portable", with its quantization schemes; see DemoRow for the other fields."""

    name: str
    devices: tuple[str, ...] = ()
    stand_in: bool = False
    schemes: tuple[str, ...] = ()


def _choose(names: list[str] | None, step: Callable[[str], None]) -> list[_Choice]:
    """Return the backends to show, real ones first.

    Without names: those that work here, stand-ins without quantization, because these are slow.

    Raises:
        BackendError: a named backend cannot be used.
    """
    from delegate.registry import default_registry

    registry = default_registry()
    if names is None:
        step("probing the backends")
        usable = [s for s in registry.states() if s.state is PluginState.OK and not s.stands_for]
    else:
        resolved = dict.fromkeys(registry.resolve(name) for name in names)
        for name in resolved.keys() - {PORTABLE}:
            registry.runtime(name)
        usable = [registry.state(name) for name in resolved if name != PORTABLE]
    choices = [_Choice(PORTABLE)] if names is None or PORTABLE in names else []
    for state in usable:
        if (here := state.availability) is not None:
            schemes = () if here.stand_in and names is None else _schemes(state.name)
            choices.append(_Choice(state.name, here.devices, here.stand_in, schemes))
    return sorted(choices, key=lambda c: c.stand_in)


def _schemes(backend: str) -> tuple[str, ...]:
    """Return the schemes to show of a backend; none of one that runs no integers."""
    from delegate.errors import ConfigError
    from delegate.quantization import schemes

    try:
        available = schemes(backend)
    except ConfigError:
        return ()
    return tuple(name for name in SCHEMES if name in available)


class _Demo:
    """One run of the demo.

    Args:
        work: a folder for inputs and results.
        programs: the folder of the program files.
        step: shows the present step.
    """

    def __init__(self, work: Path, programs: Path, step: Callable[[str], None]) -> None:
        self._work, self._programs, self._step = work, programs, step
        step("importing torch, exporting the network")
        import numpy as np
        import torch

        from delegate_demo.network import digits, in_changing_light, load_trained

        training, self.held_out = digits()
        self._network = load_trained()
        self._exported = torch.export.export(self._network, (torch.from_numpy(self.held_out.images[:1]),))
        calibration = in_changing_light(training.images[:_CALIBRATION], 1)
        self._batches = [torch.from_numpy(image[None]) for image in calibration]
        programs.mkdir(parents=True, exist_ok=True)
        np.save(work / "images.npy", self.held_out.images)

    def rows(self, choices: Sequence[_Choice]) -> tuple[list[DemoRow], dict[str, str]]:
        """Return the rows, torch's row first, and the messages of the programs that failed, by name."""
        self._step("running torch")
        rows, failures = [_eager(self._network, self.held_out)], {}
        tasks = [(choice, scheme) for choice in choices for scheme in ("float", *choice.schemes)]
        for number, (choice, scheme) in enumerate(tasks, 1):
            name = f"{choice.name} {scheme}"
            self._step(f"{number} of {len(tasks)}: {name}")
            try:
                rows.append(self._row(choice, scheme))
            except DelegateError as error:
                failures[name] = str(error)
        return rows, failures

    def _row(self, choice: _Choice, scheme: str) -> DemoRow:
        import delegate

        file, exported = self.file(choice.name, scheme), self._exported
        if scheme != "float":
            from delegate.quantization import Quantization, quantize

            exported = quantize(exported, Quantization(backend=choice.name, scheme=scheme), self._batches)
        delegate.to_backend(exported, [choice.name]).save(file)
        result_file = self._work / "result.json"
        paths = map(str, (file, self._work / "images.npy", result_file))
        done = subprocess.run([sys.executable, "-m", "delegate_demo.measuring", *paths], check=False)
        if done.returncode != 0:
            raise DelegateError(f"the process that ran it ended with exit code {done.returncode}")
        result = json.loads(result_file.read_text())
        accuracy, layers = _accuracy(result["classes"], self.held_out), _layers(exported)
        measured = accuracy, result["latency"], file.stat().st_size
        return DemoRow(
            choice.name,
            scheme,
            *measured,
            choice.devices,
            choice.stand_in,
            layers=len(layers),
            integer_layers=sum(layers),
        )

    def file(self, backend: str, scheme: str) -> Path:
        """Return the path of a program file."""
        return self._programs / f"digits-{backend.replace(':', '-')}-{scheme}.dlg"

    def write_report(self, rows: Sequence[DemoRow]) -> str | None:
        """Write the page of the fastest program that is not a stand-in, and return its path; None without a program."""
        import delegate
        from delegate.program import file
        from delegate.program.memory_picture import memory_pictures
        from delegate.report import Report
        from delegate.report.page import page, write

        programs = [r for r in rows if r.file_bytes is not None]
        if not programs:
            return None
        self._step(f"writing {REPORT}")
        best = min(programs, key=lambda r: (r.stand_in, r.seconds))
        path = self.file(best.backend, best.scheme)
        with delegate.load(path, trust_code=True) as program, program.profile() as profile:
            for image in self.held_out.images[:_CALIBRATION]:
                program(image[None])
        saved = file.load(path)
        data = replace(Report.from_json(saved.report), memory=memory_pictures(saved)).page_data(best.name, profile)
        write(page([data]), REPORT)
        return str(REPORT)


def _layers(exported: ExportedProgram) -> list[bool]:
    """Return for each layer with weights if these are integers."""
    from delegate.edge.node import arguments, decodes

    operators = [n for n in exported.graph.nodes if n.op == "call_function"]
    weights = [w for n in operators if (w := arguments(n).get("weight")) is not None]
    return [decodes(w) for w in weights]


def _eager(network: Any, held_out: Digits) -> DemoRow:
    import torch

    seconds, classes = [], []
    with torch.no_grad():
        for image in torch.from_numpy(held_out.images)[:, None]:
            start = time.perf_counter()
            result = network(image)
            seconds.append(time.perf_counter() - start)
            classes.append(int(result.argmax()))
    return DemoRow(_TORCH, "float", _accuracy(classes, held_out), statistics.median(seconds), None)


def _accuracy(classes: Sequence[int], held_out: Digits) -> float:
    """Return the share of images with the right class."""
    return sum(map(int.__eq__, classes, held_out.labels.tolist())) / len(held_out.labels)
