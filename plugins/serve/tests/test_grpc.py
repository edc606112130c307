"""The protocol over gRPC, with Triton's client: types, errors, limits, and the shutdown."""

from __future__ import annotations

import gc
import socket
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from time import sleep
from typing import Any

import grpc
import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as triton
from delegate_serve.runtime import grpc_service
from delegate_serve.runtime.errors import RequestError
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException
from typer.testing import CliRunner

import delegate
from delegate.cli.app import app
from delegate.testing import assert_same

TYPES = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "FP32": np.float32,
    "FP64": np.float64,
}
CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}


def client(served: Any) -> triton.InferenceServerClient:
    return triton.InferenceServerClient(f"127.0.0.1:{served.grpc.port}")


def pair(**changed: Any) -> list[triton.InferInput]:
    """Return the inputs of `pair`."""
    inputs = [triton.InferInput(changed.get("name", "x"), [2], "FP32"), triton.InferInput("y", [2], "FP32")]
    return [i.set_data_from_numpy(np.array([1.0, 2.5], np.float32)) for i in inputs]


@pytest.mark.parametrize("name", TYPES)
def test_types(served: Any, name: str) -> None:
    array = np.array([[0, 1, 1], [1, 0, 0]]).astype(TYPES[name])
    given = triton.InferInput("x", [2, 3], name).set_data_from_numpy(array)
    with client(served) as connection:
        answer = connection.infer(f"types.{name.lower()}", [given], request_id="7")
    assert answer.as_numpy("output").tobytes() == array[:, ::-1].tobytes()
    assert (answer.get_response().id, answer.get_response().outputs[0].datatype) == ("7", name)


@pytest.mark.parametrize("name", CONTENTS)
def test_contents_by_type(served: Any, name: str) -> None:
    """Elements in fields of their types, as other clients send them, with the messages of Triton."""
    numbers = [False, True, True, False, False, True] if name == "BOOL" else [0, 1, 2, 3, 4, 5]
    row = service_pb2.ModelInferRequest.InferInputTensor(name="x", datatype=name, shape=[2, 3])
    getattr(row.contents, CONTENTS[name]).extend(numbers)
    request = service_pb2.ModelInferRequest(model_name=f"types.{name.lower()}", inputs=[row])
    with grpc.insecure_channel(f"127.0.0.1:{served.grpc.port}") as channel:
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelInferResponse.FromString,
        )
        answer = call(request)
    expected = np.array(numbers, TYPES[name]).reshape(2, 3)[:, ::-1]
    assert answer.raw_output_contents[0] == expected.tobytes()


def test_special_values(served: Any) -> None:
    array = np.array([[np.nan, np.inf, -np.inf], [0.0, -0.0, 1]], np.float32)
    given = triton.InferInput("x", [2, 3], "FP32").set_data_from_numpy(array)
    with client(served) as connection:
        assert connection.infer("types.fp32", [given]).as_numpy("output").tobytes() == array[:, ::-1].tobytes()


def test_a_program_on_xnnpack(served: Any, programs: dict[str, Path]) -> None:
    images = np.random.default_rng(0).standard_normal((3, 3, 8, 8), np.float32)
    given = triton.InferInput("image", list(images.shape), "FP32").set_data_from_numpy(images)
    with client(served) as connection:
        result = connection.infer("net", [given], model_version="1").as_numpy("output")
    with delegate.load(programs["net"]) as program:
        assert {spec.backend for spec in program.program.delegates} == {"xnnpack"}
        assert_same(result, program(images), 0)


def test_requested_outputs(served: Any) -> None:
    with client(served) as connection:
        answer = connection.infer("pair", pair(), outputs=[triton.InferRequestedOutput("product")])
    assert answer.as_numpy("product").tolist() == [1.0, 6.25]
    assert answer.as_numpy("sum") is None


def test_what_the_server_describes(served: Any) -> None:
    with client(served) as connection:
        assert connection.is_server_live()
        assert connection.is_server_ready()
        assert connection.is_model_ready("net", "1")
        assert not connection.is_model_ready("net", "2")
        assert not connection.is_model_ready("absent")
        assert connection.get_server_metadata().version == delegate.__version__
        model = connection.get_model_metadata("net", as_json=True)
    assert model["inputs"] == [{"name": "image", "datatype": "FP32", "shape": ["-1", "3", "8", "8"]}]


def error(served: Any, *args: Any, **settings: Any) -> InferenceServerException:
    with client(served) as connection, pytest.raises(InferenceServerException) as caught:
        connection.infer(*args, **settings)
    return caught.value


def test_wrong_requests(served: Any) -> None:
    table = [
        (("absent", pair()), "StatusCode.NOT_FOUND", "there is no model 'absent'"),
        (("pair", pair(), "2"), "StatusCode.NOT_FOUND", "model 'pair' has no version '2'"),
        (("pair", pair(name="z")), "StatusCode.INVALID_ARGUMENT", "the model has no input 'z'"),
        (("pair", pair()[:1]), "StatusCode.INVALID_ARGUMENT", "the request has no input 'y'"),
        (("net", pair()), "StatusCode.INVALID_ARGUMENT", "the model has no input 'x'"),
    ]
    for args, status, message in table:
        caught = error(served, *args)
        assert caught.status() == status
        assert message in caught.message()
    ids = triton.InferInput("ids", [1, 3], "INT64").set_data_from_numpy(np.array([[1, 2, 8]]))
    caught = error(served, "lookup", [ids])
    assert (caught.status(), "out of range" in caught.message()) == ("StatusCode.INTERNAL", True)
    assert error(served, "pair", pair(), sequence_id=5).status() == "StatusCode.INVALID_ARGUMENT"


def test_hostile_messages(served: Any) -> None:
    """Bytes that are not a message, and data that does not fit its shape."""
    tensor = service_pb2.ModelInferRequest.InferInputTensor
    wide = tensor(name="x", datatype="INT8", shape=[2**40, 2**40])
    both = tensor(name="x", datatype="INT8", shape=[2, 3])
    both.contents.int_contents.extend([0] * 6)
    other = tensor(name="x", datatype="INT8", shape=[2, 3])
    other.contents.fp32_contents.extend([0.0] * 6)
    infer = service_pb2.ModelInferRequest
    name = "types.int8"
    table = [
        (b"\xff" * 20, grpc.StatusCode.INVALID_ARGUMENT),
        (infer(model_name=name, inputs=[wide], raw_input_contents=[b"123456"]), grpc.StatusCode.INVALID_ARGUMENT),
        (infer(model_name=name, inputs=[both], raw_input_contents=[b"123456"]), grpc.StatusCode.INVALID_ARGUMENT),
        (infer(model_name=name, inputs=[other]), grpc.StatusCode.INVALID_ARGUMENT),
        (infer(model_name=name, inputs=[both], raw_input_contents=[b"1", b"2"]), grpc.StatusCode.INVALID_ARGUMENT),
        (infer(model_name=name, inputs=[tensor()]), grpc.StatusCode.INVALID_ARGUMENT),
        (infer(), grpc.StatusCode.NOT_FOUND),
        (bytes(3 << 20), grpc.StatusCode.RESOURCE_EXHAUSTED),  # more than the limit of the server
    ]
    with grpc.insecure_channel(f"127.0.0.1:{served.grpc.port}") as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        for message, code in table:
            with pytest.raises(grpc.RpcError) as caught:
                call(message if isinstance(message, bytes) else message.SerializeToString())
            assert caught.value.code() is code, caught.value.details()
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/inference.GRPCInferenceService/ModelStatistics")(b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    with client(served) as connection:
        assert connection.infer("pair", pair()).as_numpy("sum").tolist() == [2.0, 5.0]


def test_a_full_queue_and_a_shutdown(serve: Any, programs: dict[str, Path]) -> None:
    """Requests that have arrived are answered, and a further one gets the time after which to try again."""
    served = serve({"pair": programs["pair"]}, queue=1)
    worker = served.models.by_name["pair"].worker
    run, opened, began = worker._method, Event(), Event()

    def wait(leaves: Any) -> Any:
        began.set()
        assert opened.wait(20)
        return run(leaves)

    worker._method = wait

    def infer() -> list[float]:
        with client(served) as connection:
            numbers: list[float] = connection.infer("pair", pair()).as_numpy("sum").tolist()
            return numbers

    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(infer)
        assert began.wait(20)
        waiting = pool.submit(infer)
        while not worker.waiting:
            sleep(0.001)
        caught = error(served, "pair", pair())
        assert caught.status() == "StatusCode.RESOURCE_EXHAUSTED"
        assert "try again in 1 s" in caught.message()
        served.server.should_exit = True
        while not served.server._application.is_closing:
            sleep(0.01)
        opened.set()
        assert [future.result() for future in (running, waiting)] == [[2.0, 5.0], [2.0, 5.0]]


def test_requests_of_clients_that_leave(serve: Any, programs: dict[str, Path]) -> None:
    """They are not failures of the server."""
    served = serve({"net": programs["net"]}, batch=8, batch_delay=0.5)
    image = triton.InferInput("image", [1, 3, 8, 8], "FP32").set_data_from_numpy(np.zeros((1, 3, 8, 8), np.float32))
    with client(served) as connection:
        call = connection.async_infer("net", [image], lambda result, error: None)
        while not served.metric('delegate_queue_requests{model="net"}'):
            sleep(0.001)
        call.cancel()
        while not served.metric('delegate_request_seconds_count{model="net"}'):
            sleep(0.001)
    assert served.metric('delegate_requests_total{model="net",status="499"}') == 1
    assert served.metric('delegate_requests_total{model="net",status="500"}') == 0


def test_a_port_in_use(programs: dict[str, Path]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        stderr = CliRunner().invoke(app, ["serve", "absent.dlg", "--port", "0", "--grpc-port", port]).stderr
    assert f"cannot serve on port {port} of '127.0.0.1'" in stderr


def test_a_wrong_request_leaves_no_memory(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An abort of gRPC leaves a cycle of references, which must not hold the data of the request."""
    data = list[Any]()

    def check(fields: Any, array: Any, *_: Any) -> Any:
        data.append(weakref.ref(array))
        raise RequestError(400, "wrong")

    monkeypatch.setattr(grpc_service, "check", check)
    gc.disable()
    try:
        with client(served) as connection, pytest.raises(InferenceServerException, match="wrong"):
            connection.infer("pair", pair())
        assert [array() for array in data] == [None]
    finally:
        gc.enable()
