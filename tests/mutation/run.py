"""Break product code on purpose, one line at a time, and report which breaks the tests notice.

    python -m tests.mutation.run [--only N ...]        or `make mutation`

Each mutation of `tests.mutation.table` is applied to a temporary copy of the tree, never to the tree itself. Its tests
run in the copy. A mutation is caught if one of its tests fails, and if the same test passes in the unbroken copy.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutation.table import MUTATIONS, Mutation

ROOT = Path(__file__).parents[2]
REQUIRED = 57  # mutations that are to be caught; the rest may be equivalent on some machines
_SECONDS = 300.0  # per mutation, then its tests are stopped and it counts as survived
_PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=no", "-m", "slow or not slow")
_FAILED, _NONE = 1, 5  # exit statuses of pytest: tests ran and some failed; no test ran


@dataclass(frozen=True)
class Outcome:
    """Result of one mutation.

    Args:
        number: row of the table, from 1.
        failed: the test that failed, empty if none did.
        seconds: wall time of the tests.
    """

    number: int
    failed: str
    seconds: float


def copy_tree(folder: Path) -> None:
    """Copy all files that git tracks or would track into a folder."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        source, target = ROOT / name, folder / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def try_mutation(folder: Path, number: int, mutation: Mutation) -> Outcome:
    """Apply a mutation to the copy, run its tests, and undo it."""
    path = folder / mutation.file
    whole = path.read_text()
    _write(path, mutation.applied(whole))
    start = time.perf_counter()
    try:
        status, output = _run_tests(folder, ["-x", *mutation.tests])
    finally:
        _write(path, whole)
    lines = [line.removeprefix("FAILED ") for line in output.splitlines() if line.startswith("FAILED ")]
    failed = lines[0].partition(" - ")[0] if status == _FAILED and lines else ""
    return Outcome(number, failed, time.perf_counter() - start)


def unreliable(folder: Path, outcomes: Sequence[Outcome]) -> str:
    """Run the tests that failed once more, without any mutation; return the output if one fails again, else ""."""
    failed = sorted({outcome.failed for outcome in outcomes if outcome.failed})
    status, output = _run_tests(folder, failed) if failed else (0, "")
    return output if status else ""


def _write(path: Path, text: str) -> None:
    """Write a module; its bytecode goes too, because Python compares times in whole seconds."""
    path.write_text(text)
    Path(importlib.util.cache_from_source(path)).unlink(missing_ok=True)


def _run_tests(folder: Path, args: Sequence[str]) -> tuple[int, str]:
    """Run pytest in the copy, and return its exit status and output. Subprocesses of tests import the copy too."""
    path = os.pathsep.join(map(str, (folder, *folder.glob("plugins/*"))))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [*_PYTEST, *args],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return -1, "timed out"
    if done.returncode == _NONE:
        raise SystemExit(f"no test ran: {' '.join(args)}\n{done.stdout}")
    return done.returncode, done.stdout


def main() -> int:
    """Run the mutations, print a table, and return the exit status: 1 if too few are caught."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=int, nargs="+", metavar="N", help="rows of the table, from 1")
    only: Sequence[int] = parser.parse_args().only or range(1, len(MUTATIONS) + 1)
    with tempfile.TemporaryDirectory(prefix="mutation-") as name:
        folder = Path(name)
        copy_tree(folder)
        outcomes = []
        for number in only:
            mutation = MUTATIONS[number - 1]
            outcome = try_mutation(folder, number, mutation)
            outcomes.append(outcome)
            verdict = "caught  " if outcome.failed else "SURVIVED"
            line = f"{number:3} {verdict} {outcome.seconds:6.1f} s  {mutation.file}: {mutation.breaks}"
            print(f"{line}  [{outcome.failed}]" if outcome.failed else line, flush=True)
        problem = unreliable(folder, outcomes)
    caught = sum(bool(outcome.failed) for outcome in outcomes)
    print(f"{caught} of {len(outcomes)} mutations are caught")
    if problem:
        print(f"tests fail without a mutation too:\n{problem}")
    return int(bool(problem) or caught < min(len(outcomes), REQUIRED))


if __name__ == "__main__":
    sys.exit(main())
