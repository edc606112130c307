"""Job: an input, a program, and a folder of output files; and the manifest by which a job is continued.

Each part of the input becomes one output file, written under a temporary name and renamed. So a file with the name of a
part is complete. Its metadata has the identity of the job, which the checksums of input and program are a part of.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet

import delegate
from delegate.common.files import open_to_read, read_bytes, require_folder, require_regular, write_text
from delegate.errors import ConfigError, InputError
from delegate_ray.runtime.inputs import IMAGE, PATH, parts_of, scan
from delegate_ray.runtime.parts import InputFile, Part
from delegate_ray.runtime.predictor import ERROR, OnBad
from delegate_ray.runtime.rows import RowRunner, repeated
from delegate_ray.runtime.threads import load

MANIFEST = "manifest.json"
ROW = "row"  # the column of row numbers
_OPTIONS = {  # a setting that the output depends on -> its option
    "columns": "--column",
    "results": "--result",
    "keep": "--keep",
    "method": "--method",
    "on_bad": "--bad-rows",
    "rows": "--rows",
}
_JOB, _BAD = b"delegate.job", b"delegate.bad"  # metadata of an output file


class Finished(NamedTuple):
    """A part whose output file is complete: its number, the rows of the input, and the bad rows among them."""

    number: int
    rows: int
    bad: int


@dataclass(frozen=True)
class Settings:
    """The choices of a job.

    Args:
        columns, results, keep, method, on_bad, batch, threads: see `Predictor`.
        rows: the rows of a part, so of an output file.
        load: other arguments of `delegate.load`.
    """

    columns: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    results: Mapping[str, str] | None = None
    keep: tuple[str, ...] = ()
    method: str | None = None
    on_bad: OnBad = "raise"
    batch: int | None = None
    threads: int | None = None
    rows: int = 10_000
    load: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """A job that any process with these files can work on.

    Args:
        program: the path of the program file.
        program_digest: its checksum.
        files: the input.
        parts: The parts of the input.
        folder: The folder with the output files.
        settings: the choices.
        identity: a checksum of all that the output depends on.
        version: The version of delegate with which the job was created.
    """

    program: str
    program_digest: str
    files: tuple[InputFile, ...]
    parts: tuple[Part, ...]
    folder: str
    settings: Settings
    identity: str
    version: str

    @property
    def rows(self) -> int:
        """The rows of the input."""
        return sum(file.contents.rows for file in self.files)

    def output(self, part: Part) -> str:
        """Return the path of the output file of a part."""
        return os.path.join(self.folder, f"part-{part.number:06}.parquet")

    def runner(self, *, is_shared: bool = False) -> RowRunner:
        """Load the program, and return the runner of its rows; raises ConfigError if it does not fit the input.

        Args:
            is_shared: processes of this machine share packed weights.

        Raises:
            ConfigError: the program does not fit the input, or it is not the program of the job.
        """
        if digest_of(self.program) != self.program_digest:
            what = "the program is not the one with which the job was created"
            raise ConfigError(what, where=self.program, remedy="give each node the same file at this path")
        s, where = self.settings, self.files[self.parts[0].file].path
        full = [file.contents for file in self.files if file.contents.rows]
        full = full or [self.files[self.parts[0].file].contents]
        known = tuple(dict.fromkeys(name for contents in full for name in contents.columns))
        columns = s.columns or (known[0] if len(known) == 1 else {})
        program = load(self.program, s.threads, s.load, is_shared=is_shared)
        runner = RowRunner(program, self.program, columns, s.results, s.method, s.batch)
        is_empty_text = not known and not self.rows  # such a file has no columns
        if not is_empty_text:
            runner.require_columns(known, where)
        if missing := next((name for name in s.keep if name not in known and not is_empty_text), None):
            remedy = f"the columns are {', '.join(known)}"
            raise ConfigError(f"there is no column {missing!r} to keep", where=where, remedy=remedy)
        if IMAGE in s.keep and os.path.isdir(where):
            raise ConfigError("images cannot be kept", where=where, remedy="keep the column `path`")
        for file in self.files:
            columns_of = file.contents.columns
            if twice := next((name for name in (*runner.columns, *s.keep) if columns_of.count(name) > 1), None):
                raise ConfigError(f"there are two columns {twice!r}", where=file.path, remedy="rename one of them")
        written = [ROW, *s.keep, *(o.column for o in runner.outputs), *([ERROR] if s.on_bad == "column" else [])]
        if twice := repeated(written):
            what = f"an output file would have two columns {twice!r}"
            raise ConfigError(what, where=self.folder, remedy="rename the output: --result NAME=COLUMN")
        return runner

    def metadata(self, bad: int) -> dict[bytes, bytes]:
        """Return the metadata of an output file with this number of bad rows."""
        return {_JOB: self.identity.encode(), _BAD: str(bad).encode()}

    def finished(self) -> list[Finished]:
        """Return the parts whose output files are complete; raises InputError for a file of another job."""
        found = []
        for part in self.parts:
            path = self.output(part)
            if not os.path.exists(path):
                continue
            try:
                require_regular(path)
                metadata = pyarrow.parquet.read_metadata(path).metadata or {}
                bad = int(metadata.get(_BAD, b""))
            except Exception:  # a file of something else, for which readers raise all kinds
                metadata, bad = {}, 0
            if metadata.get(_JOB) != self.identity.encode():
                remedy = "remove the file, or choose another output folder"
                raise InputError("this is no output file of the job", where=path, remedy=remedy)
            found.append(Finished(part.number, part.rows, bad))
        return found

    def finish(self) -> None:
        """Check the input once more, and record in the manifest that all parts are complete.

        Raises:
            InputError: the input has changed during the job, or another job has written into the folder.
        """
        for file in self.files:
            file.require_same_bytes()
        if len(self.finished()) != len(self.parts):
            what = "output files of the job have been removed"
            raise InputError(what, where=self.folder, remedy="start the same command again")
        self.require_manifest()
        write_manifest(self, is_finished=True)

    def has_manifest(self) -> bool:
        """Return True if the output folder, as this process sees it, has the manifest of this job."""
        try:
            return self.identity.encode() in read_bytes(Path(self.folder, MANIFEST))
        except (OSError, ValueError):
            return False

    def require_manifest(self) -> None:
        """Raise InputError if another command has begun another job in the output folder."""
        if not self.has_manifest():
            what = "the output folder has no longer the manifest of this job, so another command may write into it"
            raise InputError(what, where=self.folder, remedy="choose another output folder for one of the jobs")


def create(program: Path, source: Path, folder: Path, settings: Settings) -> Job:
    """Return the job of an output folder: a new one, or the one that its manifest describes.

    Raises:
        InputError: the input cannot be read, or the folder belongs to a job with another input, program or choice.
        DelegateError: the program cannot be read, or the folder cannot be written.
    """
    require_folder(folder, "the outputs", InputError)
    program_digest = digest_of(str(program))
    files = tuple(scan(source, settings.rows))
    if files[0].path == str(source.absolute()) and folder.absolute().is_relative_to(source.absolute()):
        what = "the output folder is in the folder of images, which would change it"
        raise InputError(what, where=str(folder), remedy="choose an output folder outside of the input")
    described = _describe(files, program_digest, settings)
    text = json.dumps(described, sort_keys=True)
    job = Job(
        program=str(program.absolute()),
        program_digest=program_digest,
        files=files,
        parts=tuple(parts_of(files, settings.rows)),
        folder=str(folder.absolute()),
        settings=settings,
        identity=hashlib.sha256(text.encode()).hexdigest(),
        version=delegate.__version__,
    )
    names = {name for name in os.listdir(folder) if not name.startswith(".delegate-")} if folder.exists() else set()
    if names > {MANIFEST}:  # a manifest without output files binds to nothing
        _require_same(described, folder / MANIFEST)
    elif names - {MANIFEST}:
        what = "the output folder has files, and no manifest of a job"
        raise InputError(what, where=str(folder), remedy="choose a new or empty folder")
    return job


def write_manifest(job: Job, *, is_finished: bool = False) -> None:
    """Write the manifest into the output folder, which is created if necessary."""
    os.makedirs(job.folder, exist_ok=True)
    described = _describe(job.files, job.program_digest, job.settings)
    data = {**described, "identity": job.identity, "finished": is_finished}
    write_text(os.path.join(job.folder, MANIFEST), json.dumps(data, indent=2) + "\n", "the manifest")


def digest_of(path: str) -> str:
    """Return the checksum of a program file; raises ProgramError if it cannot be read."""
    try:
        with open_to_read(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        from delegate.errors import ProgramError

        what = f"the program cannot be read: {error.strerror}"
        raise ProgramError(what, where=path, remedy="name a .dlg file") from error


def _describe(files: tuple[InputFile, ...], program_digest: str, settings: Settings) -> dict[str, Any]:
    """Return all that the output depends on, as JSON values. Other sizes of batches only round differently."""
    has_paths = PATH in settings.keep and any(os.path.isdir(f.path) for f in files)  # of images, in the output
    named = os.fspath if has_paths else os.path.basename
    return {
        "format": 1,
        "program": program_digest,
        "input": {named(f.path): [f.contents.digest, f.contents.rows] for f in files},
        "settings": {
            "columns": {name: c if isinstance(c, str) else list(c) for name, c in settings.columns.items()},
            "results": settings.results and dict(settings.results),
            "keep": list(settings.keep),
            "method": settings.method,
            "on_bad": settings.on_bad,
            "rows": settings.rows,
        },
    }


def _require_same(described: Mapping[str, Any], manifest: Path) -> None:
    """Raise InputError unless a manifest describes the same job."""
    try:
        old = json.loads(read_bytes(manifest))
        old_settings = dict(old["settings"])
        parts = [(old["program"], old["input"], old["format"]), (described["program"], described["input"], 1)]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        remedy = "choose another output folder"
        raise InputError("this is no manifest of a job", where=str(manifest), remedy=remedy) from error
    names = ("program", "input", "format of the manifest")
    changed = [name for name, before, now in zip(names, *parts, strict=True) if before != now]
    now = described["settings"]
    changed += [f"option {option}" for name, option in _OPTIONS.items() if old_settings.get(name) != now[name]]
    if changed:
        what = f"the output folder belongs to a job with another {' and another '.join(changed)}"
        remedy = "choose another output folder, or restore what has changed"
        raise InputError(what, where=str(manifest), remedy=remedy)
