"""Plugins that do wrong, installed by pip as any package: each is told by name, and hurts nobody else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import delegate
from delegate.errors import BackendBroken, BackendFailed, BackendUnavailable, ConfigError, InputError
from delegate.partitioner.partitioner import CapabilityPartitioner
from delegate.plugins import PluginState
from delegate.processes import probing
from delegate.program.file import serialize
from delegate.registry import Registry, default_registry
from tests.support.lowering import assert_same
from tests.support.packages import HERE, install
from tests.support.sampling import every, only

OWN = ("cuda", "dsp", "gpu", "webgpu", "openvino", "onnxruntime")  # of no matter here, and slow to ask
HANGS = ("import_hang", "probe_hang")
# `python -m delegate` with less patience: these tests wait for plugins that hang.
COMMAND = (
    "from delegate.processes import probing; probing.LIMITS['probe'] = 4.0; from delegate.cli.main import main; main()"
)
BROKEN = {
    "import_crash": "was killed by SIGSEGV while probed",
    "import_hang": "gave no answer in 4 s while probed",
    "import_leaves": "ended with exit code 0 while probed",
    "nothing": "No module named 'broken_plugins.no_such_module'",
    "probe_error": "fails when it is probed: RuntimeError: bang in two lines",
    "probe_crash": "was killed by SIGSEGV while probed",
    "probe_hang": "gave no answer in 4 s while probed",
    "twice": "several distributions provide the backend 'twice': broken-plugins 1.0 and broken-twin 2.0",
}
OTHERS = {"future": "incompatible", "absent": "unavailable", "healthy": "ok", "xnnpack": "ok"}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("packages") / "site", HERE / "broken", HERE / "twin")


@pytest.fixture
def site(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The packages on the path; those that never answer are blocked."""
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.setenv("DELEGATE_BLOCK_PLUGINS", ",".join((*OWN, *HANGS)))
    default_registry.cache_clear()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "broken-twin 2.0 provides the")
        yield installed
    default_registry.cache_clear()


def command(installed: Path, cache: Path, *args: str) -> Any:
    """What a command prints as JSON, in an environment that has the packages."""
    root = Path(delegate.__file__).parents[1]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{installed}{os.pathsep}{root}",
        "DELEGATE_CACHE": str(cache),
        "DELEGATE_BLOCK_PLUGINS": ",".join(OWN),
    }
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *args], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.extended
def test_each_is_listed_with_what_is_wrong(installed: Path, tmp_path: Path) -> None:
    listed = command(installed, tmp_path, "backends", "--json")
    states = {b["name"]: b for b in listed["backends"]}
    for name, words in BROKEN.items():
        assert states[name]["state"] == "broken", name
        assert words in states[name]["detail"], name
    for name, state in OTHERS.items():
        assert states[name]["state"] == state, name
    assert 'File "' in states["probe_crash"]["traceback"], "where it crashed"
    assert "waiting for a licence server" in states["probe_hang"]["traceback"], "what it printed"
    assert "in hang" in states["probe_hang"]["traceback"], "where it hangs"
    assert "run `delegate backends --refresh` to probe it again" in states["probe_hang"]["remedy"]
    (refused,) = listed["refused"]
    assert (refused["name"], refused["owner"]) == ("xnnpack", "broken-twin")
    assert "which is built into delegate and cannot be replaced: uninstall broken-twin" in refused["detail"]
    # Answers are kept: nothing waits again. Asked anew, a plugin says what is so now.
    kept = sorted((tmp_path / "plugins").iterdir())
    assert command(installed, tmp_path, "backends", "--json") == listed
    assert sorted((tmp_path / "plugins").iterdir()) == kept


def test_an_answer_is_kept_until_what_it_depends_on_changes(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELEGATE_CACHE", str(tmp_path))

    def asked(registry: Registry) -> bool:
        assert registry.state("healthy").state is PluginState.OK
        return not registry.state("healthy").kept

    assert asked(Registry())
    assert not asked(Registry())
    assert asked(Registry(refresh=True))
    monkeypatch.setenv("ACME_DEVICES", "0")
    assert asked(Registry())
    assert not asked(Registry())
    os.utime(site / "broken_plugins" / "infos.py")
    assert asked(Registry())
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "a_library-1.0.dist-info").mkdir()
    assert asked(Registry())
    for file in (tmp_path / "plugins").iterdir():
        file.write_text("{")
    assert asked(Registry())


@pytest.mark.parametrize("name", ["absent", "absent:second"])
def test_one_that_was_absent_is_asked_again_when_it_is_named(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("DELEGATE_CACHE", str(tmp_path))
    assert Registry().state("absent").state is PluginState.UNAVAILABLE
    registry = Registry()
    assert registry.state("absent").kept
    with pytest.raises(BackendUnavailable, match="no device is here"):
        registry.aot(name)
    assert not registry.state("absent").kept


@pytest.mark.parametrize(
    ("name", "words"),
    [("aot_crash", "was killed by SIGSEGV while its AOT part was imported"), ("aot_hang", "gave no answer in 2 s")],
)
def test_a_half_that_crashes_or_hangs(site: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: str) -> None:
    monkeypatch.setitem(probing.LIMITS, "aot", 2.0)
    with pytest.raises(BackendBroken, match=words):
        Registry().check_part(name, "aot")
    with pytest.raises(ConfigError, match=words):
        delegate.to_backend(exported(), config={"backends": [{"name": name, "isolate": "compile"}]})


class Net(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.relu((a + b) * b) + a


ARGS = (torch.arange(6.0).reshape(2, 3) - 3, torch.full((2, 3), 0.5))


def exported() -> torch.export.ExportedProgram:
    return torch.export.export(Net(), ARGS)


def assert_right(program: Any) -> None:
    assert_same(program(*(a.numpy() for a in ARGS)), Net()(*ARGS))


# What of the net each runs after all, and the reason that stands in the report.
COMPILES: dict[str, tuple[set[str], str]] = {
    "healthy": ({"add", "mul", "add_1"}, ""),
    "check_crash": (set(), "it was killed by SIGSEGV when it was queried about it"),
    "check_hang": (set(), "it gave no answer in 3 s when it was queried about it"),
    "claims_crash": (set(), "it was killed by SIGSEGV when it was queried about it"),
    "preprocess_crash": (set(), "its compiler was killed by SIGSEGV"),
    "preprocess_crash_at_mul": ({"add", "add_1"}, "its compiler was killed by SIGSEGV"),
    "preprocess_hang": (set(), "its compiler gave no answer in 3 s"),
    "preprocess_leaves": (set(), "its compiler ended with exit code 0"),
}


@pytest.mark.parametrize("name", only(["preprocess_crash_at_mul"], COMPILES))
def test_a_compile_in_a_process_of_its_own(site: Path, name: str) -> None:
    runs, words = COMPILES[name]
    limit = 3.0 if "hang" in name else 60.0
    config = {"backends": [{"name": name, "isolate": "compile", "time_limit": limit}, "healthy"]}
    if name == "healthy":
        config["backends"].pop()
    program = delegate.to_backend(exported(), config=config)
    assert {n for p in program.report.partitions if p.backend == name for n in p.nodes} == runs
    assert words in str(program.report)
    assert_right(delegate.load(serialize(program.program)))


@pytest.mark.slow
def test_what_took_too_long_is_tried_again(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compile cache keeps what a library refuses, and not what may have been of the moment."""
    monkeypatch.setenv("DELEGATE_CACHE", str(tmp_path))
    program = delegate.to_backend(exported(), CapabilityPartitioner("preprocess_hang", isolate="compile", time_limit=3))
    assert not program.report.partitions
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and "plugins" not in path.parts]
    delegate.to_backend(exported(), "healthy")
    assert [path for path in (tmp_path / "artifacts").rglob("*") if path.is_file()]


ASKED: dict[str, tuple[type[Exception], str]] = {
    "made_error": (BackendBroken, "fails when it is created: RuntimeError: bang in two lines"),
    "made_crash": (BackendBroken, "was killed by SIGSEGV when it was created"),
    "check_error": (delegate.errors.PartitionError, "failed with RuntimeError: bang in two lines"),
    "check_nonsense": (delegate.errors.PartitionError, "check_nonsense returned {'nonsense'"),
    "preprocess_error": (delegate.errors.LoweringError, "RuntimeError: bang in two lines"),
    "preprocess_nonsense": (delegate.errors.LoweringError, "to a dict, not a PreprocessResult"),
}


@pytest.mark.extended
@pytest.mark.parametrize("name", every(3, ASKED))
def test_faults_of_one_that_is_asked_for_are_errors_there_too(site: Path, name: str) -> None:
    kind, words = ASKED[name]
    with pytest.raises(kind) as caught:
        delegate.to_backend(exported(), config={"backends": [{"name": name, "isolate": "compile"}]})
    assert words in str(caught.value)


AT_RUN_TIME = {
    "init_error": "init_error failed at load: RuntimeError: bang in two lines",
    "init_nonsense": "init_nonsense failed at load: BackendFailed: its init() returned a dict, not a Delegate",
    "prepare_error": "prepare_error failed at run: RuntimeError: bang in two lines",
    "execute_error": "execute_error failed at run: RuntimeError: bang in two lines",
    "execute_nonsense": "execute_nonsense failed at run: BackendFailed: its execute() must fill `outputs`",
    "close_error": "of close_error could not be closed: RuntimeError: bang in two lines",
}


@pytest.mark.extended
@pytest.mark.parametrize("name", every(8, AT_RUN_TIME))
def test_nobody_asked_for_one_that_fails_at_run_time(site: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Its partitions were kept in kernels, and run there from then on; asked for, it is an error, as ever."""
    monkeypatch.setenv("DELEGATE_BLOCK_PLUGINS", ",".join({*Registry().names()} - {name}))
    default_registry.cache_clear()
    program = delegate.to_backend(exported(), placement=delegate.ByPreference())
    assert {p.backend for p in program.report.partitions} == {name}
    note = f"{name} was selected automatically: its partition is also saved in kernels"
    assert all(note in p.notes for p in program.report.partitions)
    data = serialize(program.program)
    with pytest.warns(RuntimeWarning, match=re.escape(AT_RUN_TIME[name])):
        assert {event.backend for event in run_twice(data)} == {name}
    for asked in ({"backends": [name]}, {"fallback": {"keep": False}}):
        placement = delegate.ByPreference()
        bare = serialize(delegate.to_backend(exported(), config=asked, placement=placement).program)
        assert len(bare) < len(data)
        with pytest.raises(BackendFailed, match=f"of {name}"), delegate.load(bare) as loaded:
            assert_right(loaded)


def run_twice(data: bytes) -> Any:
    """What fell back meanwhile."""
    with delegate.load(data) as loaded:
        for _ in range(2):
            assert_right(loaded)
    return loaded.fallback_events


def test_a_call_tells_of_its_own_fault_and_not_of_closing(site: Path) -> None:
    data = serialize(delegate.to_backend(exported(), "close_error").program)
    with pytest.raises(InputError, match="missing b"), delegate.load(data) as loaded:
        loaded(1)


def test_what_was_run_is_shown_though_it_does_not_close(installed: Path, site: Path, tmp_path: Path) -> None:
    delegate.to_backend(exported(), "close_error").save(tmp_path / "model.dlg")
    shown = command(installed, tmp_path, "run", str(tmp_path / "model.dlg"), "--json")
    assert [o["shape"] for o in shown["outputs"]] == [[2, 3]]


@pytest.mark.extended
def test_a_schema_is_there_whatever_they_do(installed: Path, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"healthy", "aot_crash", "aot_missing", "probe_crash"}
    monkeypatch.setenv("DELEGATE_BLOCK_PLUGINS", ",".join({*Registry().names()} - wanted))
    with pytest.warns(RuntimeWarning) as caught:
        schema = delegate.config.json_schema(Registry())
    choices = [c["const"] for c in schema["properties"]["backends"]["items"]["oneOf"] if "const" in c]
    assert choices == ["healthy"]
    assert {"aot_crash", "aot_missing"} == {n for n in wanted if any(f"{n!r}" in str(w.message) for w in caught)}
