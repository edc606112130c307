"""Memory of weights that XNNPACK packs: two methods, then a second process; and load to first answer.

python -m benchmarks.weights [--case two_methods|decoder_int4 ...]

Each figure is of a process of its own, in MB: its private memory and its proportional share of what it maps (PSS) once
both methods have run, its peak (VmHWM, in which pages that are mapped twice count twice), and seconds from `load` to
the first answer. `first` has an empty cache, `second` finds what it packed, `beside it` runs while that holds the
program.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import delegate
from delegate.quantization import Quantization, quantize
from tests.support import zoo

WORKER = """
import json, re, sys, time
import numpy as np
from delegate.runtime.loaded import load

def memory():
    said = open("/proc/self/smaps_rollup").read() + open("/proc/self/status").read()
    kilobytes = {key: int(re.search(rf"^{key}:\\s+(\\d+)", said, re.M)[1]) for key in
                 ("Pss", "Private_Clean", "Private_Dirty", "VmHWM", "Rss")}
    return {key: value * 1024 / 1e6 for key, value in kilobytes.items()}

begin = memory()
start = time.perf_counter()
program = load(sys.argv[1])
loaded = time.perf_counter() - start
for number, (name, rows) in enumerate(json.loads(sys.argv[2]).items()):
    shape = [rows, int(sys.argv[3])]
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    program.method(name)(x)
    if not number:
        first = time.perf_counter() - start
print(json.dumps({"begin": begin, "end": memory(), "loaded": loaded, "first": first}), flush=True)
sys.stdin.read()
"""


class Linears(nn.Module):
    """108 MB of weights."""

    width = 1024

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(27))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x)) * 1.5
        return x


class Decoder(nn.Module):
    """The linear layers of a decoder of Qwen3-0.6B's sizes, without its head."""

    width = 1024

    def __init__(self, layers: int = 28) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList(
                nn.Linear(a, b, bias=False)
                for a, b in ((1024, 4096), (2048, 1024), (1024, 3072), (1024, 3072), (3072, 1024))
            )
            for _ in range(layers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for qkv, out, gate, up, down in self.layers:  # type: ignore[misc]
            x = x + out(qkv(x)[:, :2048])
            x = x + down(nn.functional.silu(gate(x)) * up(x))
        return x


def two_methods(path: Path, backends: list[str]) -> None:
    torch.manual_seed(0)
    _save(Linears(), path, backends, lambda program: program)


def decoder_int4(path: Path, backends: list[str]) -> None:
    torch.manual_seed(0)
    _save(
        Decoder(),
        path,
        backends,
        lambda program: quantize(program, Quantization(backend="xnnpack", scheme="dynamic_int4"), None),
    )


ROWS = {"decode": 1, "prefill": 64}
CASES: dict[str, tuple[Callable[[Path, list[str]], None], int]] = {
    "two_methods": (two_methods, Linears.width),
    "decoder_int4": (decoder_int4, Decoder.width),
}


def _save(module: nn.Module, path: Path, backends: list[str], change: Callable[..., object]) -> None:
    exported = {
        name: change(torch.export.export(module.eval(), (torch.randn(rows, 1024),))) for name, rows in ROWS.items()
    }
    delegate.to_backend(exported, backends, cache=False).save(path)  # type: ignore[arg-type]


def start(model: Path, width: int, cache: str) -> subprocess.Popen[str]:
    """A process that loads, runs, says its figures, and holds the program until its input ends."""
    environment = {**os.environ, "DELEGATE_CACHE": cache}
    command = [sys.executable, "-c", WORKER, str(model), json.dumps(ROWS), str(width)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def figures(process: subprocess.Popen[str]) -> dict[str, dict[str, float]]:
    assert process.stdout is not None
    found: dict[str, dict[str, float]] = json.loads(process.stdout.readline())
    return found


def end(process: subprocess.Popen[str]) -> None:
    process.communicate("")


def row(name: str, found: dict[str, dict[str, float]]) -> str:
    last = found["end"]
    private = last["Private_Clean"] + last["Private_Dirty"]
    numbers = (found["begin"]["Pss"], private, last["Pss"], last["VmHWM"])
    return f"| {name} | {' | '.join(f'{n:.0f}' for n in numbers)} | {found['loaded']:.2f} | {found['first']:.2f} |"


def measure(case: str, folder: Path) -> None:
    save, width = CASES[case]
    model, portable = folder / f"{case}.dlg", folder / f"{case}.portable.dlg"
    for path, backends in ((model, ["xnnpack"]), *([(portable, [])] if case == "two_methods" else [])):
        if not path.exists():  # lowered in a process of its own memory
            with zoo.libraries():
                save(path, backends)
    print(f"\n{case}: file {model.stat().st_size / 1e6:.0f} MB, two methods\n")
    print("| process | at start, PSS | private | PSS | peak | load, s | first answer, s |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as cache:
        for name, kept in (("without a cache", "off"), ("first", cache), ("second", cache)):
            process = start(model, width, kept)
            print(row(name, figures(process)), flush=True)
            if name == "second":
                beside = start(model, width, cache)
                print(row("beside it", figures(beside)), flush=True)
                end(beside)
            end(process)
        if portable.exists():
            process = start(portable, width, "off")
            print(row("portable", figures(process)), flush=True)
            end(process)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--folder", type=Path, help="where models are kept for the next run")
    chosen = parser.parse_args()
    print(time.strftime("%Y-%m-%d"))
    with tempfile.TemporaryDirectory() as folder:
        for case in chosen.case:
            measure(case, chosen.folder or Path(folder))


if __name__ == "__main__":
    main()
