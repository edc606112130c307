"""`delegate serve --ray`: models on a real cluster of this machine, clients of others, and replicas that die."""

from __future__ import annotations

import http.client
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import delegate
from delegate.cli.app import app
from delegate.errors import ConfigError
from delegate.testing import assert_same
from tests.support.collector import collecting

from .conftest import Data, metrics

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of pydantic in Ray Serve
    pytest.importorskip("ray.serve")
    import ray
    from delegate_serve.runtime.fleet import Fleet
    from ray import serve as ray_serve
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton
from delegate_serve.runtime.settings import MIB, ModelFile, Replicas, Settings, Telemetry

pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray's own threads and sockets


def infer(client: Any, kind: Any, model: str, x: np.ndarray) -> np.ndarray:
    tensor = kind.InferInput("x", list(x.shape), "FP32")
    tensor.set_data_from_numpy(x)
    found = client.infer(model, [tensor]).as_numpy("output")
    assert found is not None
    return found


def eager(data: Data) -> tuple[np.ndarray, torch.Tensor]:
    """Return some rows, and the results of the module."""
    with torch.no_grad():
        return data.x[:4], data.modules["net"](torch.from_numpy(data.x[:4]))


def test_clients(data: Data, connected: None) -> None:
    """Triton's clients work over HTTP and gRPC as with a server in one process."""
    with Fleet(
        {"net": ModelFile(data.programs["net"], Settings(batch=8))}, Settings(max_body=MIB), None, "127.0.0.1", 0, 0
    ) as fleet:
        assert [model.name for model in fleet.deploy()] == ["net"]
        client = triton.InferenceServerClient(f"127.0.0.1:{fleet.port}")
        assert client.is_server_ready()
        assert [row["name"] for row in client.get_model_repository_index()] == ["net"]
        x, expected = eager(data)
        assert_same(infer(client, triton, "net", x), expected)
        with pytest.raises(ConfigError, match="the cluster serves the application 'delegate' already"):
            Fleet({}, Settings(), None, "127.0.0.1", 0, None)
        with pytest.raises(triton.InferenceServerException, match="but the model takes"):
            infer(client, triton, "net", x[:, :2])
        grpc = triton_grpc.InferenceServerClient(f"127.0.0.1:{fleet.grpc_port}")
        assert_same(infer(grpc, triton_grpc, "net", x), expected)
        with pytest.raises(triton_grpc.InferenceServerException, match="there is no model 'nett'"):
            infer(grpc, triton_grpc, "nett", x)
        large = np.zeros((1 << 16, 4), np.float32)
        for client_of, kind in ((client, triton), (grpc, triton_grpc)):
            with pytest.raises(kind.InferenceServerException, match=r"more than 1048576 bytes.*--max-body"):
                infer(client_of, kind, "net", large)


def test_errors_before_work(data: Data, connected: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is started on the cluster."""
    net, alone = data.programs["net"], Replicas(cpus=2, resources={"npu": 1})
    cases = {
        "no node of the cluster has 2 CPU, 1 npu, which a replica of 'net' needs": ModelFile(net, replicas=alone),
        r"node [\d.]+: .*absent.dlg": ModelFile(tmp_path / "absent.dlg"),
        "has states, whose sessions are in one process": ModelFile(data.programs["counter"]),
        "depend on each other": ModelFile(data.programs["mean"], Settings(batch=4)),
        "no method 'forwrad'.* did you mean 'forward'": ModelFile(net, methods=("forwrad",)),
    }
    logging.getLogger("ray.serve").setLevel(logging.INFO)
    for message, file in cases.items():
        expect_refusal(message, file)
    assert not logging.getLogger("ray.serve").isEnabledFor(logging.INFO)  # Ray's lines are no part of an error
    monkeypatch.setattr(delegate, "__version__", "9.9.9")
    expect_refusal("a node has delegate 0.1.0, and the driver 9.9.9", ModelFile(net))
    assert not ray_serve.status().proxies


def expect_refusal(message: str, file: ModelFile) -> None:
    fleet = Fleet({"net": file}, Settings(), None, "127.0.0.1", 0, None)
    with pytest.raises(ConfigError, match=message):
        fleet.deploy()


@pytest.mark.slow
def test_a_node_without_the_package(data: Data, address: str, tmp_path: Path) -> None:
    (tmp_path / "delegate_serve.py").write_text("raise ModuleNotFoundError('', name='delegate_serve')")
    environment = {"env_vars": {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}"}}
    ray.init(address=address, log_to_driver=False, logging_level="ERROR", runtime_env=environment)
    try:
        expect_refusal("has no package 'delegate_serve' .*pip install", ModelFile(data.programs["net"]))
    finally:
        ray.shutdown()


def test_an_address_that_does_not_answer(data: Data) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    done = CliRunner().invoke(app, ["serve", str(data.programs["net"]), "--ray", f"127.0.0.1:{port}", "--port", "0"])
    assert done.exit_code == 1
    assert f"there is no Ray cluster at '127.0.0.1:{port}'" in done.stderr


@pytest.mark.slow
def test_a_replica_that_dies_loses_no_request(data: Data, connected: None) -> None:
    """Each of many requests has its result, perhaps after the status 503."""
    x, expected = eager(data)
    replicas = Replicas(min=2, max=2)
    file = ModelFile(data.programs["net"], Settings(batch=8), replicas=replicas)
    with Fleet({"net": file}, Settings(), None, "127.0.0.1", 0, None) as fleet, ThreadPoolExecutor(4) as pool:
        fleet.deploy()
        answers = [pool.submit(patient, fleet.port, "net", x) for _ in range(400)]
        for _ in range(2):
            killed = actors("net")
            for actor in killed:
                ray.kill(actor)
            while not set(actors("net")) - set(killed):
                sleep(0.1)
        for answer in answers:
            assert_same(answer.result(), expected)


class Long(torch.nn.Module):
    """Takes long."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randn(700, 700) / 30)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.weight * x.sum()
        for _ in range(30):
            rows = (rows @ self.weight).tanh()
        return rows[0, :4]


@pytest.mark.slow
def test_requests_of_clients_that_leave_are_not_run(connected: None, tmp_path: Path) -> None:
    """One may be running. The others have left before their call, and another client gets its result after one call."""
    file, x = write_long(tmp_path / "long.dlg"), np.ones(4, np.float32)
    with Fleet({"long": file}, Settings(), None, "127.0.0.1", 0, None) as fleet:
        fleet.deploy()
        expected, start = patient(fleet.port, "long", x), monotonic()
        patient(fleet.port, "long", x)
        seconds, start = monotonic() - start, monotonic()
        for _ in range(12):
            client = triton.InferenceServerClient(f"127.0.0.1:{fleet.port}", network_timeout=seconds / 20)
            with pytest.raises(TimeoutError):
                infer(client, triton, "long", x)
        found = patient(fleet.port, "long", x)
        total = monotonic() - start
    assert_same(found, expected)
    assert total < 5 * seconds  # thirteen calls if all of them ran


def write_long(path: Path) -> ModelFile:
    torch.manual_seed(0)
    delegate.to_backend(torch.export.export(Long().eval(), (torch.zeros(4),)), []).save(path)
    return ModelFile(path)


@pytest.mark.slow
def test_requests_that_have_arrived_are_answered_at_the_end(connected: None, tmp_path: Path) -> None:
    """Requests that wait for a replica are among them. The spans of all are sent, and further requests are refused."""
    files, x, count = {"long": write_long(tmp_path / "long.dlg")}, np.ones(4, np.float32), 24
    with collecting() as (url, received), ThreadPoolExecutor(count) as pool:
        with Fleet(files, Settings(), Telemetry(url), "127.0.0.1", 0, 0) as fleet:
            fleet.deploy()
            expected = patient(fleet.port, "long", x)
            places = [(triton, fleet.port), (triton_grpc, fleet.grpc_port)] * (count // 2)
            answers = [
                pool.submit(infer, kind.InferenceServerClient(f"127.0.0.1:{port}"), kind, "long", x)
                for kind, port in places
            ]
            while waiting(fleet.port) < count:
                sleep(0.01)
        for answer in answers:
            assert_same(answer.result(), expected)
    spans = [span.name for part in received for scope in part.scope_spans for span in scope.spans]
    assert spans.count("infer long") == 2 * spans.count("run") == 2 * (count + 1)


def waiting(port: int) -> float:
    """Return the number of requests for `long` that the ingress has."""
    name = 'delegate_queue_requests{model="long"}'
    return next(float(line.split()[-1]) for line in metrics(port).splitlines() if line.startswith(name))


@pytest.mark.slow
def test_a_slow_request_is_answered_by_the_old_files(data: Data, connected: None) -> None:
    """Its client needs more than the 20 s after which Ray Serve ends an ingress that has a successor."""
    x, expected = eager(data)
    row = {"name": "x", "shape": list(x.shape), "datatype": "FP32", "data": x.reshape(-1).tolist()}
    body = json.dumps({"inputs": [row]}).encode()
    head = f"POST /v2/models/net/infer HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\n\r\n"
    files = {"net": ModelFile(data.programs["net"])}
    with Fleet(files, Settings(), None, "127.0.0.1", 0, None) as fleet, ThreadPoolExecutor(1) as pool:
        fleet.deploy()
        patient(fleet.port, "net", x)
        with socket.create_connection(("127.0.0.1", fleet.port), timeout=60) as slow:
            slow.sendall(head.encode() + body[:9])
            sleep(0.5)
            deployed, start = pool.submit(fleet.deploy), monotonic()
            while monotonic() - start < 23:
                patient(fleet.port, "net", x)
                sleep(1)
            slow.sendall(body[9:])
            response = http.client.HTTPResponse(slow)
            response.begin()
            answer = json.loads(response.read())
            assert response.status == 200, answer
            deployed.result()
    assert_same(np.array(answer["outputs"][0]["data"], np.float32).reshape(expected.shape), expected)


@pytest.mark.slow
def test_models_of_a_group_share_a_replica(data: Data, connected: None) -> None:
    """A replica has one program in memory, and loads the other one on demand."""
    shared = Replicas(group="shared", loaded=1)
    files = {
        "first": ModelFile(data.programs["whole"], replicas=shared),
        "second": ModelFile(data.programs["net"], replicas=shared),
    }
    x, expected = eager(data)
    cells = np.ones((3, 2), np.float32)
    with Fleet(files, Settings(), None, "127.0.0.1", 0, None) as fleet:
        fleet.deploy()
        client = triton.InferenceServerClient(f"127.0.0.1:{fleet.port}", network_timeout=60)
        for _ in range(3):
            assert_same(infer(client, triton, "first", cells), 2 * cells)
            assert_same(infer(client, triton, "second", x), expected)
        assert len(actors("shared")) == 1


def patient(port: int, model: str, x: np.ndarray) -> np.ndarray:
    """Send a request; repeat it for the status 503, whose message names a time."""
    client = triton.InferenceServerClient(f"127.0.0.1:{port}", network_timeout=60)
    for _ in range(60):
        try:
            return infer(client, triton, model, x)
        except triton.InferenceServerException as error:
            if error.status() != "503" or "try again in 1 s" not in str(error):
                raise
        sleep(1)
    raise AssertionError("the model has no replica for a minute")


def actors(deployment: str) -> list[Any]:
    """Return the actors of a deployment's replicas."""
    names = [row["name"] for row in ray.util.list_named_actors(all_namespaces=True)]
    return [ray.get_actor(name, namespace="serve") for name in names if f"#{deployment}#" in name]


@pytest.mark.slow
def test_the_command(data: Data, address: str, tmp_path: Path) -> None:
    """The same YAML file serves on a cluster. SIGHUP replaces the replicas, and SIGTERM ends them.

    A trace of the client goes through ingress and replica.
    """
    with socket.create_server(("127.0.0.1", 0)) as free, socket.create_server(("127.0.0.1", 0)) as another:
        port, grpc_port = free.getsockname()[1], another.getsockname()[1]
    x, expected = eager(data)
    with collecting() as (url, received):
        config = tmp_path / "server.yaml"
        ports = f"port: {port}\ngrpc_port: {grpc_port}"
        telemetry, models = f"telemetry: {{endpoint: {url!r}}}", f"models: {{net: {data.programs['net']}}}"
        config.write_text("\n".join([ports, f"ray: {address}", telemetry, models]))
        command = [sys.executable, "-m", "delegate", "serve", "--config", str(config)]
        with (
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
            ExitStack() as stack,
        ):
            stack.callback(process.kill)  # if a check fails
            assert process.stdout is not None
            assert process.stdout.readline() == f"http://127.0.0.1:{port}/v2/models/net\n"
            assert process.stdout.readline() == f"gRPC: 127.0.0.1:{grpc_port}\n"
            assert process.stdout.readline() == "serving 1 model on Ray, until SIGINT or SIGTERM\n"
            assert_same(patient(port, "net", x), expected)
            for _ in range(300):
                spans = [span for part in list(received) for scope in part.scope_spans for span in scope.spans]
                if len(spans) == 4:
                    break
                sleep(0.1)
            process.send_signal(signal.SIGHUP)
            assert process.stdout.readline() == "loaded again: net\n"
            assert_same(patient(port, "net", x), expected)
            grpc = triton_grpc.InferenceServerClient(f"127.0.0.1:{grpc_port}")
            assert_same(infer(grpc, triton_grpc, "net", x), expected)
            process.terminate()
            assert process.wait(60) == 0
            assert process.stdout.read().endswith("ended: all requests are answered\n")
    assert sorted(span.name for span in spans) == ["infer net", "infer net", "queue", "run"]
    assert len({span.trace_id for span in spans}) == 1
