"""Rows through a real Ray cluster on this machine: the command, Ray Data, and actors that die."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest
import torch
from delegate_ray import Predictor
from delegate_ray.aot import farm
from delegate_ray.aot.jobs import read_jobs
from ray._private.worker import print_to_stdstream
from typer.testing import CliRunner

import delegate
from delegate.cli.app import app
from delegate.errors import BackendFailed, ConfigError
from delegate.testing import assert_same
from tests.support.network_audit import audit, unsupported

from .conftest import ROWS, Data, Read, tensor

pytest.importorskip("ray")
import ray
from delegate_ray.runtime import cluster as clusters
from delegate_ray.runtime import connection
from delegate_ray.runtime.connection import connected


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*args: Any) -> Any:
    return CliRunner().invoke(app, ["batch", *map(str, args), "-o", "out"])


def require_eager(data: Data, table: Any) -> None:
    assert table["row"].to_pylist() == list(range(ROWS))
    with torch.no_grad():
        assert_same(tensor(table, "output"), data.modules["net"](torch.from_numpy(data.x)))


def killing(monkeypatch: pytest.MonkeyPatch, count: int, *, again: bool = False) -> list[int]:
    """Kill some actors as soon as they have their part; return the numbers of these parts.

    Args:
        monkeypatch: The test's monkeypatch.
        count: how many.
        again: a part may lose several actors.
    """
    killed: list[int] = []
    original = clusters.Cluster._give

    def give(self: Any, actor: Any) -> None:
        before = set(self._running)
        original(self, actor)
        for answer in set(self._running) - before:
            number = self._running[answer][1].number
            if len(killed) < count and (again or number not in killed):
                killed.append(number)
                ray.kill(actor)

    monkeypatch.setattr(clusters.Cluster, "_give", give)
    return killed


def test_killed_actors_are_replaced(data: Data, address: str, results: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    """No row is lost or twice, and each output file is written once more than its actor has died."""
    killed = killing(monkeypatch, 2)
    done = run(data.programs["net"], "-i", data.parquet, "--rows", 7, "--ray", address)
    assert (done.exit_code, done.stdout) == (0, f"{ROWS} rows in 8 files in out\n"), done.output
    assert len(killed) == 2
    require_eager(data, results(Path("out")))
    assert not ray.is_initialized()


def test_reports_of_ray_are_no_output(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Ray prints the logs of a node that dies to stdout, which has the results of commands."""
    report: dict[str, Any] = {"lines": ["a node has died"], "pid": "raylet", "is_err": False}
    with connected(address):
        print_to_stdstream(report, ignore_prefix=False)
    assert not capsys.readouterr().out


def test_errors_of_ray_have_a_remedy(address: str) -> None:
    died = r"the Ray cluster failed: WorkerCrashedError: .*: start the same command again"
    with pytest.raises(BackendFailed, match=died), connected(address):
        ray.get(ray.remote(max_retries=0)(lambda: os._exit(1)).remote())
    assert not ray.is_initialized()


def test_actors_have_no_memory_that_rows_do_not_need(
    data: Data, address: str, results: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An actor that has written a file has not imported pandas, and has no memory pool of Arrow."""
    found, original = [], clusters.Cluster._give

    def give(self: Any, actor: Any) -> None:
        if not self._waiting:
            found.append(ray.get(actor.__ray_call__.remote(lambda _: surroundings())))
        original(self, actor)

    def surroundings() -> tuple[bool, str]:
        import sys

        import pyarrow

        return "pandas" in sys.modules, pyarrow.default_memory_pool().backend_name

    monkeypatch.setattr(clusters.Cluster, "_give", give)
    done = run(data.programs["net"], "-i", data.parquet, "--keep", "id", "--rows", 25, "--actors", 1, "--ray", address)
    assert done.exit_code == 0, done.output
    assert found == [(False, "system")]
    require_eager(data, results(Path("out")))


def test_a_stopped_job_continues_and_bad_rows(
    data: Data, address: str, connected: None, results: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of one process is not written again; the error of a row arrives as it is."""
    command = (data.programs["net"], "-i", data.parquet, "--rows", 10)
    assert run(*command).exit_code == 0
    for number in (1, 3):
        Path(f"out/part-{number:06}.parquet").unlink()
    times = {path.name: path.stat().st_mtime_ns for path in Path("out").glob("*.parquet")}
    done = run(*command, "--ray", address, "--actors", 1)
    assert done.stdout == f"continuing: 3 of 5 files are complete\n{ROWS} rows in 5 files in out\n", done.output
    assert times.items() <= {path.name: path.stat().st_mtime_ns for path in Path("out").glob("*.parquet")}.items()
    require_eager(data, results(Path("out")))
    x = data.x.astype(object)
    Path("d.jsonl").write_text("".join(json.dumps({"x": row}) + "\n" for row in x.tolist()[:5]) + "{}\n")
    done = CliRunner().invoke(
        app, ["batch", str(data.programs["net"]), "-i", "d.jsonl", "-o", "new", "--rows", "2", "--ray", address]
    )
    assert "error: input 'x': the cell is null (row 5 of the input): correct the row" in done.stderr


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")  # Ray's own
@pytest.mark.parametrize("name", ["net", "positive"])
@pytest.mark.parametrize("form", ["numpy", "pyarrow"])
def test_ray_data(data: Data, connected: None, form: str, name: str) -> None:
    import ray.data

    ray.data.DataContext.get_current().enable_progress_bars = False
    dataset = ray.data.from_numpy(data.x).map_batches(
        Predictor,
        fn_constructor_args=(str(data.programs[name]),),
        fn_constructor_kwargs={"columns": {"x": "data"}, "keep": ["data"]},
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=1),
        num_cpus=1,
        batch_size=16,
        batch_format=form,
        zero_copy_batch=True,
    )
    rows = dataset.take_all()
    assert len(rows) == ROWS
    found = np.stack([row["data"] for row in rows])
    assert_same(found, data.x)
    with torch.no_grad():
        assert_same(np.stack([np.asarray(r["output"]) for r in rows]), data.modules[name](torch.from_numpy(data.x)))


def test_errors_before_work(data: Data, address: str, connected: None, monkeypatch: pytest.MonkeyPatch) -> None:
    command = (data.programs["net"], "-i", data.parquet, "--ray", address)
    assert "there is no column 'y' for input 'x'" in run(*command, "--column", "x=y").stderr
    assert "no node of the cluster has 64 CPUs, the largest has 2" in run(*command, "--threads", 64).stderr
    monkeypatch.setattr(delegate, "__version__", "9.9.9")
    stderr = run(*command).stderr
    assert "a node has delegate 0.1.0, and the driver 9.9.9" in stderr
    assert "install one version on all nodes" in stderr
    assert os.listdir("out") == ["manifest.json"]


def test_an_address_that_does_not_answer(data: Data) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for address in (f"127.0.0.1:{port}", "nowhere"):
        done = run(data.programs["net"], "-i", data.parquet, "--ray", address)
        assert f"there is no Ray cluster at {address!r}" in done.stderr
        assert done.exit_code == 1
    assert not Path("out").exists()


@pytest.mark.slow
def test_ten_killed_actors_of_20000_rows(
    data: Data, address: str, results: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = killing(monkeypatch, 10)
    np.save("d.npy", np.tile(data.x, (400, 1)))
    done = run(data.programs["net"], "-i", "d.npy", "--rows", 500, "--ray", address)
    assert done.stdout == "20000 rows in 40 files in out\n", done.output
    assert len(killed) == 10
    table = results(Path("out"))
    assert table["row"].to_pylist() == list(range(20_000))
    with torch.no_grad():
        expected = data.modules["net"](torch.from_numpy(data.x)).repeat(400, 1)
    assert_same(tensor(table, "output"), expected)


@pytest.mark.slow
def test_a_part_that_ends_all_its_actors(data: Data, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "_ATTEMPTS", 2)
    killing(monkeypatch, 100, again=True)
    done = run(data.programs["net"], "-i", data.parquet, "--ray", address, "--actors", 1)
    assert "actors die at part 0: " in done.stderr
    assert "check the memory of the nodes" in done.stderr


@pytest.mark.usefixtures("connected")
def test_models_are_lowered_on_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if a process dies there; a job whose device no node has is an error before any work."""
    monkeypatch.chdir(tmp_path)
    Path("nets.py").write_text("import os\n\ndef killed():\n    os._exit(1)\n")
    torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.ones(2),)), "relu.pt2")
    Path("jobs.yaml").write_text("models: {relu: relu.pt2, killed: nets:killed}\nconfigurations: {p: {backends: []}}")
    jobs = read_jobs(tmp_path / "jobs.yaml", tmp_path / "out")
    farm.Record(tmp_path / "out", jobs)
    outcomes = {o.model: o for o in farm.on_ray(jobs, 1)}
    assert (outcomes["relu"].state, outcomes["killed"].state) == ("lowered", "failed")
    assert "WorkerCrashedError" in outcomes["killed"].error
    with delegate.load(outcomes["relu"].output) as program:
        assert_same(program(np.array([-1, 2], np.float32)), np.array([0, 2], np.float32))
    with pytest.raises(ConfigError, match=r"no node of the cluster has 100 CPUs \(job relu\.p\)"):
        next(farm.on_ray(jobs, 100))


def test_programs_of_a_cluster_are_those_of_one_machine(address: str) -> None:
    """A command continues with or without Ray."""
    torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.ones(2),)), "relu.pt2")
    Path("jobs.yaml").write_text("models: {relu: relu.pt2}\nconfigurations: {p: {backends: []}}")
    line = [sys.executable, "-m", "delegate", "lower-many", "jobs.yaml", "-o", "out", "--json"]
    for args, state in (["--ray", address], "lowered"), ([], "unchanged"), (["--ray", address], "unchanged"):
        done = subprocess.run([*line, *args], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert [job["state"] for job in json.loads(done.stdout)["jobs"]] == [state]


@pytest.mark.slow
def test_a_node_of_three_dies(
    data: Data, cluster_environment: None, results: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each node has one CPU, so each of three actors has its own; the rows of the lost one run on the others."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 100 << 20}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    try:
        lost = [cluster.add_node(num_cpus=1, object_store_memory=100 << 20) for _ in range(2)][-1]
        cluster.wait_for_nodes()
        original = clusters.Cluster._replace
        replaced: list[int | None] = []

        def replace(self: Any, actor: Any, part: Any, error: Any) -> None:
            replaced.append(None if part is None else part.number)
            original(self, actor, part, error)

        monkeypatch.setattr(clusters.Cluster, "_replace", replace)
        working = clusters.Cluster._give
        alive: list[int] = []

        def give(self: Any, actor: Any) -> None:
            working(self, actor)
            if len(self._running) == 3 and all(part is not None for _, part in self._running.values()) and not alive:
                alive.append(sum(n["Alive"] and n["Resources"].get("CPU", 0) == 1 for n in ray.nodes()))
                cluster.remove_node(lost, allow_graceful=False)

        monkeypatch.setattr(clusters.Cluster, "_give", give)
        np.save("d.npy", np.tile(data.x, (8000, 1)))
        done = run(data.programs["net"], "-i", "d.npy", "--rows", 10_000, "--ray", cluster.address, "--actors", 3)
        assert done.stdout == "400000 rows in 40 files in out\n", done.output  # without Ray's report of the node
        assert alive == [3]
        assert len(replaced) == 1
        table = results(Path("out"))
        assert table["row"].to_pylist() == list(range(400_000))
        with torch.no_grad():
            expected = data.modules["net"](torch.from_numpy(data.x)).repeat(8000, 1)
        assert_same(tensor(table, "output"), expected)
    finally:
        ray.shutdown()
        cluster.shutdown()


def test_a_command_waits_while_a_node_can_answer(connected: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_PATIENCE", 0.5)
    monkeypatch.setattr(connection, "_LOOK", 0.1)
    endless, short = (ray.remote(num_cpus=0)(lambda s: sleep(s)).remote(seconds) for seconds in (600, 2))  # noqa: PLW0108 - Ray takes no built-in
    answers = {endless: {"CPU": 100, "dsp": 0.001}, short: {"CPU": 1}}
    assert connection.Waiting().first(answers) == short
    del answers[short]
    with (
        pytest.warns(RuntimeWarning, match="no node of the Ray cluster is alive that has 100 CPUs and 'dsp': waiting"),
        pytest.raises(BackendFailed, match="has had no node with 100 CPUs and 'dsp' for"),
    ):
        connection.Waiting().first(answers)
    ray.cancel(endless, force=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("always:no node of the Ray cluster")
def test_the_only_node_with_cpus_dies(
    data: Data, cluster_environment: None, results: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command says so, before Ray notices, ends with an error, and continues without Ray."""
    from ray.cluster_utils import Cluster

    monkeypatch.setattr(connection, "_LOOK", 1.0)
    monkeypatch.setattr(connection, "_PATIENCE", 2.0)
    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": 100 << 20}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        lost = cluster.add_node(num_cpus=2, object_store_memory=100 << 20)
        cluster.wait_for_nodes()
        working = clusters.Cluster._give

        def give(self: Any, actor: Any) -> None:
            working(self, actor)
            if Path("out/part-000002.parquet").exists() and lost in cluster.worker_nodes:
                cluster.remove_node(lost, allow_graceful=False)

        monkeypatch.setattr(clusters.Cluster, "_give", give)
        np.save("d.npy", np.tile(data.x, (4000, 1)))
        command = (data.programs["net"], "-i", "d.npy", "--rows", 2_000)
        done = run(*command, "--ray", cluster.address)
        assert "warning: no node of the Ray cluster is alive that has 1 CPU: waiting 2 s for one" in done.stderr
        assert "the Ray cluster has had no node with 1 CPU for 2 s (--ray): start a node" in done.stderr
        assert done.exit_code == 1
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert run(*command).exit_code == 0
    assert results(Path("out"))["row"].to_pylist() == list(range(200_000))


@pytest.mark.slow
@pytest.mark.skipif(bool(unsupported()), reason=unsupported())
def test_a_command_on_a_cluster_reaches_nothing_else(address: str, data: Data) -> None:
    """Ray connects a socket for datagrams to Google's name servers, sends nothing, and asks for its own address."""
    line = ["batch", data.programs["net"], "-i", data.parquet, "--column", "x=x", "-o", "out", "--ray", address]
    result = audit([sys.executable, "-m", "delegate", *map(str, line)], PYTHONPATH=os.environ["PYTHONPATH"])
    assert result.code == 0, result.output
    own_address = r"datagrams to (8\.8\.8\.8|2001:4860:4860::8888) port 53 "
    assert [attempt for attempt in result.attempts if not re.match(own_address, attempt)] == []
    assert result.files == ()


def is_worker(process: str) -> bool:
    """Return True if a process is an actor of a job that has not ended."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().startswith(b"ray::Worker")
    except OSError:
        return False


@pytest.mark.slow
def test_the_head_dies(data: Data, cluster_environment: None, results: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command ends with an error before Ray ends its process, and continues without Ray."""
    from ray.cluster_utils import Cluster

    monkeypatch.setattr(connection, "_PATIENCE", 2.0)
    monkeypatch.setattr(connection, "_LOOK", 1.0)
    node = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": 100 << 20}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    try:
        original = clusters.Cluster._give

        def give(self: Any, actor: Any) -> None:
            original(self, actor)
            if Path("out/part-000002.parquet").exists() and cluster.head_node is not None:
                raylet = cluster.head_node.all_processes["raylet"][0].process.pid
                children = Path(f"/proc/{raylet}/task/{raylet}/children").read_text().split()
                assert any(map(is_worker, children))
                cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False)
                cluster.head_node = None
                while any(map(is_worker, children)):  # else they may complete the job
                    sleep(0.05)

        monkeypatch.setattr(clusters.Cluster, "_give", give)
        np.save("d.npy", np.tile(data.x, (2000, 1)))
        command = (data.programs["net"], "-i", "d.npy", "--rows", 2_000)
        done = run(*command, "--ray", cluster.address)
        assert "the head of the Ray cluster has not answered for 2 s (--ray): start the cluster again" in done.stderr
        assert done.exit_code == 1
    finally:
        ray.shutdown()
        cluster.shutdown()
    complete = len([*Path("out").glob("part-*")])
    assert 3 <= complete < 50
    assert run(*command).stdout.startswith(f"continuing: {complete} of 50 files are complete\n")
    table = results(Path("out"))
    assert table["row"].to_pylist() == list(range(100_000))
    with torch.no_grad():
        assert_same(tensor(table, "output"), data.modules["net"](torch.from_numpy(data.x)).repeat(2000, 1))
