"""The fuzzer of program files: forged ones are loaded, printed, bound and run, in forked children with limits.

    python -m tests.hostile.files [MINUTES [FIRST]]        or `make fuzz MINUTES=10`

They are forged from the programs in `seeds/`: small models of every kind on kernels, and one with a delegate that falls
back.

What may come of a file: a result, the same twice over memory of different content, or an error of this project. What
may not: another exception, a crash, time or memory out of proportion, or a call that Python cannot stop.
"""

from __future__ import annotations

import itertools
import os
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from delegate.errors import DelegateError
from delegate.kernels.portable import TABLE
from delegate.program import file
from delegate.program.expr import evaluate
from delegate.program.model import MethodDefinition, Program
from delegate.program.text import program_lines
from delegate.registry import Registry
from delegate.runtime.arguments import leaves, random_inputs
from delegate.runtime.loaded import LoadedProgram
from delegate.runtime.platform import Platform, allocate
from tests.hostile.mutator import forged
from tests.support.children import Finding, Slow, run_cases

SEEDS = Path(__file__).parent / "seeds"
np.random.default_rng()  # imported here: a child may lack the room for it
SECONDS = 2.0  # that a file of less than a megabyte may take
_RUN_SECONDS = 0.5  # after which a call is stopped: a loop of a file need not end
_MEMORY = 100 << 20  # bytes that a file may take to load and print, beside ten times its own
_LARGEST_INPUTS = 1 << 22  # elements; calls of more are left out


@cache
def _registry() -> Registry:
    return Registry()


@cache
def seeds() -> tuple[list[bytes], list[Program]]:
    """The seed programs, as bytes and as programs."""
    data = [path.read_bytes() for path in sorted(SEEDS.glob("*.dlg"))]
    return data, [file.load(d) for d in data]


def case(number: int) -> str | None:
    """What is wrong with what comes of the forged file of that number."""
    return check(forged(*seeds(), number))


def check(data: bytes) -> str | None:
    """What is wrong with what comes of a file."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        program = file.load(data)
        size = sum(len(line) + 1 for line in program_lines(program))
    except DelegateError:
        return _memory(before, data)
    if size > 200 * len(data) + 10000:
        return f"{len(data)} bytes become a text of {size}"
    if found := _memory(before, data):
        return found
    signal.setitimer(signal.ITIMER_PROF, _RUN_SECONDS)
    try:
        given = [_results(program, fill) for fill in (0x5A, 0xA5)]
    except Slow:
        return None  # Python stopped it, as it would for the user
    pairs = zip(*given, strict=False)  # errors of memory come and go
    if any(first != second and isinstance(first, bytes) and isinstance(second, bytes) for first, second in pairs):
        return "its results depend on what memory held before"
    return None


def _memory(before: int, data: bytes) -> str | None:
    """ru_maxrss only grows: what this file added to it."""
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    return f"{len(data)} bytes take {grown >> 20} MiB" if grown > _MEMORY + 10 * len(data) else None


def _filled(byte: int) -> Platform:
    def give(size: int) -> Any:
        made = allocate(size)
        if size < 1 << 24:
            made.fill(byte)
        return made

    return Platform(allocate=give)


def _results(program: Program, fill: int) -> list[Any]:
    """What each method gives, as bytes, or the class of its error."""
    made: list[Any] = []
    TABLE.seed(0)  # dropout of a file is no difference
    try:
        loaded = LoadedProgram(program, _registry(), ["portable"], fallback="allow", platform=_filled(fill))
    except DelegateError as error:
        return [type(error)]
    for name in loaded.methods:
        method = loaded.method(name)
        try:
            if _elements(method.definition) > _LARGEST_INPUTS:
                continue
            given = leaves(method.inputs, random_inputs(method.definition))
        except (DelegateError, ArithmeticError, ValueError, LookupError, MemoryError):
            continue  # the command line's own matter
        for _ in range(2):  # a state has changed by then
            try:
                results = method.run([np.array(g) if isinstance(g, np.ndarray) else g for g in given])
            except DelegateError as error:
                made.append(type(error))
            else:
                made += [r.tobytes() if isinstance(r, np.ndarray) and r.size < 1 << 20 else type(r) for r in results]
    return made


def _elements(method: MethodDefinition) -> int:
    sizes = {i: max(s.minimum, min(2, 2 if s.maximum is None else s.maximum)) for i, s in enumerate(method.symbols)}
    shapes = [method.values[i.value].shape for i in method.inputs if i.value >= 0]
    return sum(int(np.prod([float(evaluate(d, sizes)) for d in shape])) for shape in shapes)


def findings(numbers: Iterator[int], until: float = float("inf")) -> Iterator[Finding]:
    """What is found among the forged files of these numbers, as it is found."""
    seeds()
    _registry().kernels.tables(["portable"])  # imported once, not by every child
    yield from run_cases(case, numbers, seconds=SECONDS, address_space=4 << 30, until=until)


def main() -> None:
    """Forge for some minutes, and print what is found; exit code 1 where something is."""
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    first = int(sys.argv[2]) if len(sys.argv) > 2 else int(time.time()) * 1000
    found: Counter[str] = Counter()
    start = time.monotonic()
    numbers = itertools.count(first)
    for finding in findings(numbers, start + 60 * minutes):
        if finding.what not in found:
            print(finding.case, finding.what[:500], flush=True)
        found[finding.what] += 1
    print(f"{sum(found.values())} findings, {len(found)} different, among {next(numbers) - first} forged files")
    raise SystemExit(bool(found))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
