"""What processes of one language model take: the first that packs its weights, one behind it, a second beside that.

python -m benchmarks.llm_memory FILE...

FILE is one that `benchmarks.llm --folder` or `delegate llm` wrote. Each process loads it, takes 264 tokens in, and
decodes eight. Its peak is the most it has of its own and as its share of what others have too (PSS, sampled), its own
what nobody shares at the end (USS); both without what Python had before the load, and without the cache.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from delegate_llm import Conversation, Model

TOKENS = 264
PAGE = os.sysconf("SC_PAGE_SIZE")
PROCESSES = ("packs", "alone", "a second beside it")


def memory(*kinds: str) -> int:
    """Bytes of these kinds that this process has."""
    lines = (line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines())
    return sum(int(words[1]) << 10 for words in lines if words[0].rstrip(":") in kinds)


def cache(talk: Conversation) -> int:
    """Bytes of its states that lie in memory."""
    return sum(_resident(state) for state in talk.context.states.values())


def _resident(array: np.ndarray) -> int:
    first, last = array.ctypes.data // PAGE, -(-(array.ctypes.data + array.nbytes) // PAGE)
    pages = np.fromfile("/proc/self/pagemap", np.uint64, last - first, offset=8 * first)
    return int((pages >> np.uint64(63)).sum()) * PAGE


def measure(path: Path) -> None:
    """Print this process' peak, what is its own, its cache (MiB) and threads; then wait for a line."""
    pss, uss = memory("Pss"), memory("Private_Clean", "Private_Dirty")
    peak, done = [0], threading.Event()

    def watch() -> None:
        while not done.is_set():
            peak[0] = max(peak[0], memory("Pss"))
            time.sleep(0.01)

    watcher = threading.Thread(target=watch)
    watcher.start()
    talk = Model(path).conversation()
    talk.feed([1 + i % 100 for i in range(TOKENS)])
    for _ in range(8):
        talk.feed([7])
    done.set()
    watcher.join()
    held = cache(talk)
    own = memory("Private_Clean", "Private_Dirty") - uss - held
    threads = len(os.listdir("/proc/self/task"))
    print(*((size / 2**20) for size in (peak[0] - pss - held, own, held)), threads, flush=True)
    sys.stdin.readline()


def processes(path: Path) -> None:
    """Print a row for each of three processes, the last two at the same time."""
    size = path.stat().st_size / 2**20
    with tempfile.TemporaryDirectory() as folder:
        running = []
        for name in PROCESSES:
            command = [sys.executable, "-m", "benchmarks.llm_memory", "--one", str(path)]
            given = {**os.environ, "DELEGATE_CACHE": folder, "OPENBLAS_NUM_THREADS": "1"}
            process = subprocess.Popen(command, env=given, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            assert process.stdout is not None
            peak, own, held, threads = map(float, process.stdout.readline().split())
            cells = f"{peak:.0f} ({peak / size:.2f}) | {own:.0f} ({own / size:.2f}) | {held:.0f} | {threads:.0f}"
            print(f"| {path.stem}, {size:.0f} MiB | {name} | {cells} |", flush=True)
            if name == PROCESSES[0]:
                process.communicate("\n")
            else:
                running.append(process)
        for process in running:
            process.communicate("\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        measure(given.files[0])
        return
    print("| file | process | peak, MiB (of the file) | its own, MiB (of the file) | cache, MiB | threads |")
    print("|---|---|---|---|---|---|")
    for path in given.files:
        processes(path)


if __name__ == "__main__":
    main()
