"""Replicas that follow the load: `delegate serve --ray` on a real cluster, and many clients."""

from __future__ import annotations

import signal
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest
import torch

import delegate
from delegate.testing import assert_same
from tests.support.lowering import assert_runs

from .conftest import metrics

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of pydantic in Ray Serve
    pytest.importorskip("ray.serve")
    import ray
import tritonclient.http as triton

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of Ray's own threads and sockets
CLIENTS = 12
WIDTH = 1024


def test_replicas_follow_the_load(address: str, tmp_path: Path) -> None:
    """Replicas grow under load and shrink after it, while each request has its result, without a second attempt."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(8))).eval()
    x = torch.randn(64, WIDTH)
    program = delegate.to_backend(torch.export.export(module, (x,)), "xnnpack")
    assert_runs(program, "xnnpack")
    program.save(tmp_path / "slow.dlg")
    with torch.no_grad():
        expected = module(x)
    (tmp_path / "server.yaml").write_text(
        "models:\n  slow: {path: slow.dlg, replicas: {min: 1, max: 2, target: 2, grow_delay: 1, shrink_delay: 3}}\n"
    )
    command = [sys.executable, "-m", "delegate", "serve", "--config", str(tmp_path / "server.yaml"), "--port", "0"]
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    with (
        subprocess.Popen([*command, "--ray", address], stdout=subprocess.PIPE, text=True) as process,
        ThreadPoolExecutor(CLIENTS) as pool,
    ):
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline().split(":")[2].partition("/")[0])
            ended = Event()
            clients = [pool.submit(load, port, x.numpy(), expected.numpy(), ended) for _ in range(CLIENTS)]
            wait_until(2)
            sleep(5)
            ended.set()
            answers = sum(client.result() for client in clients)
            wait_until(1)
            infer(triton.InferenceServerClient(f"127.0.0.1:{port}", network_timeout=60), x.numpy())
            served = metrics(port)
            assert f'delegate_requests_total{{model="slow",status="200"}} {answers + 1}.0' in served
            assert 'status="5' not in served
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
            ray.shutdown()


def load(port: int, x: np.ndarray, expected: np.ndarray, ended: Event) -> int:
    """Send requests until the end; return their number."""
    client = triton.InferenceServerClient(f"127.0.0.1:{port}", network_timeout=60)
    count = 0
    while not ended.is_set():
        assert_same(infer(client, x), expected)
        count += 1
    return count


def infer(client: Any, x: np.ndarray) -> np.ndarray:
    tensor = triton.InferInput("input", list(x.shape), "FP32")
    tensor.set_data_from_numpy(x)
    found = client.infer("slow", [tensor]).as_numpy("output")
    assert found is not None
    return found


def wait_until(count: int) -> None:
    """Wait until there are so many replicas."""
    end = monotonic() + 90
    while len([row for row in ray.util.list_named_actors(all_namespaces=True) if "#slow#" in row["name"]]) != count:
        assert monotonic() < end, f"there are not {count} replicas"
        sleep(0.1)
