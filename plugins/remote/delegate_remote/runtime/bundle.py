"""A bundle: programs and their sample calls in one file, written here and measured on another machine. Without torch.

It is an uncompressed zip archive with `bundle.json`, and for each method a folder with the programs, the arguments
of the calls, and torch's results. It may come from a stranger, so reading it checks everything.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from delegate.common.field_checks import amount, count, finite, flag, items, mapping, require_format, text
from delegate.common.files import open_to_read, replacing, require_file
from delegate.errors import ProgramError
from delegate.placement.runtime.accuracy_check import Array
from delegate.placement.runtime.trials import Trial, save_leaves
from delegate.placement.runtime.worker import leaves
from delegate.plugins import one_line
from delegate.program import file as program_file
from delegate.program.model import Program
from delegate.report.measured import UNITS

FORMAT = 3  # 1 had only single-backend plans, 2 did not compare states
_ABOUT = "bundle.json"
_MOST_ABOUT = 2**20  # bytes of it
_AGAIN = "write it again: `delegate lower --measure --bundle FILE`"


@dataclass(frozen=True, slots=True)
class Task:
    """A method to measure.

    Args:
        method: its name.
        objective: a key of `delegate.report.measured.UNITS`.
        budget: seconds.
        bound: the least SQNR in dB; None: the bound for the program's own precision.
        trials: the compiled plans, of which those that are not watched may be chosen; plans of one program share the
            `Program` object.
        calls: the flat arguments of calls, in the form of the runtime; the first one is measured.
        expected: torch's results of each call, bfloat16 as float32; None if results cannot be compared.
    """

    method: str
    objective: str
    budget: float
    bound: float | None
    trials: Sequence[Trial]
    calls: Sequence[Sequence[Any]]
    expected: Sequence[Sequence[Array]] | None


def digest(program: Program) -> str:
    """Return the digest of a program's file."""
    return _digest_and_copy(program, None)


def describe_arguments(call: Sequence[Any]) -> list[str]:
    """Return a short description of each argument of a call: dtype and sizes, or the value."""
    return [f"{leaf.dtype}{list(leaf.shape)}" if isinstance(leaf, np.ndarray) else repr(leaf) for leaf in call]


def write(tasks: Sequence[Task], path: str | os.PathLike[str]) -> None:
    """Write a bundle atomically; raises ProgramError if it cannot be written."""
    require_file(path, "the bundle", ProgramError)
    try:
        with replacing(os.path.realpath(path)) as file, zipfile.ZipFile(file, "w") as archive:
            methods = []
            for number, task in enumerate(tasks):
                members = {id(trial.program): trial.program for trial in task.trials}
                digests = [
                    _write_program(archive, f"{number}/{i}.dlg", program) for i, program in enumerate(members.values())
                ]
                methods.append(_about(task, dict(zip(members, enumerate(digests), strict=True))))
                for kind, arrays_of_calls in (("call", task.calls), ("expected", task.expected or ())):
                    for place, arrays in enumerate(arrays_of_calls):
                        buffer = io.BytesIO()
                        save_leaves(buffer, arrays)
                        archive.writestr(zipfile.ZipInfo(f"{number}/{kind}{place}.npz"), buffer.getvalue())
            archive.writestr(zipfile.ZipInfo(_ABOUT), json.dumps({"format": FORMAT, "tasks": methods}, indent=1))
    except (OSError, ValueError) as error:
        what = f"the bundle cannot be written: {getattr(error, 'strerror', None) or error}"
        remedy = "name a file that you may write, in an existing folder, on a disk with free space"
        raise ProgramError(what, where=str(path), remedy=remedy) from error


def read(path: str | os.PathLike[str], folder: Path) -> list[Task]:
    """Read and check a bundle without running, unpickling or importing anything of it.

    Args:
        path: Where the file is.
        folder: A folder for the unpacked members, under new names, from which programs are mapped.

    Raises:
        ProgramError: it is not a valid bundle.
    """
    try:
        with open_to_read(path) as stored, zipfile.ZipFile(stored) as archive:
            _require_stored(archive)
            document = archive.read(_ABOUT) if archive.getinfo(_ABOUT).file_size <= _MOST_ABOUT else b""
            about = json.loads(document)
            require_format(about, FORMAT)
            tasks = [_read(archive, number, data, folder) for number, data in enumerate(items(about, "tasks"))]
    except ProgramError as error:
        where = ", ".join(part for part in (str(path), error.where) if part)
        raise ProgramError(error.what, where=where, remedy=_AGAIN) from error
    except OSError as error:
        raise ProgramError(f"the bundle cannot be read: {error}", where=str(path), remedy=_AGAIN) from error
    except Exception as error:  # of zipfile, JSON and NumPy, which raise what they like: zlib.error, TokenError
        what = f"this is not a valid bundle, {one_line(error)}"
        raise ProgramError(what, where=str(path), remedy=_AGAIN) from error
    if not tasks or len({task.method for task in tasks}) < len(tasks):
        raise ProgramError("this bundle has no methods, or one of them twice", where=str(path), remedy=_AGAIN)
    return tasks


def _write_program(archive: zipfile.ZipFile, member: str, program: Program) -> str:
    """Write a program, and return its digest."""
    with archive.open(zipfile.ZipInfo(member), "w", force_zip64=True) as written:
        return _digest_and_copy(program, written)


def _digest_and_copy(program: Program, written: IO[bytes] | None) -> str:
    """Return the digest of a program's bytes, and write them if there is a stream."""
    digest = hashlib.sha256()
    for piece in program_file.assemble(program):
        digest.update(piece)
        if written is not None:
            written.write(piece)
    return digest.hexdigest()


def _about(task: Task, members: Mapping[int, tuple[int, str]]) -> dict[str, Any]:
    """Return the description of a task. `members` maps the id of each program to its number and digest."""
    programs = [
        {
            "name": trial.name,
            "file": members[id(trial.program)][0],
            "digest": members[id(trial.program)][1],
            "threads": {backend: int(options["threads"]) for backend, options in trial.options.items()},
            "is_watched": trial.is_watched,
        }
        for trial in task.trials
    ]
    return {
        "method": task.method,
        "objective": task.objective,
        "budget": task.budget,
        "bound": task.bound,
        "programs": programs,
        "calls": len(task.calls),
        "is_compared": task.expected is not None,
    }


def _read(archive: zipfile.ZipFile, number: int, about: Mapping[str, Any], folder: Path) -> Task:
    method, call_count, programs_of = text(about, "method"), count(about, "calls"), items(about, "programs")
    if about["objective"] not in UNITS:
        raise ValueError(f"{about['objective']!r} is not an objective")
    if not call_count or not programs_of:
        raise ValueError(f"method {method!r} has nothing to measure")
    place = folder / str(number)
    place.mkdir()
    files = sorted({count(entry, "file") for entry in programs_of})
    programs = {i: _program(archive, f"{number}/{i}.dlg", folder) for i in files}
    trials = [_trial(about, entry, *programs[entry["file"]]) for entry in programs_of]
    if len({trial.name for trial in trials}) < len(trials):
        raise ValueError(f"method {method!r} has two programs of the same name")
    for trial in trials:
        if method not in {m.name for m in trial.program.methods}:
            raise ValueError(f"the program of {trial.name!r} has no method {method!r}")
    calls = [_leaves(archive, f"{number}/call{i}.npz", folder) for i in range(call_count)]
    expected = None
    if flag(about, "is_compared"):
        expected = [_leaves(archive, f"{number}/expected{i}.npz", folder) for i in range(call_count)]
        if any(not isinstance(array, np.ndarray) or array.dtype.kind not in "biufc" for e in expected for array in e):
            raise ValueError("the expected results are not numbers")
    bound = None if about["bound"] is None else finite(about, "bound")
    budget = amount(about, "budget")
    if not budget:
        raise ValueError("a budget should be greater than 0")
    return Task(method, about["objective"], budget, bound, trials, calls, expected)


def _program(archive: zipfile.ZipFile, member: str, folder: Path) -> tuple[Program, str]:
    """Return a program, and the digest of its file."""
    path = _unpack(archive, member, folder)
    with path.open("rb") as stored:
        known = hashlib.file_digest(stored, "sha256").hexdigest()
    return program_file.load(path), known


def _trial(task: Mapping[str, Any], about: Mapping[str, Any], program: Program, known: str) -> Trial:
    """Return the trial of a plan.

    Args:
        task: the description of the task.
        about: the description of the plan.
        program, known: the program, and the digest of its file.
    """
    if known != about["digest"]:
        raise ValueError(f"the file of {about['name']!r} is not the program that {_ABOUT} describes")
    counts = mapping(about, "threads")
    options = {backend: {"threads": count(counts, backend)} for backend in counts}
    if not all(values["threads"] for values in options.values()):
        raise ValueError("numbers of threads should be positive")
    name, is_watched = text(about, "name"), flag(about, "is_watched")
    return Trial(name, program, task["method"], task["objective"], options, is_watched)


def _leaves(archive: zipfile.ZipFile, member: str, folder: Path) -> list[Any]:
    path = _unpack(archive, member, folder)
    with zipfile.ZipFile(path) as arrays:
        _require_stored(arrays)
    return leaves(path)


def _unpack(archive: zipfile.ZipFile, member: str, folder: Path) -> Path:
    path = folder / member
    with archive.open(member) as source, path.open("wb") as target:
        shutil.copyfileobj(source, target)
    return path


def _require_stored(archive: zipfile.ZipFile) -> None:
    """Raise ValueError if members are compressed, so that the unpacked data is never larger than the file."""
    members = archive.infolist()
    if any(m.compress_type != zipfile.ZIP_STORED or m.file_size != m.compress_size for m in members):
        raise ValueError("its members are compressed")
    if archive.fp is None or sum(m.file_size for m in members) > archive.fp.seek(0, os.SEEK_END):
        raise ValueError("its members are larger than the file")
