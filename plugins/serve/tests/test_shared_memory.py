"""Shared memory of clients on the same machine, with Triton's client: tensors, hostile requests, and memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
import tritonclient.utils.shared_memory as triton_memory
from delegate_serve.runtime.shared_memory import FOLDER, MAX_REGIONS
from tritonclient.utils import InferenceServerException
from typer.testing import CliRunner

from delegate.cli.app import app
from delegate.testing import assert_same

PREFIX = f"delegate-test-{os.getpid()}-"
KEY = f"{PREFIX}region"
PAIR = np.array([[1.0, 2.5], [3.0, -4.0]], np.float32)
SIZE = 64


@pytest.fixture(scope="module")
def served(programs: dict[str, Path]) -> Iterator[Any]:
    from .conftest import Served, Settings

    server = Served({name: programs[name] for name in ("pair", "net", "types")}, Settings(shared_memory=PREFIX))
    yield server
    server.close()


@pytest.fixture
def memory() -> Iterator[shared_memory.SharedMemory]:
    """A shared memory of SIZE bytes with the key KEY."""
    own = shared_memory.SharedMemory(KEY, create=True, size=SIZE)
    yield own
    own.close()
    own.unlink()


@pytest.fixture(params=["http", "grpc"])
def client(served: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A client of Triton's, and its module; it leaves no regions."""
    module = {"http": tritonclient.http, "grpc": tritonclient.grpc}[request.param]
    port = served.port if request.param == "http" else served.grpc.port
    with module.InferenceServerClient(f"127.0.0.1:{port}") as connection:
        yield connection, module
        connection.unregister_system_shared_memory()


def inputs(module: Any, is_mixed: bool = False) -> list[Any]:
    """Return the inputs of `pair`, in the region `r` from byte 8 on; the first one in the request if that is mixed."""
    x, y = (module.InferInput(name, [2], "FP32") for name in "xy")
    x = x.set_data_from_numpy(PAIR[0]) if is_mixed else x.set_shared_memory("r", 8, 8)
    return [x, y.set_shared_memory("r", 8, 16)]


@pytest.mark.parametrize("is_mixed", [False, True])
def test_inputs_and_outputs(client: Any, is_mixed: bool) -> None:
    connection, module = client
    handle = triton_memory.create_shared_memory_region("r", f"/{KEY}", SIZE, create_only=True)
    try:
        triton_memory.set_shared_memory_region(handle, [PAIR[0], PAIR[1]], 8)
        connection.register_system_shared_memory("r", f"/{KEY}", SIZE)
        placed = module.InferRequestedOutput("sum")
        placed.set_shared_memory("r", 8, 40)
        answer = connection.infer(
            "pair", inputs(module, is_mixed), outputs=[placed, module.InferRequestedOutput("product")]
        )
        assert_same(triton_memory.get_contents_as_numpy(handle, np.float32, [2], 40), PAIR[0] + PAIR[1])
        assert_same(answer.as_numpy("product"), PAIR[0] * PAIR[1])
    finally:
        triton_memory.destroy_shared_memory_region(handle)


def test_a_region_within_a_memory(client: Any, memory: shared_memory.SharedMemory) -> None:
    """Places count from the begin of the region, as in the status."""
    connection, module = client
    assert memory.buf is not None
    memory.buf[24:40] = PAIR.tobytes()
    connection.register_system_shared_memory("r", KEY, 48, offset=16)
    status = connection.get_system_shared_memory_status()
    row = status[0] if isinstance(status, list) else status.regions["r"]
    names = ("name", "key", "offset", "byte_size")
    fields = row if isinstance(row, dict) else {name: getattr(row, name) for name in names}
    assert fields == {"name": "r", "key": KEY, "offset": 16, "byte_size": 48}
    assert_same(connection.infer("pair", inputs(module)).as_numpy("sum"), PAIR[0] + PAIR[1])
    connection.unregister_system_shared_memory("r")
    with pytest.raises(InferenceServerException, match="names no region"):
        connection.get_system_shared_memory_status("r")


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"key": f"{PREFIX}absent"}, 400, "cannot be opened: No such file or directory"),
        ({"key": "other"}, 403, "does not begin with"),
        ({"key": 7}, 400, "the key of the region should be a text"),
        ({"key": ""}, 400, "is no name of shared memory"),
        ({"key": ".."}, 400, "is no name of shared memory"),
        ({"key": f"{KEY}/../../../etc/passwd"}, 400, "is no name of shared memory"),
        ({"key": f"{KEY}\0"}, 400, "is no name of shared memory"),
        ({"key": PREFIX + "a" * 300}, 400, "is no name of shared memory"),
        ({"key": PREFIX + "link"}, 400, "cannot be opened: Too many levels of symbolic links"),
        ({"key": PREFIX + "pipe"}, 400, "is no shared memory"),
        ({"byte_size": SIZE + 5000}, 400, f"the region ends at byte {SIZE + 5000}, but the shared memory"),
        ({"offset": 1}, 400, "the region ends at byte 65, but the shared memory"),
        ({"offset": 2**63, "byte_size": 2**63}, 400, "the region ends at byte"),
        ({"offset": -1}, 400, "the offset of the region is no number of bytes"),
        ({"byte_size": True}, 400, "the byte_size of the region is no number of bytes"),
        ({"byte_size": 1.5}, 400, "the byte_size of the region is no number of bytes"),
        ({"byte_size": None}, 400, "the byte_size of the region is no number of bytes"),
    ],
)  # fmt: skip
def test_regions_that_do_not_exist(
    served: Any, memory: shared_memory.SharedMemory, fields: Any, status: int, message: str
) -> None:
    paths = FOLDER / f"{PREFIX}link", FOLDER / f"{PREFIX}pipe"
    paths[0].symlink_to("/etc/passwd")
    os.mkfifo(paths[1])
    try:
        body = {"key": KEY, "byte_size": SIZE} | fields
        reply = served.request("POST", "/v2/systemsharedmemory/region/r/register", body)
    finally:
        for path in paths:
            path.unlink()
    assert reply.status == status
    assert message in reply.error
    assert served.request("GET", "/v2/systemsharedmemory/status").json == []


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"shared_memory_region": "s"}, "input 'x' names no region that is registered"),
        ({"shared_memory_offset": 60}, "input 'x' ends at byte 68, but region 'r' has 64"),
        ({"shared_memory_offset": -8}, "the place of input 'x' in shared memory is no number of bytes"),
        ({"shared_memory_offset": 2**62}, "input 'x' ends at byte"),
        ({"shared_memory_byte_size": 12}, "input 'x' has 12 bytes in shared memory, but FP32 of shape [2] has 8"),
        ({"shared_memory_byte_size": "8"}, "the place of input 'x' in shared memory is no number of bytes"),
        ({"shared_memory_region": 7}, "the shared_memory_region of input 'x' should be a text"),
        ({"binary_data_size": 8}, "input 'x' has data both in shared memory and in the request"),
    ],
)
def test_places_that_do_not_exist(
    served: Any, memory: shared_memory.SharedMemory, parameters: Any, message: str
) -> None:
    register_region(served)
    reply = served.infer("pair", request(parameters))
    served.request("POST", "/v2/systemsharedmemory/unregister")
    assert reply.status == 400
    assert message in reply.error


def register_region(served: Any, name: str = "r") -> Any:
    return served.request("POST", f"/v2/systemsharedmemory/region/{name}/register", {"key": KEY, "byte_size": SIZE})


def request(parameters: Any = {}, output: Any = None) -> dict[str, Any]:  # noqa: B006
    """Return a request for `pair` in the region `r`."""
    place = {"shared_memory_region": "r", "shared_memory_byte_size": 8}
    rows = [{"name": name, "shape": [2], "datatype": "FP32", "parameters": dict(place)} for name in "xy"]
    rows[0]["parameters"] = place | parameters
    outputs = [{"name": "sum", "parameters": place | (output or {})}]
    return {"inputs": rows, "outputs": outputs}


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ({"shared_memory_byte_size": 4}, "output 'sum' has 8 bytes, but its place in shared memory has 4"),
        ({"shared_memory_region": "s"}, "output 'sum' names no region that is registered"),
        ({"shared_memory_offset": 60}, "output 'sum' ends at byte 68, but region 'r' has 64"),
    ],
)
def test_outputs_that_do_not_fit(served: Any, memory: shared_memory.SharedMemory, output: Any, message: str) -> None:
    register_region(served)
    reply = served.infer("pair", request(output=output))
    served.request("POST", "/v2/systemsharedmemory/unregister")
    assert reply.status == 400
    assert message in reply.error
    assert memory.buf is not None
    assert bytes(memory.buf[:SIZE]) == bytes(SIZE)


def test_a_memory_that_becomes_smaller(served: Any, memory: shared_memory.SharedMemory) -> None:
    """A mapped memory would end the server with SIGBUS."""
    register_region(served)
    os.truncate(FOLDER / KEY, 4)
    reply = served.infer("pair", request())
    os.truncate(FOLDER / KEY, SIZE)
    served.request("POST", "/v2/systemsharedmemory/unregister")
    assert (reply.status, reply.error) == (400, "the memory of input 'x' is smaller than its region 'r'")


def open_files() -> int:
    """Return the number of descriptors for the memory in this process."""
    links = [os.path.realpath(f"/proc/self/fd/{file}") for file in os.listdir("/proc/self/fd")]
    return links.count(str(FOLDER / KEY))


def test_the_number_of_regions(served: Any, memory: shared_memory.SharedMemory) -> None:
    before = open_files()
    replies = [register_region(served, f"r{n}").status for n in range(MAX_REGIONS + 1)]
    assert replies == [200] * MAX_REGIONS + [400]
    assert "is a region 'r0' already" in register_region(served, "r0").error
    served.request("POST", "/v2/systemsharedmemory/unregister")
    assert open_files() == before


def test_the_memory_of_requests_counts(
    serve: Any, programs: dict[str, Path], memory: shared_memory.SharedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small request must not make the server copy more than all requests may have."""
    monkeypatch.setattr("delegate_serve.runtime.http.BODIES_IN_MEMORY", 1)
    served = serve({"pair": programs["pair"]}, shared_memory=PREFIX, max_body=340)
    register_region(served)
    assert served.infer("pair", request() | {"outputs": []}).status == 200
    monkeypatch.setattr("delegate_serve.runtime.shared_memory.aligned", lambda size: pytest.fail("allocated"))
    served.server._application._in_memory = 330 - len(str(request())) // 2
    assert served.infer("pair", request() | {"outputs": []}).status == 429


def test_it_is_off_by_default(serve: Any, programs: dict[str, Path], memory: shared_memory.SharedMemory) -> None:
    served = serve({"pair": programs["pair"]})
    assert register_region(served).status == 403
    assert "--shared-memory" in register_region(served).error
    assert "'shared_memory_region' of input 'x' needs the server's option" in served.infer("pair", request()).error
    assert "system_shared_memory" not in served.request("GET", "/v2").json["extensions"]


def test_a_system_without_it(programs: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("delegate_serve.runtime.shared_memory.FOLDER", tmp_path / "absent")
    done = CliRunner().invoke(app, ["serve", str(programs["pair"]), "--port", "0", "--shared-memory", ""])
    assert done.exit_code == 1
    assert "which this system does not have" in done.stderr
