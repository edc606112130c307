"""No file that a command writes has a path of this machine or the name of its user."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import typer

import delegate
from delegate.cache.runtime.folder import VARIABLE
from delegate.cli.app import app
from delegate.common.files import short_path, with_short_paths
from delegate.plugins import BLOCK_VARIABLE, COMMANDS, discover
from delegate.registry import default_registry
from tests.support.commands import call

MARK = "zq7alice"  # a folder above all files of the test, as the name of a user
MODEL = """
import torch

def helper(x):
    return torch.relu(x)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = torch.nn.Conv2d(3, 4, 3), torch.nn.Linear(4, 8)

    def forward(self, x):
        return self.head(helper(self.conv(x)).mean((2, 3))).cumsum(-1)

def net():
    torch.manual_seed(0)
    return Net().eval(), (torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0)),)

def fails():
    raise OSError(f"cannot read {__file__}")
"""
LANGUAGE_MODEL = {
    "model_type": "llama", "vocab_size": 50, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 32,
}  # fmt: skip
LOWERED = "lower privatenets.net:net -b xnnpack -o net.dlg"
# A command -> its lines, {root} is the folder of the mark; or the reason why it writes no file.
LINES: dict[str, list[str] | str] = {
    "lower": [
        LOWERED,
        "lower plainnets:net -b dsp -b xnnpack -o plain.dlg --json",
        "lower privatenets.net:net -o all.dlg",
        "lower privatenets.net:net -c {root}/models/q.yaml --verify {root}/models/x.npy -o q.dlg",
        "lower privatenets.net:net -c {root}/models/q.yaml --measure --lock {root}/locks/q.lock -o measured.dlg",
    ],
    "explain": "it prints",
    "run": [LOWERED, "run {root}/work/net.dlg --profile --inner -o outputs --json"],
    "inspect": [LOWERED, "inspect net.dlg --json"],
    "report": [
        "report privatenets.net:net -b xnnpack -o net.html",
        LOWERED,
        "report {root}/work/net.dlg --repeat 2 -o {root}/work/run.html",
    ],
    "export-graph": [
        LOWERED,
        *(f"export-graph {{root}}/work/net.dlg -o {name}" for name in ("net.onnx", "graph.json")),
    ],
    "diff": [
        f"{LOWERED} --trace lower.json",
        "run {root}/work/net.dlg --trace run.json",
        "diff net.dlg net.dlg --json",
    ],
    "debug": ["debug privatenets.net:net -b xnnpack -o {root}/work/reproduction --json"],
    "strip": [LOWERED, "strip net.dlg -o stripped.dlg"],
    "measure": [
        "lower privatenets.net:net -c {root}/models/q.yaml --measure --bundle net.bundle",
        "measure net.bundle -o costs.json",
    ],
    "new-backend": ["new-backend privateacme --output acme"],
    "llm": [
        "llm export {root}/models/llama.json -o llama.dlg --context 32 --chunk 8 --weights float32 --no-tokenizer"
        " -b xnnpack"
    ],
    "batch": [LOWERED, "batch {root}/work/net.dlg -i {root}/work/rows.npy -o {root}/work/rows"],
    "lower-many": ["lower-many {root}/models/jobs.yaml -o {root}/work/many"],
    "backends": ["backends --refresh --json"],
    "calibrate": "its file has numbers, and names of libraries and of the processor",
    "ops": "it prints",
    "check-backend": "it prints, and the cache is that of `backends`",
    "demo": "its model is a part of its package, and lies below no folder of the user",
    "config": "it prints",
    "lock": "it prints",
    "cache": "it prints, or removes files",
    "serve": "it serves",
}


def found(data: bytes, where: str) -> Iterator[str]:
    """Yield the places that have the mark, also in members of archives."""
    for text in (MARK, MARK.encode("utf-16-le").decode("latin-1")):
        place = data.find(text.encode("latin-1"))
        if place >= 0:
            yield f"{where}: {data[max(0, place - 60) : place + 60]!r}"
    if data[:2] == b"PK":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for name in archive.namelist():
                yield from found(archive.read(name), f"{where}/{name}")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the mark: models on `sys.path`, a home with the cache, locks, and the current folder."""
    root = tmp_path / MARK
    for name in ("models/privatenets", "work", "home", "locks"):
        (root / name).mkdir(parents=True)
    models = root / "models"
    for name in ("privatenets/__init__.py", "privatenets/net.py", "plainnets.py"):
        (models / name).write_text("" if "__init__" in name else MODEL)
    generator = np.random.default_rng(0)
    np.savez(models / "data.npz", x=generator.normal(size=(1, 3, 8, 8)).astype(np.float32))
    np.save(models / "x.npy", generator.normal(size=(1, 3, 8, 8)).astype(np.float32))
    np.save(root / "work/rows.npy", np.zeros((3, 3, 8, 8), np.float32))
    quantization = {"scheme": "static_int8", "calibration": str(models / "data.npz")}
    (models / "q.yaml").write_text(json.dumps({"backends": ["xnnpack"], "quantization": quantization}))
    configurations = {"floats": {"backends": ["xnnpack"]}, "integers": "q.yaml"}
    jobs = {"models": {"net": "privatenets.net:net"}, "configurations": configurations}
    (models / "jobs.yaml").write_text(json.dumps(jobs))
    (models / "llama.json").write_text(json.dumps(LANGUAGE_MODEL))
    monkeypatch.setenv("HOME", str(root / "home"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(models), os.environ.get("PYTHONPATH", ""))))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv(BLOCK_VARIABLE, "")
    monkeypatch.syspath_prepend(models)
    monkeypatch.chdir(root / "work")
    default_registry.cache_clear()  # it blocks what it was made with
    yield root
    default_registry.cache_clear()


def commands() -> set[str]:
    return {*typer.main.get_command(app).commands, *discover(COMMANDS).claims}  # type: ignore[attr-defined]


def test_every_command_is_here() -> None:
    assert commands() - {*LINES} == set()


WRITERS = [name for name, lines in LINES.items() if not isinstance(lines, str)]
SLOW = ("lower-many", "llm")


@pytest.mark.extended
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in WRITERS])
def test_no_file_has_a_path_of_this_machine(name: str, root: Path) -> None:
    if name not in commands():
        pytest.skip(f"no package with the command {name} is installed")
    for line in LINES[name]:
        printed, _ = call(*line.format(root=root).split())
        if name in ("lower", "inspect", "diff"):  # results in JSON, which people keep
            assert list(found(printed.encode(), line)) == []
    require_private(root)


def require_private(root: Path) -> None:
    """Assert that no file of the current folder or of the home has the mark."""
    written = [path for folder in ("work", "home", "locks") for path in (root / folder).rglob("*") if path.is_file()]
    assert written
    assert [place for path in written for place in found(path.read_bytes(), path.name)] == []


@pytest.mark.extended
def test_no_backend_writes_a_path_of_this_machine(root: Path) -> None:
    """The vendors' formats have metadata of their own."""
    printed, _ = call("backends", "--json")
    names = [b["name"] for b in json.loads(printed)["backends"] if b["state"] == "ok" and not b["stands_for"]]
    assert "xnnpack" in names
    for name in names:
        call("lower", "privatenets.net:net", "-b", name, "-o", f"{name}.dlg")
        with delegate.load(f"{name}.dlg", trust_code=True) as program:
            assert {partition.backend for partition in program.report.partitions} == {name}
    require_private(root)


def test_source_lines_name_the_file_below_its_package(root: Path) -> None:
    for name, file in {"privatenets.net": "privatenets/net.py", "plainnets": "plainnets.py"}.items():
        call("lower", f"{name}:net", "-b", "xnnpack", "-o", "net.dlg")
        sources = {node.source for node in delegate.load("net.dlg").report.nodes}
        assert {f"{file}:5, in helper", f"{file}:13, in forward"} >= sources
        assert sources


SHORT = {
    "/opt/lib/python3.11/site-packages/torchvision/models/resnet.py": "torchvision/models/resnet.py",
    "/usr/lib/python3/dist-packages/numpy/core.py": "numpy/core.py",
    "/home/of_another/machine/net.py": "net.py",
    r"C:\Users\alice\net.py": "net.py",
    "<ipython-input-1>": "<ipython-input-1>",
    __file__: "tests/cli/test_private_paths.py",
}


@pytest.mark.parametrize("path", SHORT)
def test_a_short_path(path: str) -> None:
    assert short_path(path) == SHORT[path]


def test_a_short_path_never_begins_above_the_home(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = root / "home/deep/net.py"
    for entry in ("/", root.parent, root):
        monkeypatch.syspath_prepend(str(entry))
        assert short_path(str(file)) == "net.py"
    monkeypatch.syspath_prepend(str(root / "home"))
    assert short_path(str(file)) == "deep/net.py"
    (root / "home/__init__.py").touch()
    file.parent.mkdir()
    (file.parent / "__init__.py").touch()
    assert short_path(str(file)) == "deep/net.py"


MESSAGES = {
    'File "/home/a b/x.py", line 3, in f': 'File "x.py", line 3, in f',
    "cannot read '/home/a b/y.npz'": "cannot read 'y.npz'",
    "[Errno 2] /home/a/z.so: no such file (/opt/b/c.so)": "[Errno 2] z.so: no such file (c.so)",
    "float32[(s0 - 1)//2, s1//4, 8], 3/4 of aten/c, 1 /2, http://a/b/c, ~/d/e": None,
    '{"a":"/x/y","b":"it is \\"/x/y z\\"","c":["/x"]}': '{"a":"y","b":"it is \\"y z\\"","c":["/x"]}',
}


@pytest.mark.parametrize("message", MESSAGES)
def test_paths_in_a_message(message: str) -> None:
    assert with_short_paths(message) == (MESSAGES[message] or message)


def test_a_report_shortens_paths_of_messages(root: Path) -> None:
    call("lower", "privatenets.net:net", "-b", "xnnpack", "-o", "net.dlg")
    report = replace(delegate.load("net.dlg").report, notes=(f"not used: cannot open '{root}/lib x.so'",))
    assert json.loads(report.to_json())["notes"] == ["not used: cannot open 'lib x.so'"]
    assert report.from_json(report.to_json()).nodes == report.nodes


@pytest.mark.extended
def test_a_lock_finds_its_calibration_data(root: Path) -> None:
    """It has the path below its folder, or the name alone, which the configuration of a replay completes."""
    config, lock, beside = root / "models/q.yaml", root / "locks/q.lock", root / "models/q.lock"
    call("lower", "privatenets.net:net", "-c", str(config), "--lock", str(lock), "--measure", "-o", "first.dlg")
    assert "calibration: data.npz" in lock.read_text()
    beside.write_text(lock.read_text())
    call("lower", "privatenets.net:net", "-b", "xnnpack", "--locked", str(beside), "-o", "second.dlg")
    call("lower", "privatenets.net:net", "-c", str(config), "--locked", str(lock), "-o", "third.dlg")
    assert Path("second.dlg").read_bytes() == Path("third.dlg").read_bytes()
    _, error = call("lower", "privatenets.net:net", "-b", "xnnpack", "--locked", str(lock), "-o", "no.dlg", code=1)
    assert "there is no file 'data.npz'" in error


@pytest.mark.skipif("lower-many" not in discover(COMMANDS).claims, reason="delegate-ray is not installed")
@pytest.mark.slow
def test_a_record_of_failures(root: Path) -> None:
    jobs = {"models": {"bad": "privatenets.net:fails"}, "configurations": {"floats": {"backends": ["xnnpack"]}}}
    (root / "models/bad.yaml").write_text(json.dumps(jobs))
    call("lower-many", str(root / "models/bad.yaml"), "-o", "many", code=1)
    (job,) = json.loads(next(Path("many").glob("*.json")).read_text())["jobs"]
    assert "cannot read privatenets/net.py" in job["error"] + job["traceback"]
    require_private(root)
