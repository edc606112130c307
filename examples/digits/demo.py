"""The main job on real data: export, quantize, lower to every backend here, save, and run in a process without torch.

python examples/digits/demo.py [FOLDER]     the files go to FOLDER, else to a temporary one
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from model import digits, trained

import delegate
from delegate.errors import ConfigError
from delegate.plugins import PluginState
from delegate.quantization import Settings, quantize, schemes
from delegate.registry import default_registry

HERE = Path(__file__).parent
MAIN = "xnnpack"  # the backend whose program is digits.dlg
SCHEMES = ("static_int8", "dynamic_int8")  # where a backend has them
BATCHES = 64  # training images that ranges are measured on


def main(folder: Path) -> None:
    """Run the demo; the programs are written to the folder."""
    net = trained()
    training, images, _, labels = digits()
    np.save(folder / "images.npy", images)
    exported = torch.export.export(net, (torch.from_numpy(images[:1]),))
    batches = [torch.from_numpy(image[None]) for image in training[:BATCHES]]

    rows = [_eager(net, images, labels)]
    devices = _devices()
    for place in ("portable", *devices):
        file = folder / ("digits.dlg" if place == MAIN else f"digits-{place}.dlg")
        program = delegate.to_backend(exported, [place])
        program.save(file)
        if place in devices:
            print(program.report, end="\n\n")
        rows.append(_saved(place, file, folder, labels))
        for scheme in _schemes(place) if place in devices else ():
            file = folder / f"digits-{place}-{scheme}.dlg"
            delegate.to_backend(quantize(exported, Settings(place, scheme), batches), [place]).save(file)
            rows.append(_saved(f"{place} {scheme}", file, folder, labels))

    print(f"{len(images)} held-out images, one at a time; the saved programs run in a process without torch")
    print(f"{'':20} {'accuracy':>9} {'latency':>11} {'file':>9}")
    for place, accuracy, latency, size in rows:
        file_size = f"{size / 1024:5.0f} KiB" if size else ""
        print(f"{place:20} {accuracy:9.2%} {latency * 1e6:8.0f} us {file_size:>9}  {devices.get(place, '')}".rstrip())


def _schemes(place: str) -> list[str]:
    """The schemes of a backend that are shown; none of one that runs no integers."""
    try:
        return [name for name in SCHEMES if name in schemes(place)]
    except ConfigError:
        return []


def _devices() -> dict[str, str]:
    """The backends that can be used here, and what each would run on."""
    usable = (s for s in default_registry().states() if s.state is PluginState.OK and not s.stands_for)
    return {s.name: "; ".join(s.availability.devices) for s in usable if s.availability}


def _eager(net: torch.nn.Module, images: np.ndarray, labels: np.ndarray) -> tuple[str, float, float, int]:
    times = []
    classes = []
    with torch.no_grad():
        for image in images:
            tensor = torch.from_numpy(image[None])
            start = time.perf_counter()
            result = net(tensor)
            times.append(time.perf_counter() - start)
            classes.append(int(result.argmax()))
    return "eager", float(np.mean(np.array(classes) == labels)), statistics.median(times), 0


def _saved(place: str, file: Path, folder: Path, labels: np.ndarray) -> tuple[str, float, float, int]:
    """Accuracy, latency and size of a saved program, run by another process."""
    result_file = folder / "result.json"
    subprocess.run([sys.executable, HERE / "run.py", file, folder / "images.npy", result_file], check=True)
    result = json.loads(result_file.read_text())
    return place, float(np.mean(np.array(result["classes"]) == labels)), result["latency"], file.stat().st_size


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
