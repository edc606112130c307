"""`delegate lower-many`: pairs of models and configurations, failures that stop nothing, and continuing."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from delegate_ray.aot import farm
from delegate_ray.aot.jobs import read_jobs
from delegate_ray.lower_many import lower_many
from typer import Typer
from typer.testing import CliRunner, Result

import delegate
from delegate.errors import ConfigError
from delegate.testing import assert_same

MODELS = """
import os, signal, torch

COUNT = 3

def data():
    yield torch.ones(2, 4)

def linear():
    open("ran", "w").close()
    torch.manual_seed(0)
    return torch.nn.Linear(4, 3), (torch.ones(2, 4),)

def killed():
    os.kill(os.getpid(), signal.SIGKILL)
"""
JOBS = """
models:
  linear: nets:linear
  saved: {source: relu.pt2}
  killed: nets:killed
configurations:
  xnnpack: {backends: [xnnpack]}
  portable: portable.yaml
exclude:
  - {model: "[sk]*", configuration: portable}
"""
WITHOUT_SAVED = JOBS + "  - {model: saved}\n"  # each job takes seconds
APP = Typer()
APP.command()(lower_many)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text(MODELS)
    (tmp_path / "portable.yaml").write_text("backends: []")
    (tmp_path / "jobs.yaml").write_text(JOBS)
    torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.ones(2),)), "relu.pt2")
    return tmp_path


def run(*args: str) -> Result:
    return CliRunner().invoke(APP, ["jobs.yaml", "-o", "out", *args])


def states(text: str) -> dict[str, str]:
    return {f"{job['model']}.{job['configuration']}": job["state"] for job in json.loads(text)["jobs"]}


def test_jobs_run_fail_and_continue(folder: Path) -> None:
    (folder / "jobs.yaml").write_text(WITHOUT_SAVED)
    first = run("--processes", "2", "--json")
    assert first.exit_code == 1
    assert states(first.stdout) == {
        "linear.xnnpack": "lowered",
        "linear.portable": "lowered",
        "killed.xnnpack": "failed",
    }
    rows: dict[str, Any] = {row["model"] + row["configuration"]: row for row in json.loads(first.stdout)["jobs"]}
    assert (rows["linearxnnpack"]["partitions"], rows["linearxnnpack"]["portable"]) == ({"xnnpack": 1}, 0)
    assert (rows["linearportable"]["partitions"], rows["linearportable"]["portable"]) == ({}, 1)
    assert rows["killedxnnpack"]["error"] == "its process ended with signal 9: check the memory"
    torch.manual_seed(0)
    linear, x = torch.nn.Linear(4, 3), torch.randn(2, 4)
    for name in ("xnnpack", "portable"):
        with delegate.load(folder / "out" / f"linear.{name}.dlg") as program:
            assert_same(program(x.numpy()), linear(x).detach().numpy(), 1e-6)

    (folder / "out" / "linear.xnnpack.dlg").write_bytes(b"")
    (folder / "jobs.yaml").write_text(WITHOUT_SAVED + "  - {model: killed}\n")
    second = run()
    assert second.exit_code == 0
    assert [line.split()[:3] for line in second.stdout.splitlines()[1:]] == [
        ["linear", "xnnpack", "lowered"], ["linear", "portable", "unchanged"],
    ]  # fmt: skip
    with delegate.load(folder / "out" / "linear.xnnpack.dlg") as program:
        assert_same(program(x.numpy()), linear(x).detach().numpy(), 1e-6)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("relu.pt2", "x" * 300 + ".pt2", r"models\.saved: there is no file '.*x\.pt2'"),
        ("relu.pt2", "absent.pt2", r"models\.saved: there is no file '.*absent\.pt2' \(.*jobs\.yaml:4:10\)"),
        ("nets:linear", "no_nets:linear", r"models\.linear: there is no module 'no_nets'"),
        ("[xnnpack]", "[xnnpak]", r"configurations\.xnnpack: .*xnnpak"),
        ("portable.yaml", "absent.yaml", r"configurations\.portable: .*absent\.yaml"),
        ("[sk]*", "none", r"exclude\.0 matches no pair"),
        ("  linear:", "  a/b:", r"models: 'a/b' cannot be a part of a file name"),
        ("source:", "sorce:", r"models\.saved\.sorce: unknown key"),
        (
            "  portable: portable.yaml",
            "  portable: 5",
            r"configurations\.portable: should be the path of a configuration",
        ),
        ('{model: "[sk]*", configuration: portable}', "{}", r"no pair is left \(.*jobs\.yaml:10:3\)"),
        (
            "relu.pt2",
            "relu.pt2, calibration: no.npz",
            r"models\.saved\.calibration: there is no file or module 'no\.npz'",
        ),
        ("[xnnpack]}", "[xnnpack], quantization: {calibration: no.npz}}", r"configurations\.xnnpack: there is no file"),
        (
            "  killed: nets:killed\nconfigurations:",
            "  linear.a: nets:linear\nconfigurations:\n  a.xnnpack: {backends: []}",
            r"two jobs would write 'linear\.a\.xnnpack\.dlg': .*'linear', 'a\.xnnpack'.* and .*'linear\.a', 'xnnpack'",
        ),
    ],
)
def test_wrong_files_of_jobs(folder: Path, old: str, new: str, words: str) -> None:
    (folder / "jobs.yaml").write_text(JOBS.replace(old, new))
    with pytest.raises(ConfigError, match=words):
        read_jobs(folder / "jobs.yaml", folder / "out")
    assert not (folder / "out").exists()


def test_missing_functions_are_errors_before_the_first_job(folder: Path) -> None:
    (folder / "jobs.yaml").write_text("""
        models:
          linear: nets:linear
          a: nets:linaer
          b: "nets:"
          c: nets:COUNT
          d: {source: relu.pt2, calibration: nets:dota}
        configurations:
          float: {backends: [xnnpack]}
          int8: {backends: [xnnpack], quantization: {scheme: static_int8, calibration: nets:deta}}
    """)
    result = run()
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception).splitlines() == [
        "module nets has no function '' (job b.float): known: data, killed, linear",
        "nets:COUNT is a int, not a function (job c.float): name a function",
        "module nets has no function 'deta' (job linear.int8): did you mean 'data'?",
        "module nets has no function 'dota' (job d.float): did you mean 'data'?",
        "module nets has no function 'linaer' (job a.float): did you mean 'linear'?",
    ]
    assert [path.name for path in (folder / "out").iterdir()] == ["jobs.json"]
    assert not (folder / "ran").exists()


def test_functions_of_other_modules_and_modules_that_fail_stop_no_job(folder: Path) -> None:
    (folder / "all_nets.py").write_text("from nets import *")
    (folder / "broken.py").write_text("import no_such_package")
    (folder / "ends.py").write_text("import os; os._exit(3)")
    (folder / "jobs.yaml").write_text("""
        models: {linear: all_nets:linear, broken: broken:net, ends: ends:net}
        configurations: {portable: portable.yaml}
    """)
    assert states(run("--json").stdout) == {
        "linear.portable": "lowered", "broken.portable": "failed", "ends.portable": "failed",
    }  # fmt: skip


def test_data_of_configurations(folder: Path) -> None:
    """Calibration data belong to the key, and are not used without quantization."""
    np.savez(folder / "data.npz", np.ones((2, 4), np.float32))
    jobs = """
models:
  saved: {source: relu.pt2, calibration: data.npz}
  other: relu.pt2
configurations:
  int8: {backends: [xnnpack], quantization: {calibration: data.npz}}
  float: {backends: [xnnpack]}
exclude: [{model: other, configuration: float}]
"""
    (folder / "jobs.yaml").write_text(jobs)
    before = read_jobs(folder / "jobs.yaml", folder / "out")
    np.savez(folder / "data.npz", np.zeros((2, 4), np.float32))
    after = read_jobs(folder / "jobs.yaml", folder / "out")
    assert all(old.key != new.key for old, new in zip(before, after, strict=True))
    (without,) = [job for job in after if job.configuration == "float"]
    Path(without.output).parent.mkdir()
    assert farm.lower(without).state == farm.LOWERED


def test_a_key_depends_on_all_files(folder: Path) -> None:
    before = [job.key for job in read_jobs(folder / "jobs.yaml", folder / "out")]
    for file, changed in (("nets.py", {0, 1, 3}), ("relu.pt2", {2}), ("portable.yaml", {1})):
        content = (folder / file).read_bytes()
        (folder / file).write_bytes(content + b"\n# changed" if file != "portable.yaml" else b"backends: [xnnpack]")
        after = [job.key for job in read_jobs(folder / "jobs.yaml", folder / "out")]
        assert {i for i, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]} == changed, file
        (folder / file).write_bytes(content)


def test_a_damaged_record(folder: Path) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "jobs.json").write_text("[]")
    with pytest.raises(ConfigError, match="this is no record of lowered models"):
        CliRunner().invoke(APP, ["jobs.yaml", "-o", "out"], catch_exceptions=False)


def test_a_program_of_another_command_is_lowered_again(folder: Path) -> None:
    """Also if it has the size of the recorded one: a command that was killed has written it, but not the record."""
    (folder / "jobs.yaml").write_text("models: {saved: relu.pt2}\nconfigurations: {p: {backends: []}}")
    assert states(run("--json").stdout) == {"saved.p": "lowered"}
    program = folder / "out" / "saved.p.dlg"
    data = program.read_bytes()
    program.write_bytes(bytes(len(data)))
    assert states(run("--json").stdout) == {"saved.p": "lowered"}
    assert states(run("--json").stdout) == {"saved.p": "unchanged"}
    with delegate.load(program) as loaded:
        assert_same(loaded(np.array([-1, 2], np.float32)), np.array([0, 2], np.float32))


def test_jobs_end_with_a_killed_command(folder: Path) -> None:
    """The second start continues, and no process of the first one writes a program later."""
    (folder / "nets.py").write_text(
        "import os, time, torch\nfrom pathlib import Path\n"
        "def relu():\n    return torch.nn.ReLU(), (torch.ones(2),)\n"
        "def slow():\n    Path('new').write_text(str(os.getpid()))\n    os.replace('new', 'pid')\n    time.sleep(60)\n"
    )
    (folder / "jobs.yaml").write_text(
        "models: {relu: 'nets:relu', slow: 'nets:slow'}\nconfigurations: {p: {backends: []}}"
    )
    line = [sys.executable, "-c", "from delegate.cli.main import main; main()", "lower-many", "jobs.yaml", "-o", "out"]
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        record = Path("out", "jobs.json")
        while not record.exists() or "relu" not in record.read_text() or not Path("pid").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.kill()
    child = int(Path("pid").read_text())
    until = time.monotonic() + 10
    while is_running(child):
        assert time.monotonic() < until
        time.sleep(0.05)
    (folder / "jobs.yaml").write_text("models: {relu: 'nets:relu'}\nconfigurations: {p: {backends: []}}")
    again = subprocess.check_output([*line, "--json"], text=True)  # Ray is imported here, and its packages would count
    assert states(again) == {"relu.p": "unchanged"}


def is_running(process: int) -> bool:
    """Return True if there is such a process, which has not ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
