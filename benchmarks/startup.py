"""What it takes to start: Python, the import of this project, and `delegate backends` with ten healthy plugins.

python -m benchmarks.startup [--rounds N]

Commands take turns, each in a new process with compiled bytecode at hand; the least and the median of each, in seconds,
and the least time of the processor. The plugins have been probed before, once, which is timed too.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.plugins import Site

PLUGINS = 10
COMMANDS = {
    "python": ("-c", "pass"),
    "import numpy": ("-c", "import numpy"),
    "import delegate": ("-c", "import delegate"),
    "delegate backends": ("-m", "delegate", "backends"),
}


def timed(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[float, float]:
    """Seconds of a Python process on the wall, and of the processor."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], env=environment, check=True, stdout=subprocess.DEVNULL)
    wall, now = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        for number in range(PLUGINS):
            Site(Path(folder)).backend(f"vendor{number}")
        path = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        environment |= {
            "PYTHONPATH": path,
            "PYTHONPYCACHEPREFIX": os.path.join(folder, "bytecode"),
            "DELEGATE_CACHE": os.path.join(folder, "cache"),
        }
        timed(("-c", "import delegate.compile, delegate.cli.app"), environment)  # compiles bytecode
        first, _ = timed(COMMANDS["delegate backends"], environment)
        print(f"{PLUGINS} plugins, probed for the first time: {first:.2f} s")
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
        for _ in range(rounds):
            for name, arguments in COMMANDS.items():
                taken[name].append(timed(arguments, environment))
    print("\n| | least, s | median, s | of the processor, least, s |\n|---|---|---|---|")
    for name, times in taken.items():
        wall, processor = zip(*times, strict=True)
        print(f"| {name} | {min(wall):.3f} | {statistics.median(wall):.3f} | {min(processor):.3f} |")


if __name__ == "__main__":
    main()
