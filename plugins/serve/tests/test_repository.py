"""The repository of models: loaded on demand within a limit of memory, and loaded and unloaded by clients."""

from __future__ import annotations

import gc
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton
from delegate_serve.runtime import programs as programs_module
from delegate_serve.runtime.pool import Pool
from delegate_serve.runtime.settings import MIB
from tritonclient.utils import InferenceServerException

from delegate.errors import ConfigError

PAIR = {"inputs": [{"name": name, "shape": [2], "datatype": "FP32", "data": [1, 2.5]} for name in "xy"]}
NET = {"inputs": [{"name": "image", "shape": [1, 3, 8, 8], "datatype": "FP32", "data": [0.5] * 192}]}


def states(served: Any) -> dict[str, str]:
    """Return the states of the models by name."""
    return {row["name"]: row["state"] for row in served.request("POST", "/v2/repository/index").json}


@pytest.fixture
def sized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs with an arena of 1 MiB each."""
    monkeypatch.setattr(programs_module, "_arenas", lambda program: MIB)


@pytest.mark.usefixtures("sized")
def test_the_least_recently_used_program_gives_way(serve: Any, programs: dict[str, Path]) -> None:
    """Two of three programs fit. All of them have their metadata, are ready, and answer."""
    names = ("pair", "net", "lookup")
    served = serve({name: programs[name] for name in names}, memory=5 * MIB // 2)
    assert states(served) == {"pair": "UNAVAILABLE", "net": "READY", "lookup": "READY"}
    assert served.request("GET", "/v2/models/pair").json["inputs"][0]["name"] == "x"
    assert served.request("GET", "/v2/models/pair/ready").status == 200
    assert served.request("GET", "/v2/health/ready").status == 200
    assert served.infer("net", NET).status == 200
    assert served.infer("pair", PAIR).json["outputs"][0]["data"] == [2, 5]
    assert states(served) == {"pair": "READY", "net": "READY", "lookup": "UNAVAILABLE"}
    rows = served.request("POST", "/v2/repository/index", {"ready": True}).json
    assert {row["name"] for row in rows} == {"pair", "net"}


@pytest.mark.usefixtures("sized")
def test_requests_wait_for_a_program_and_are_not_lost(serve: Any, programs: dict[str, Path]) -> None:
    """Each program is evicted many times, while requests for all of them arrive."""
    served = serve({name: programs[name] for name in ("pair", "net")}, memory=3 * MIB // 2)
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda n: served.infer(*(("pair", PAIR), ("net", NET))[n % 2]), range(40)))
    assert [reply.status for reply in replies] == [200] * 40


@pytest.mark.usefixtures("sized")
def test_a_program_in_use_does_not_give_way(serve: Any, programs: dict[str, Path]) -> None:
    served = serve({name: programs[name] for name in ("pair", "net")}, memory=3 * MIB // 2, timeout=0.3)
    begun, opened = Event(), Event()
    worker = served.models.by_name["net"].worker
    run = worker._method

    def wait(leaves: Any) -> Any:
        begun.set()
        assert opened.wait(20)
        return run(leaves)

    worker._method = wait
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(served.infer, "net", NET)
        assert begun.wait(20)
        reply = served.infer("pair", PAIR)
        assert reply.status == 429
        assert "program 'pair' was not loaded in time, since others need the memory" in reply.error
        opened.set()
        assert running.result().status in (200, 504)
    assert served.infer("pair", PAIR).status == 200


def test_a_program_that_is_too_large(serve: Any, programs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs_module, "_arenas", lambda program: 5 * MIB)
    for limit, text in (("memory", "but --memory is 2 MiB"), ("model_memory", "but --model-memory is 2 MiB")):
        with pytest.raises(ConfigError, match="program 'pair' needs 6 MiB") as caught:
            serve({"pair": programs["pair"]}, **{limit: 2 * MIB})
        assert text in str(caught.value)


def test_clients_load_and_unload(serve: Any, programs: dict[str, Path]) -> None:
    """Triton's clients, over HTTP and gRPC. A program of several methods has several models."""
    served = serve({name: programs[name] for name in ("pair", "types")}, control=True)
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{served.grpc.port}") as rpc, served.client() as http:
        for client in (http, rpc):
            client.unload_model("pair")
            assert states(served)["pair"] == "UNAVAILABLE"
            assert not client.is_model_ready("pair")
            reply = served.infer("pair", PAIR)
            assert (reply.status, reply.error) == (404, "program 'pair' is unloaded: load it before")
            client.load_model("pair")
            assert client.is_model_ready("pair")
            assert served.infer("pair", PAIR).status == 200
        rows = {row["name"]: row for row in http.get_model_repository_index()}
        assert rows["pair"] == {"name": "pair", "version": "1", "state": "READY"}
        assert [row.name for row in rpc.get_model_repository_index().models] == list(rows)
        http.unload_model("types.int8")
        assert {name for name, state in states(served).items() if state != "READY"} == set(rows) - {"pair"}
        rows = {row.name: row for row in rpc.get_model_repository_index().models}
        assert (rows["types.fp32"].state, rows["types.fp32"].reason) == ("UNAVAILABLE", "unloaded")
        for client in (http, rpc):
            with pytest.raises(InferenceServerException, match="there is no program 'pear'"):
                client.load_model("pear")
            with pytest.raises(InferenceServerException, match="a model is loaded from its file, without parameters"):
                client.load_model("pair", config="{}")


def test_a_closed_program_has_no_memory(serve: Any, programs: dict[str, Path], tmp_path: Path) -> None:
    """Its file is not mapped any more: neither a thread that has run it, nor its description keeps it."""
    path = tmp_path / "lookup.dlg"
    shutil.copy(programs["lookup"], path)
    served = serve({"lookup": path}, control=True, threads=2)

    def mappings() -> int:
        gc.collect()
        return Path("/proc/self/maps").read_text().count(str(path))

    body = {"inputs": [{"name": "ids", "shape": [1, 3], "datatype": "INT64", "data": [0, 1, 7]}]}
    for _ in range(3):
        with ThreadPoolExecutor(4) as pool:
            assert [reply.status for reply in pool.map(served.infer, ["lookup"] * 20, [body] * 20)] == [200] * 20
        assert mappings() == 1
        assert served.request("POST", "/v2/repository/models/lookup/load").status == 200
    assert served.request("POST", "/v2/repository/models/lookup/unload").status == 200
    assert mappings() == 0
    assert served.request("POST", "/v2/repository/models/lookup/load").status == 200
    assert served.infer("lookup", body).status == 200


@pytest.mark.parametrize("verb", ["load", "unload"])
@pytest.mark.parametrize("kind", [triton, triton_grpc], ids=["http", "grpc"])
def test_a_client_that_leaves_stops_no_change(serve: Any, programs: dict[str, Path], kind: Any, verb: str) -> None:
    """The old program is closed after its requests, also if the client does not wait for that."""
    served = serve({"net": programs["net"]}, control=True, batch=8, batch_delay=1.0)
    old = served.models.by_name["net"].worker
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(served.infer, "net", NET)
        while not served.metric('delegate_queue_requests{model="net"}'):
            sleep(0.001)
        if kind is triton:
            change = getattr(served.client(network_timeout=0.3), f"{verb}_model")
        else:
            client = triton_grpc.InferenceServerClient(f"127.0.0.1:{served.grpc.port}")
            change = partial(getattr(client, f"{verb}_model"), client_timeout=0.3)
        with pytest.raises((TimeoutError, InferenceServerException)):
            change("net")
        assert answer.result().status == 200
    until = monotonic() + 5
    while old.is_alive:
        assert monotonic() < until
        sleep(0.001)
    state = {"load": "READY", "unload": "UNAVAILABLE"}[verb]
    assert [row["state"] for row in served.models.index()] == [state]


def test_load_takes_a_new_file(serve: Any, programs: dict[str, Path], tmp_path: Path) -> None:
    """If that is damaged, the old program stays, or stays unloaded."""
    path = tmp_path / "net.dlg"
    shutil.copy(programs["pair"], path)
    served = serve({"net": path}, control=True)
    assert served.infer("net", PAIR).status == 200
    (tmp_path / "damaged").write_bytes(b"x" * 100)
    (tmp_path / "damaged").replace(path)
    reply = served.request("POST", "/v2/repository/models/net/load")
    assert (reply.status, "program 'net' cannot be loaded: " in reply.error) == (400, True)
    assert served.infer("net", PAIR).status == 200
    assert served.request("POST", "/v2/repository/models/net/unload").status == 200
    assert served.request("POST", "/v2/repository/models/net/load").status == 400
    assert served.infer("net", PAIR).status == 404
    assert served.models.index()[0]["reason"] == "unloaded"
    shutil.copy(programs["net"], tmp_path / "new")
    (tmp_path / "new").replace(path)
    assert served.request("POST", "/v2/repository/models/net/load").status == 200
    assert served.infer("net", NET).status == 200


@pytest.mark.parametrize("verb", ["load", "unload"])
def test_clients_need_permission(serve: Any, programs: dict[str, Path], verb: str) -> None:
    served = serve({"pair": programs["pair"]})
    reply = served.request("POST", f"/v2/repository/models/pair/{verb}")
    assert (reply.status, reply.error.endswith("start the server with --control")) == (403, True)
    with (
        triton_grpc.InferenceServerClient(f"127.0.0.1:{served.grpc.port}") as client,
        pytest.raises(InferenceServerException, match="PERMISSION_DENIED"),
    ):
        getattr(client, f"{verb}_model")("pair")
    assert states(served) == {"pair": "READY"}


def test_priorities_of_requests_and_models(serve: Any, programs: dict[str, Path]) -> None:
    """One thread runs all models, and what waits runs by priority, and then in its order."""
    served = serve({"pair": programs["pair"], "net": programs["net"]}, threads=1)
    begun, opened, order = Event(), Event(), []
    workers = {name: served.models.by_name[name].worker for name in ("pair", "net")}
    runs = {name: worker._method for name, worker in workers.items()}

    def record(name: str, leaves: Any) -> Any:
        begun.set()
        assert opened.wait(20)
        order.append((name, float(np.ravel(leaves[0])[0])))
        return runs[name](leaves)

    for name, worker in workers.items():
        worker._method = lambda leaves, name=name: record(name, leaves)

    def ask(name: str, number: float, priority: int) -> int:
        body = {"pair": PAIR, "net": NET}[name]
        first, *rest = body["inputs"]
        data = [number, *first["data"][1:]]
        inputs = [first | {"data": data}, *rest]
        return int(served.infer(name, {"inputs": inputs, "parameters": {"priority": priority}}).status)

    requests = [("pair", 1, 0), ("net", 2, 0), ("pair", 3, 7), ("net", 4, 3), ("pair", 5, 3)]
    with ThreadPoolExecutor(6) as pool:
        results = [pool.submit(ask, "pair", 0, 0)]
        assert begun.wait(20)
        for number, request in enumerate(requests):
            results.append(pool.submit(ask, *request))
            while sum(worker.waiting for worker in workers.values()) <= number:
                sleep(0.001)
        opened.set()
        assert [result.result() for result in results] == [200] * 6
    assert order == [("pair", 0), ("net", 4), ("pair", 5), ("pair", 3), ("net", 2), ("pair", 1)]


def test_the_pool_ends_after_its_calls() -> None:
    pool, done = Pool(2), []
    for number in range(20):
        pool.submit(0, lambda number=number: done.append(number))
    pool.close()
    assert sorted(done) == list(range(20))
