"""Requests of clients that are not ours: types and shapes, as JSON and as binary data, and what a server describes."""

from __future__ import annotations

import shutil
import subprocess
from itertools import chain
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton

import delegate
from delegate.testing import assert_same

VALUES = {
    "BOOL": [[True, False, False], [False, True, True]],
    "UINT8": [[0, 1, 255], [2, 3, 4]],
    "UINT16": [[0, 1, 2**16 - 1], [2, 3, 4]],
    "UINT32": [[0, 1, 2**32 - 1], [2, 3, 4]],
    "UINT64": [[0, 1, 2**64 - 1], [2, 3, 4]],
    "INT8": [[-128, 127, 0], [1, 2, 3]],
    "INT16": [[-(2**15), 2**15 - 1, 0], [1, 2, 3]],
    "INT32": [[-(2**31), 2**31 - 1, 0], [1, 2, 3]],
    "INT64": [[-(2**63), 2**63 - 1, 0], [1, 2, 3]],
    "FP16": [[65504.0, -0.5, 0.25], [1, 2, 3]],
    "BF16": [[2.0**127, -0.5, 0.25], [1, 2, 3]],
    "FP32": [[3.0e38, -0.5, 0.1], [1, 2, 3]],
    "FP64": [[1.0e308, -0.5, 0.1], [1, 2, 3]],
}
NUMPY = {"BOOL": np.bool_, "FP16": np.float16, "BF16": ml_dtypes.bfloat16, "FP32": np.float32, "FP64": np.float64}


def numpy_type(name: str) -> Any:
    return NUMPY.get(name) or np.dtype(name.lower())


@pytest.mark.parametrize("is_binary_output", [True, False])
@pytest.mark.parametrize("is_binary", [True, False])
@pytest.mark.parametrize("name", VALUES)
def test_types_through_the_client_of_triton(served: Any, name: str, is_binary: bool, is_binary_output: bool) -> None:
    """The client writes no FP16 and BF16 as JSON; `test_types_as_json` does."""
    has_json = name not in ("FP16", "BF16")
    array = np.array(VALUES[name], numpy_type(name))
    given = triton.InferInput("x", list(array.shape), name)
    given.set_data_from_numpy(array, binary_data=is_binary or not has_json)
    wanted = triton.InferRequestedOutput("output", binary_data=is_binary_output or not has_json)
    with served.client() as client:
        answer = client.infer(f"types.{name.lower()}", [given], outputs=[wanted], request_id="7")
    result = answer.as_numpy("output")
    assert result.dtype == array.dtype
    assert result.tobytes() == array[:, ::-1].tobytes()
    assert answer.get_response()["id"] == "7"


@pytest.mark.parametrize("is_flat", [True, False])
@pytest.mark.parametrize("name", VALUES)
def test_types_as_json(served: Any, name: str, is_flat: bool) -> None:
    data = list(chain.from_iterable(VALUES[name])) if is_flat else VALUES[name]
    row = {"name": "x", "datatype": name, "shape": [2, 3], "data": data}
    reply = served.infer(f"types.{name.lower()}", {"inputs": [row]})
    assert reply.status == 200, reply.body
    assert reply.json["model_name"] == f"types.{name.lower()}"
    (output,) = reply.json["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("output", name, [2, 3])
    expected = np.array(VALUES[name], numpy_type(name))[:, ::-1].reshape(-1)
    assert np.array(output["data"], numpy_type(name)).tobytes() == expected.tobytes()


@pytest.mark.parametrize("kind", [triton, triton_grpc], ids=["http", "grpc"])
def test_data_that_is_not_aligned(served: Any, kind: Any) -> None:
    """Inputs of all types after an input of one byte, and results that include a tensor without dimensions."""
    arrays = {f"rows['{name}']": np.array([0, *VALUES[name][0]], numpy_type(name)) for name in VALUES}
    inputs = [kind.InferInput("flag", [], "BOOL").set_data_from_numpy(np.array(True))]
    inputs += [
        kind.InferInput(name, [4], name[6:-2]).set_data_from_numpy(np.array(array)) for name, array in arrays.items()
    ]
    port = served.port if kind is triton else served.grpc.port
    with kind.InferenceServerClient(f"127.0.0.1:{port}") as client:
        answer = client.infer("flips", inputs)
    assert answer.as_numpy("flag").tolist() is False
    for name, array in arrays.items():
        result = answer.as_numpy(name[6:-2])
        assert (result.dtype, result.tobytes()) == (array.dtype, array[::-1].tobytes()), name


def test_json_and_binary_data_in_one_request(served: Any) -> None:
    """Also an output that is not requested, and the order of the requested ones."""
    x, y = np.array([1.0, 2.0], np.float32), np.array([3.0, 5.0], np.float32)
    inputs = [triton.InferInput("x", [2], "FP32"), triton.InferInput("y", [2], "FP32")]
    inputs[0].set_data_from_numpy(x, binary_data=False)
    inputs[1].set_data_from_numpy(y, binary_data=True)
    outputs = [triton.InferRequestedOutput("sum", binary_data=False), triton.InferRequestedOutput("product")]
    with served.client() as client:
        both = client.infer("pair", inputs, outputs=outputs[::-1])
        one = client.infer("pair", inputs, outputs=outputs[:1])
    assert [row["name"] for row in both.get_response()["outputs"]] == ["product", "sum"]
    assert (both.as_numpy("sum").tolist(), both.as_numpy("product").tolist()) == ([4.0, 7.0], [3.0, 10.0])
    assert one.as_numpy("product") is None


def test_a_program_on_xnnpack(served: Any, programs: dict[str, Path]) -> None:
    images = np.random.default_rng(0).standard_normal((3, 3, 8, 8), np.float32)
    given = triton.InferInput("image", list(images.shape), "FP32").set_data_from_numpy(images)
    with served.client() as client:
        result = client.infer("net", [given], model_version="1", timeout=10_000_000).as_numpy("output")
    with delegate.load(programs["net"]) as program:
        assert {spec.backend for spec in program.program.delegates} == {"xnnpack"}
        assert_same(result, program(images), 0)


def test_many_clients_at_once(served: Any, programs: dict[str, Path]) -> None:
    """Asynchronous requests of several connections: each gets its own answer."""
    images = np.random.default_rng(0).standard_normal((20, 1, 3, 8, 8), np.float32)
    with served.client(concurrency=5) as client:
        inputs = [[triton.InferInput("image", [1, 3, 8, 8], "FP32").set_data_from_numpy(image)] for image in images]
        requests = [client.async_infer("net", given) for given in inputs]
        results = [request.get_result().as_numpy("output") for request in requests]
    with delegate.load(programs["net"]) as program:
        assert all(result.tobytes() == program(image).tobytes() for image, result in zip(images, results, strict=True))


def test_what_the_server_describes(served: Any) -> None:
    with served.client() as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.get_server_metadata()["version"] == delegate.__version__
        assert client.is_model_ready("pair", "1")
        assert not client.is_model_ready("absent")
        assert client.get_model_metadata("net") == {
            "name": "net",
            "versions": ["1"],
            "platform": "delegate",
            "inputs": [{"name": "image", "datatype": "FP32", "shape": [-1, 3, 8, 8]}],
            "outputs": [{"name": "output", "datatype": "FP32", "shape": [-1, 5]}],
        }
        names = {row["name"] for row in client.get_model_repository_index()}
    assert {"net", "pair", "lookup", "types.bool", "types.bf16"} < names


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_by_hand_with_curl(served: Any) -> None:
    url = f"http://127.0.0.1:{served.port}/v2/models/pair/infer"
    tensors = [{"name": name, "shape": [2], "datatype": "FP32", "data": [1, 2.5]} for name in "xy"]
    body = str({"inputs": tensors}).replace("'", '"')
    done = subprocess.run(["curl", "-sS", "-d", body, url], capture_output=True, text=True, check=True, timeout=30)
    assert '"data":[2.0,5.0]' in done.stdout
    chunked = ["curl", "-sS", "-H", "Transfer-Encoding: chunked", "-d", body, url]
    again = subprocess.run(chunked, capture_output=True, text=True, check=True, timeout=30)
    assert again.stdout == done.stdout


def test_metrics(served: Any) -> None:
    ok = 'delegate_requests_total{model="pair",status="200"}'
    wrong = 'delegate_requests_total{model="pair",status="400"}'
    runs = 'delegate_run_seconds_count{model="pair"}'
    before = [served.metric(name) for name in (ok, wrong, runs)]
    tensors = [{"name": name, "shape": [2], "datatype": "FP32", "data": [1, 2.5]} for name in "xy"]
    served.infer("pair", {"inputs": tensors})
    served.infer("pair", {"inputs": tensors[:1]})
    after = [served.metric(name) for name in (ok, wrong, runs)]
    assert [b - a for a, b in zip(before, after, strict=True)] == [1, 1, 1]
    assert served.metric('delegate_queue_requests{model="pair"}') == 0
