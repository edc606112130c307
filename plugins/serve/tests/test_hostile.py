"""Requests that are wrong, by mistake or on purpose: each has a clear error, and the server goes on."""

from __future__ import annotations

import socket
from typing import Any

import numpy as np
import orjson
import pytest

PAIR = {"x": [1.0, 2.0], "y": [3.0, 4.0]}
HEADER = "Inference-Header-Content-Length"


def tensor(name: str = "x", **changed: Any) -> dict[str, Any]:
    row = {"name": name, "shape": [2], "datatype": "FP32", "data": [1, 2.5]} | changed
    return {key: value for key, value in row.items() if value is not None}


def request(**changed: Any) -> dict[str, Any]:
    """Return a request for `pair` whose first input is changed."""
    return {"inputs": [tensor(**changed), tensor("y")]}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (request(name="z"), "the model has no input 'z'"),
        (request(name="y"), "input 'y' is given twice"),
        (request(name=7), "the name of an input should be a text"),
        ({"inputs": [tensor()]}, "the request has no input 'y'"),
        ({"inputs": {}}, "the inputs of the request should be a JSON array"),
        ({"inputs": [7]}, "an input should be a JSON object"),
        ({}, "the inputs of the request should be a JSON array"),
        ([], "the request should be a JSON object"),
        (request(datatype="INT32"), "input 'x' has the datatype 'INT32', not 'FP32'"),
        (request(datatype="BYTES", data=["a", "b"]), "input 'x' has the datatype 'BYTES', not 'FP32'"),
        (request(shape=[3]), "input 'x' has the shape [3], but the model takes [2]"),
        (request(shape=[1, 2]), "input 'x' has the shape [1, 2], but the model takes [2]"),
        (request(shape=[2**31]), "input 'x' has the shape [2147483648], but the model takes [2]"),
        (request(shape=[-2]), "the shape of input 'x' is no array of sizes"),
        (request(shape=[True, 2]), "the shape of input 'x' is no array of sizes"),
        (request(shape=[2.0]), "the shape of input 'x' is no array of sizes"),
        (request(shape=2), "the shape of input 'x' is no array of sizes"),
        (request(data=[1]), "the data of input 'x' has not the shape [2], which has 2 elements"),
        (request(data=[1, 2, 3]), "the data of input 'x' has not the shape [2]"),
        (request(data=[[1, 2]]), "the data of input 'x' has not the shape [2]"),
        (request(data="12"), "the data of input 'x' is no array"),
        (request(data=[1, "2"]), "input 'x' has elements that are no FP32: str"),
        (request(data=[1, None]), "input 'x' has elements that are no FP32: NoneType"),
        (request(data=[1, True]), "input 'x' has elements that are no FP32: bool"),
        (request(data=[1, [2]]), "input 'x' has elements that are no FP32: list"),
        (b'{"inputs": [{"name": "x", "shape": [2], "datatype": "FP32", "data": [1, 1e400]}]}', "not valid JSON"),
        (request(data=[1, 1e39]), "input 'x' has a number that is out of the range of FP32"),
        (request(data=None), "input 'x' has no data"),
        (request(parameters={"binary_data_size": 8}), "input 'x' has data both as JSON and as binary data"),
        (request(data=None, parameters={"binary_data_size": 8}), "8 bytes of binary data, but the body ends before"),
        (request(data=None, parameters={"binary_data_size": -8}), "the binary_data_size of input 'x' is no number"),
        (request(data=None, parameters={"binary_data_size": True}), "the binary_data_size of input 'x' is no number"),
        (request(data=None, parameters={"binary_data_size": 4}), "4 bytes of binary data, but FP32 of shape [2] has 8"),
        (request(parameters={"shared_memory_region": "a"}), "the parameter 'shared_memory_region' of input 'x'"),
        (request(parameters=[]), "the parameters of input 'x' should be a JSON object"),
        (request() | {"outputs": [{"name": "z"}]}, "the model has no output 'z'"),
        (request() | {"outputs": [{"name": "sum"}] * 2}, "output 'sum' is requested twice"),
        (request() | {"outputs": "sum"}, "the outputs of the request should be a JSON array"),
        (request() | {"outputs": [{"name": "sum", "parameters": {"classification": 1}}]}, "'classification' of output"),
        (request() | {"outputs": [{"name": "sum", "parameters": {"binary_data": 1}}]}, "should be true or false"),
        (request() | {"id": 7}, "the id of the request should be a text"),
        (request() | {"parameters": {"timeout": -1}}, "the timeout is no number of microseconds"),
        (request() | {"parameters": {"sequence_id": 3}}, "a sequence_id, but model 'pair' has no states"),
        (request() | {"parameters": {"sequence_id": 1.5}}, "the sequence_id should be a number or a text"),
        (request() | {"parameters": {"sequence_id": True}}, "the sequence_id should be a number or a text"),
        (request() | {"parameters": {"sequence_start": 1}}, "sequence_start should be true or false"),
        (b"", "the request is not valid JSON"),
        (b"{", "the request is not valid JSON"),
        (b"\xff\xfe", "the request is not valid JSON"),
        (b"[" * 100_000, "the request is not valid JSON"),
        (b'{"inputs": [{"name": "x", "shape": [2], "datatype": "FP32", "data": [1, NaN]}]}', "not valid JSON"),
        (b'{"inputs": [{"name": "x", "shape": [2], "datatype": "FP32", "data": [1, Infinity]}]}', "not valid JSON"),
    ],
)  # fmt: skip
def test_wrong_requests(served: Any, body: Any, message: str) -> None:
    reply = served.infer("pair", body)
    assert reply.status == 400, reply.body
    assert message in reply.error
    assert served.infer("pair", request()).status == 200


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("BOOL", [1, 0, 1], "no BOOL: int"),
        ("INT8", [1.5, 0, 1], "no INT8: float"),
        ("INT8", [128, 0, 1], "out of the range of INT8"),
        ("UINT8", [-1, 0, 1], "out of the range of UINT8"),
        ("INT64", [2**63, 0, 1], "out of the range of INT64"),
        ("INT64", [2**70, 0, 1], "INT64"),
        ("FP16", [65536, 0, 1], "out of the range of FP16"),
        ("BF16", [3.4e38, 0, 1], "out of the range of BF16"),
    ],
)
def test_numbers_that_a_type_does_not_have(served: Any, name: str, data: Any, message: str) -> None:
    row = tensor(datatype=name, shape=[2, 3], data=[*data, *data])
    reply = served.infer(f"types.{name.lower()}", {"inputs": [row]})
    assert reply.status == 400, reply.body
    assert message in reply.error


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ([2**31, 3, 8, 8], "the data of input 'image' has not the shape"),
        ([2**63, 3, 8, 8], "the data of input 'image' has not the shape"),
        ([0, 3, 8, 8], "batch must be 1 to 64"),
    ],
)
def test_sizes_out_of_range(served: Any, shape: list[int], message: str) -> None:
    reply = served.infer("net", {"inputs": [tensor("image", shape=shape, data=[])]})
    assert reply.status == 400
    assert message in reply.error


@pytest.mark.parametrize("name", ["FP32", "INT32"])
def test_sizes_of_no_elements(served: Any, name: str) -> None:
    """No array has the other sizes, though their product is 0."""
    row = {"name": "x", "datatype": name, "shape": [0, 2**62, 2**62], "data": []}
    reply = served.infer(f"sizes.{name}", {"inputs": [row]})
    assert (reply.status, reply.error) == (400, "the shape of input 'x' is too large")


def test_more_rows_than_the_export_allows(served: Any) -> None:
    data = np.zeros((65, 3, 8, 8), np.float32)
    assert "must be 1 to 64" in binary(served, "net", tensor("image", shape=[65, 3, 8, 8]), data.tobytes()).error


def test_an_index_out_of_range(served: Any) -> None:
    reply = served.infer("lookup", {"inputs": [tensor("ids", datatype="INT64", shape=[1, 3], data=[1, 2, 8])]})
    assert reply.status == 500
    assert "model 'lookup' failed: an index is out of range" in reply.error


def binary(served: Any, model: str, row: Any, data: bytes, size: int | None = None, header: Any = None) -> Any:
    """Send one input as binary data, of which the request declares another size or JSON header if given."""
    parameters = {"binary_data_size": len(data) if size is None else size}
    text = orjson.dumps({"inputs": [{k: v for k, v in row.items() if k != "data"} | {"parameters": parameters}]})
    return served.infer(model, text + data, {HEADER: str(len(text) if header is None else header)})


@pytest.mark.parametrize(
    ("data", "size", "header", "message"),
    [
        (bytes(5), None, None, "5 bytes of binary data, but INT8 of shape [2, 3] has 6"),
        (bytes(5), 6, None, "6 bytes of binary data, but the body ends before"),
        (bytes(7), 6, None, "the body has 1 bytes after the data of the last input"),
        (bytes(6), 2**63, None, "bytes of binary data, but INT8"),
        (bytes(6), None, 10**6, f"{HEADER.lower()} is 1000000, but the body has"),
        (bytes(6), None, 10**17, "the request has more than 8 MiB of JSON"),
        (bytes(6), None, 10**30, f"the header {HEADER.lower()} is no number of bytes"),
        (bytes(6), None, -1, f"the header {HEADER.lower()} is no number of bytes"),
        (bytes(6), None, "1e3", f"the header {HEADER.lower()} is no number of bytes"),
        (bytes(6), None, 0, "the request is not valid JSON"),
        (bytes(6), None, 12, "the request is not valid JSON"),
    ],
)
def test_wrong_binary_data(served: Any, data: Any, size: Any, header: Any, message: str) -> None:
    reply = binary(served, "types.int8", tensor(datatype="INT8", shape=[2, 3]), data, size, header)
    assert reply.status in (400, 413)
    assert message in reply.error


def test_bytes_that_are_no_truth_values(served: Any) -> None:
    reply = binary(served, "types.bool", tensor(datatype="BOOL", shape=[2, 3]), bytes([0, 1, 2, 0, 1, 1]))
    assert reply.status == 400
    assert "input 'x' has bytes that are no BOOL" in reply.error


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_results_that_json_does_not_have(served: Any, special: float) -> None:
    """They are exact as binary data, and an error as JSON, where a client would read another number."""
    array = np.array([[special, 1, 2], [3, 4, 5]], np.float32)
    row = tensor(shape=[2, 3], datatype="FP32")
    reply = binary(served, "types.fp32", row, array.tobytes())
    assert reply.status == 422
    assert "output 'output' has NaN or infinity, which JSON does not have" in reply.error
    text = orjson.dumps({
        "inputs": [{"name": "x", "shape": [2, 3], "datatype": "FP32", "parameters": {"binary_data_size": 24}}],
        "parameters": {"binary_data_output": True},
    })  # fmt: skip
    reply = served.infer("types.fp32", text + array.tobytes(), {HEADER: str(len(text))})
    assert reply.body[int(reply.headers[HEADER.lower()]) :] == array[:, ::-1].tobytes()


@pytest.mark.parametrize(
    ("verb", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v1/models/net", 404),
        ("GET", "/v2/models", 404),
        ("GET", "/v2/models/", 404),
        ("GET", "/v2/models/net/absent", 404),
        ("GET", "/v2/models/net/versions", 404),
        ("GET", "/v2/models/net/versions/2", 404),
        ("GET", "/v2/models/net/versions/1", 200),
        ("GET", "/v2/models/%2e%2e%2fnet", 404),
        ("GET", "/v2/models/net/infer", 405),
        ("POST", "/v2/models/net", 405),
        ("POST", "/v2/health/live", 405),
        ("DELETE", "/v2", 405),
        ("POST", "/v2/models/absent/infer", 404),
    ],
)
def test_paths(served: Any, verb: str, path: str, status: int) -> None:
    reply = served.request(verb, path)
    assert reply.status == status
    if status != 200:
        assert reply.error
    if status == 405:
        assert reply.headers["allow"] in ("GET, HEAD", "POST")


def test_compressed_requests(served: Any) -> None:
    reply = served.infer("pair", b"x", {"Content-Encoding": "gzip"})
    assert reply.status == 415
    assert "without compression" in reply.error


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # the begin of TLS
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v2/models/pair/infer HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
        b"POST /v2/models/pair/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nXYZ\r\n",
        b"GET /" + b"a" * 200_000,
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 50_000,
    ],
    ids=range(7),
)
def test_bytes_that_are_no_http(served: Any, data: Any) -> None:
    with served.connect() as connection:
        try:
            connection.sendall(data)
            answer = connection.recv(1 << 16)
        except ConnectionError:
            answer = b""
    assert answer == b"" or answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 404"))
    assert served.infer("pair", request()).status == 200


def test_clients_that_go_away(served: Any) -> None:
    """In the middle of headers, of a body, and before the answer."""
    head = b"POST /v2/models/pair/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n"
    for data in (b"", head[:20], head, head + b"{" * 10, head + b"{" * 1000):
        with served.connect() as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
    assert served.infer("pair", request()).status == 200
    assert served.request("GET", "/v2/health/ready").status == 200
