"""Lowering with a cache: the same is compiled once, anything else anew, and no fault of the cache is an error."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim, ExportedProgram
from typer.testing import CliRunner

import delegate
from delegate.cache.runtime import environment
from delegate.cli.app import app
from delegate.registry import default_registry
from tests.support.lowering import assert_runs, assert_same
from tests.support.plugins import Site
from tests.support.sampling import every, only

INFO = """
from delegate.backend.info import Availability, BackendInfo

INFO = BackendInfo("counter", "Counts", "counter_halves:Aot", "counter_halves:Runtime",
                   lambda: Availability(True, "", {"sdk": "1.0"}, ("CPU",)), "pip install sdk")
"""

# Writes a line for every region that it compiles; refuses what has a sine in it, after all.
HALVES = """
from pathlib import Path

from delegate.backend.aot import Backend, Options, PreprocessResult, RegionFailed, RegionRefused
from delegate.edge.node import op_name
from delegate.runtime.backend import BackendRuntime
from delegate.verdict import YES

LOG = Path(__file__).with_name("log")


class CounterOptions(Options):
    level: int = 0
    hidden: int = 0

    def __repr__(self):
        return "the same"


class Aot(Backend):
    name = "counter"
    Options = CounterOptions

    def check(self, node):
        return YES

    def preprocess(self, region):
        with LOG.open("a") as log:
            log.write(region.name + "\\n")
        refused = {n.name: "no" for n in region.calls if op_name(n) == "aten.sin.default"}
        if refused:
            raise RegionRefused(refused)
        if any(op_name(n) == "aten.cos.default" for n in region.calls):
            raise RegionFailed("the licence server is away")
        constants = sum(float(c.sum()) for c in region.constants.values())
        return PreprocessResult(
            repr(constants).encode(), {"a": [1, None, {"b": 2.5}]}, ("a note",), data=(b"data", b"")
        )


class Runtime(BackendRuntime):
    def init(self, blob, compile_specs):
        raise NotImplementedError
"""


class Net(nn.Module):
    def __init__(self, first: Callable[[torch.Tensor], torch.Tensor] = torch.relu, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.linear, self.first = nn.Linear(4, 4), first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.first(x)) * 2.0


def exported(first=torch.relu, *, seed: int = 0, rows: int = 3, dtype=torch.float32, batch=None) -> ExportedProgram:
    shapes = {"x": {0: batch}} if batch else None
    return torch.export.export(Net(first, seed).to(dtype), (torch.ones(rows, 4, dtype=dtype),), dynamic_shapes=shapes)


class Counter:
    """The plugin, and what it has compiled."""

    def __init__(self, site: Site) -> None:
        self.site, self.halves, self.info = site, HALVES, INFO
        site.distribution("counter-dist", "1.0", {"counter": "counter_plugin:INFO"})
        self.install()

    def install(self) -> None:
        """As a new process would find it."""
        for name, source in (("counter_plugin", self.info), ("counter_halves", self.halves)):
            file = self.site.root / f"{name}.py"
            if not file.exists() or file.read_text() != source:
                self.site.module(name, source)
            sys.modules.pop(name, None)
        default_registry.cache_clear()
        for digest in (environment.code_of, environment.files_of, environment.versions_of):
            digest.cache_clear()

    def compiled(self, program: ExportedProgram, **options: object) -> list[str]:
        """The regions that are compiled when this is lowered."""
        log = self.site.root / "log"
        log.write_text("")
        here = {"backends": [{"name": "counter", "isolate": "none"}]}  # a process for each test would be slow
        options.setdefault("config", here)
        delegate.to_backend(program, **options)
        return log.read_text().split()


@pytest.fixture
def counter(site: Site, folder: Path) -> Counter:
    return Counter(site)


def test_the_same_is_compiled_once(counter: Counter, folder: Path) -> None:
    first = delegate.to_backend(exported(), "counter")
    assert counter.compiled(exported()) == []
    again = delegate.to_backend(exported(), "counter")
    counter.install()
    assert counter.compiled(exported()) == []  # as in a new process, too
    for side in (first, again):
        side.save(folder / "program.dlg")
        side.data = (folder / "program.dlg").read_bytes()
    assert first.data == again.data
    assert counter.compiled(exported(), cache=False) == ["counter_0"]


OPTIONS = {"backends": [{"name": "counter", "options": {"level": 1}}]}

OTHERS = {
    "weights": {"seed": 1},
    "shapes": {"rows": 5},
    "dtypes": {"dtype": torch.float64},
    "an operator": {"first": torch.tanh},
    "a number": {"first": lambda x: x + 1},
    "another number": {"first": lambda x: x + 2},
    "dynamic sizes": {"batch": Dim("batch", max=64)},
    "another range": {"batch": Dim("batch", max=32)},
    "another example size": {"batch": Dim("batch", max=32), "rows": 5},
}


@pytest.mark.extended
def test_anything_else_is_compiled_anew(counter: Counter) -> None:
    for _ in range(2):
        compiled = [name for name, change in OTHERS.items() if counter.compiled(exported(**change))]
        assert compiled == list(OTHERS) * (_ == 0)
    assert counter.compiled(exported(), config=OPTIONS)
    assert counter.compiled(exported())
    hidden = {"backends": [{"name": "counter", "options": {"hidden": 1}}]}
    assert counter.compiled(exported(), config=hidden)
    assert not counter.compiled(exported(), config=OPTIONS)


@pytest.mark.parametrize(
    ("where", "old", "new"),
    [
        pytest.param("info", '"sdk": "1.0"', '"sdk": "1.1"', marks=pytest.mark.slow),
        pytest.param("info", '("CPU",)', '("NPU",)', marks=pytest.mark.slow),
        ("halves", "LOG = ", "OTHER_CODE = 1\nLOG = "),
        pytest.param(
            "halves",
            "    def check",
            "    def cache_key(self):\n        return 'driver 2'\n\n    def check",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_other_versions_compile_anew(counter: Counter, where: str, old: str, new: str) -> None:
    assert counter.compiled(exported())
    source = getattr(counter, where)
    setattr(counter, where, source.replace(old, new))
    assert getattr(counter, where) != source
    counter.install()
    assert counter.compiled(exported())
    assert not counter.compiled(exported())


@pytest.mark.parametrize("place", only(["kernels/add.c"], ["rules.json", "kernels/add.c", "other_package/__init__.py"]))
@pytest.mark.parametrize("in_place", every(2, [True, False]))
def test_any_file_of_the_distribution_counts(counter: Counter, tmp_path: Path, place: str, in_place: bool) -> None:
    """Data that the compiler reads, sources that it compiles, a package that its own imports."""
    metadata = counter.site.root / "counter_dist-1.0.dist-info"
    file = (tmp_path / "project" if in_place else counter.site.root) / place
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("1")
    if in_place:
        url = {"url": (tmp_path / "project").as_uri(), "dir_info": {"editable": True}}
        (metadata / "direct_url.json").write_text(json.dumps(url))
    else:
        (metadata / "RECORD").write_text(f"{place},,\n")
    counter.install()
    assert counter.compiled(exported())
    counter.install()
    assert not counter.compiled(exported())
    file.write_text("22")
    counter.install()
    assert counter.compiled(exported())
    (file.parent / "__pycache__").mkdir()
    (file.parent / "__pycache__" / "made.pyc").write_text("")
    counter.install()
    assert not counter.compiled(exported())


def test_a_distribution_of_too_many_files_is_not_kept(counter: Counter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_MAX_FILES", 1)
    (counter.site.root / "counter_dist-1.0.dist-info" / "RECORD").write_text("log,,\ncounter_plugin.py,,\n")
    counter.install()
    assert counter.compiled(exported())
    assert counter.compiled(exported())


DAMAGED = {
    "RECORD": (
        b"\n",
        b"counter_plugin.py,,many\n",
        b"a,b,c,d\n",
        b'"',
        b"a\0b,,\n",
        b"\xff,,\n",
        b"%s,,\n" % (b"a" * 300),
    ),
    "METADATA": (b"", b"\xff", b"Name: counter-dist", b"Version: 1.0"),
    "direct_url.json": (b"{", b"[]", b'{"url": 1, "dir_info": {"editable": true}}', b"\xff"),
}


@pytest.mark.parametrize(("file", "content"), [(file, c) for file, contents in DAMAGED.items() for c in contents])
def test_damaged_metadata_of_a_distribution(counter: Counter, file: str, content: bytes) -> None:
    """They never fail a lowering. What they do not tell is asked of the backend again."""
    (counter.site.root / "counter_dist-1.0.dist-info" / file).write_bytes(content)
    counter.install()
    assert counter.compiled(exported())
    counter.compiled(exported())


def test_a_partition_is_taken_where_another_program_holds_it(counter: Counter) -> None:
    assert counter.compiled(exported())
    assert not counter.compiled(exported(), config={"backends": ["counter"], "fallback": {"keep": True}})


def test_another_version_of_the_distribution_compiles_anew(counter: Counter) -> None:
    assert counter.compiled(exported())
    metadata = counter.site.root / "counter_dist-1.0.dist-info"
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: counter-dist\nVersion: 1.1\n")
    metadata.rename(counter.site.root / "counter_dist-1.1.dist-info")
    counter.install()
    assert counter.compiled(exported())


def test_a_backend_may_want_nothing_kept(counter: Counter, folder: Path) -> None:
    counter.halves = HALVES.replace("    def check", "    def cache_key(self):\n        return None\n\n    def check")
    counter.install()
    assert counter.compiled(exported())
    assert counter.compiled(exported())
    assert not (folder / "artifacts").exists()


def test_nonsense_from_cache_key_is_named(counter: Counter) -> None:
    counter.halves = HALVES.replace("    def check", "    def cache_key(self):\n        return 5\n\n    def check")
    counter.install()
    with pytest.raises(delegate.errors.BackendBroken, match=r"'counter' fails in cache_key: .*returns a int"):
        counter.compiled(exported())


def test_refusals_are_kept_and_faults_are_not(counter: Counter) -> None:
    assert counter.compiled(exported(torch.sin)) == ["counter_0", "counter_0"]  # with it, and without
    assert counter.compiled(exported(torch.sin)) == []
    first, again = (counter.compiled(exported(torch.cos)) for _ in range(2))
    assert len(first) > 2
    assert 1 <= len(again) < len(first)  # what failed is tried again


def test_an_altered_entry_is_compiled_anew(counter: Counter, folder: Path) -> None:
    counter.compiled(exported())
    for damage in (lambda data: data[: len(data) // 2], lambda data: data[:-1] + b"?"):
        for file in (folder / "artifacts").iterdir():
            file.write_bytes(damage(file.read_bytes()))
        assert counter.compiled(exported())
        assert not counter.compiled(exported())


@pytest.mark.parametrize(
    "how", every(2, [{"cache": False}, {"config": {"backends": ["counter"], "cache": {"enabled": False}}}])
)
def test_without_the_cache(counter: Counter, folder: Path, how: dict[str, object]) -> None:
    for _ in range(2):
        assert counter.compiled(exported(), **how)
    assert not (folder / "artifacts").exists()


def test_the_configuration_names_the_folder(counter: Counter, folder: Path, tmp_path: Path) -> None:
    config = {"backends": ["counter"], "cache": {"folder": str(tmp_path / "own")}}
    assert counter.compiled(exported(), config=config)
    assert not counter.compiled(exported(), config=config)
    assert not (folder / "artifacts").exists()
    assert list((tmp_path / "own" / "artifacts").iterdir())


def test_a_folder_that_cannot_be_written(
    counter: Counter, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder.write_text("no folder")
    with pytest.warns(RuntimeWarning, match="cannot be written"):
        assert counter.compiled(exported())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert counter.compiled(exported())


def test_a_real_backend(folder: Path) -> None:
    """XNNPACK's blob has its weights beside it."""
    x = torch.randn(3, 4)
    for _ in range(2):
        program = delegate.to_backend(exported(), "xnnpack")
        assert_runs(program, "xnnpack")
        assert_same(program(x), Net()(x))
        assert len(list((folder / "artifacts").iterdir())) == 2  # the partition and the program


KINDS = ("compiled partitions and programs", "placements and costs", "files of packed weights")


def test_the_commands(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    default_registry.cache_clear()
    torch.export.save(exported(), tmp_path / "m.pt2")

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.output
        return done.stdout.strip()

    lower = ("lower", "m.pt2", "-b", "xnnpack", "-o", "m.dlg")
    assert run("cache", "path") == str(folder)
    run(*lower, "--no-cache")
    shown = run("cache", "info").splitlines()  # the command asks plugins, and stores their answers
    assert shown[:4] == [str(folder), *(f"0 {kind}, 0.0 MiB" for kind in KINDS)]
    run(*lower)
    (folder / "choices").mkdir()
    (folder / "choices/of_before.kept").write_bytes(b"{}")
    assert json.loads(run("cache", "info", "--json"))["artifacts"]["entries"] == 2
    removed = ", ".join(f"{number} {kind}" for number, kind in zip((2, 1, 0), KINDS, strict=True))
    assert run("cache", "clear").startswith(f"removed {removed}, ")
    assert not [path for path in folder.rglob("*") if path.is_file()]
