"""The open inference protocol over gRPC, on the event loop and with the models of the server for HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import grpc
import numpy as np
from google.protobuf.message import DecodeError

import delegate
from delegate.errors import ConfigError
from delegate_serve.runtime.bodies import Reservation
from delegate_serve.runtime.catalog import Catalog
from delegate_serve.runtime.datatypes import NAMES
from delegate_serve.runtime.errors import RequestError, shuts_down, status_of
from delegate_serve.runtime.http import in_thread_if
from delegate_serve.runtime.messages import CLASSES, SERVICE
from delegate_serve.runtime.model import VERSION, ServedModel
from delegate_serve.runtime.requests import check, store
from delegate_serve.runtime.settings import MAX_CONNECTIONS, MAX_JSON, MIB, Settings
from delegate_serve.runtime.shared_memory import Regions

if TYPE_CHECKING:
    from delegate_serve.runtime.tracing import Tracing

_LOG = logging.getLogger("delegate")
_SLOW_ELEMENTS = 16 << 10  # in the contents of tensors from which on another thread reads them
_MAX_MESSAGE = 2**31 - 1  # bytes: the most that gRPC can limit
_CODES = {  # status of HTTP -> status of gRPC
    400: grpc.StatusCode.INVALID_ARGUMENT,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
_CONTENTS = {  # datatype -> the field of its elements; FP16 and BF16 have none
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}


METHODS = (
    "ServerLive",
    "ServerReady",
    "ModelReady",
    "ServerMetadata",
    "ModelMetadata",
    "ModelInfer",
    "RepositoryIndex",
    "RepositoryModelLoad",
    "RepositoryModelUnload",
    "SystemSharedMemoryStatus",
    "SystemSharedMemoryRegister",
    "SystemSharedMemoryUnregister",
)


class Context(Protocol):
    """Parts of a request's context that the methods use, as grpcio names them."""

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]]: ...

    async def abort(self, code: Any, details: str, metadata: Sequence[tuple[str, str]] = ()) -> Any: ...


Call = Callable[[bytes, Context], Awaitable[Any]]  # of a message and its context to the bytes of the answer


class _Failure(NamedTuple):
    """The arguments of an abort."""

    code: grpc.StatusCode
    message: str
    metadata: tuple[tuple[str, str], ...] = ()


class Service:
    """The methods of the protocol.

    Args:
        models: The server's models.
        is_ready: returns True if the server takes requests.
        reserve: counts bytes of memory, see `Reservation`.
        tracing: records spans of requests.
        regions: The regions of shared memory; None: clients may use none.
    """

    def __init__(
        self,
        models: Catalog,
        is_ready: Callable[[], bool],
        reserve: Callable[[int], None],
        tracing: Tracing | None = None,
        regions: Regions | None = None,
    ) -> None:
        self._models, self._is_ready, self._tracing = models, is_ready, tracing
        self._reserve, self._regions = reserve, regions or Regions()
        self._tasks: set[asyncio.Task[Any]] = set()  # of all requests
        self._is_over = False

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the methods for a gRPC server."""
        handlers = {name: grpc.unary_unary_rpc_method_handler(call) for name, call in self.calls().items()}
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def calls(self) -> dict[str, Call]:
        """Return the methods by name."""
        methods = (
            (self._live, "Empty"),
            (self._ready, "Empty"),
            (self._model_ready, "ModelName"),
            (self._server, "Empty"),
            (self._metadata, "ModelName"),
            (self._infer, "InferRequest"),
            (self._index, "IndexRequest"),
            (self._load, "LoadRequest"),
            (self._unload, "LoadRequest"),
            (self._region_status, "RegionName"),
            (self._register, "Region"),
            (self._unregister, "RegionName"),
        )
        calls = (self._check(method, CLASSES[request]) for method, request in methods)
        return dict(zip(METHODS, calls, strict=True))

    @property
    def requests(self) -> int:
        """The number of requests that have no answer."""
        return len(self._tasks)

    def cancel(self) -> None:
        """Answer the requests that are left with UNAVAILABLE."""
        self._is_over = True
        for task in self._tasks:
            task.cancel()

    def _check(self, method: Callable[[Any], Awaitable[Any]], request_class: Any) -> Call:
        """Return a method of gRPC, from bytes to bytes, whose errors have the status of the protocol."""

        async def answer(data: bytes, context: Context) -> bytes | _Failure:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                with nullcontext() if self._tracing is None else self._tracing.client(context.invocation_metadata()):
                    return (await method(_parse(data, request_class))).SerializeToString()  # type: ignore[no-any-return]
            except asyncio.CancelledError:
                if not self._is_over:  # the client has left
                    raise
                return _failure(shuts_down())
            except DecodeError:
                return _Failure(grpc.StatusCode.INVALID_ARGUMENT, "the request is no message of the protocol")
            except RequestError as error:
                return _failure(error)
            except Exception as error:
                _LOG.exception("a request over gRPC failed")
                return _Failure(grpc.StatusCode.INTERNAL, f"the request failed: {type(error).__name__}")
            finally:
                self._tasks.discard(task)

        async def call(data: bytes, context: Context) -> Any:
            answered = await answer(data, context)
            if isinstance(answered, _Failure):
                del data  # the exception of an abort lives until a garbage collection, and so does what its frames hold
                await context.abort(*answered)
            return answered

        return call

    async def _live(self, request: Any) -> Any:
        return CLASSES["Live"](live=True)

    async def _ready(self, request: Any) -> Any:
        return CLASSES["Ready"](ready=self._is_ready())

    async def _model_ready(self, request: Any) -> Any:
        model = self._models.by_name.get(request.name)
        is_ready = model is not None and request.version in ("", VERSION) and self._models.is_available(model.name)
        return CLASSES["Ready"](ready=is_ready and self._is_ready())

    async def _server(self, request: Any) -> Any:
        return CLASSES["Server"](name="delegate", version=delegate.__version__)

    async def _metadata(self, request: Any) -> Any:
        model = self._models.find(request.name)
        model.require_version(request.version or VERSION)
        return CLASSES["ModelDescription"](**model.metadata())

    async def _index(self, request: Any) -> Any:
        rows = self._models.index()
        return CLASSES["Index"](models=[row for row in rows if not request.ready or row["state"] == "READY"])

    async def _load(self, request: Any) -> Any:
        if request.parameters:
            raise RequestError(400, "a model is loaded from its file, without parameters")
        await asyncio.shield(self._models.load(request.model_name))  # also if the client leaves
        return CLASSES["Empty"]()

    async def _unload(self, request: Any) -> Any:
        await asyncio.shield(self._models.unload(request.model_name))
        return CLASSES["Empty"]()

    async def _region_status(self, request: Any) -> Any:
        return CLASSES["RegionStatus"](regions={row["name"]: row for row in self._regions.status(request.name)})

    async def _register(self, request: Any) -> Any:
        fields = {"key": request.key, "offset": request.offset, "byte_size": request.byte_size}
        self._regions.register(request.name, fields)
        return CLASSES["Empty"]()

    async def _unregister(self, request: Any) -> Any:
        self._regions.unregister(request.name)
        return CLASSES["Empty"]()

    async def _infer(self, request: Any) -> Any:
        model = self._models.find(request.model_name)
        model.require_version(request.model_version or VERSION)
        with self._models.pool.request():
            if self._tracing is None:
                return await self._run(model, request)
            with self._tracing.request(model.name):
                return await self._run(model, request)

    async def _run(self, model: ServedModel, request: Any) -> Any:
        """Run an inference request, and count it."""
        start, status, reservation = monotonic(), 200, Reservation(self._reserve)
        try:
            reservation.add(sum(map(len, request.raw_input_contents)))
            async with self._models.use(model.name) as loaded:
                is_slow = self._regions.are_large or _has_many_elements(request)
                fields, data = await in_thread_if(is_slow, _fields, request)
                given = (fields, data, loaded.signature, self._regions, reservation)
                checked = await in_thread_if(is_slow, check, *given)
                results = await loaded.run(checked)
            response = CLASSES["InferResponse"](model_name=model.name, model_version=VERSION, id=request.id)
            for tensor, _, place in checked.outputs:
                array = results[tensor.leaf]
                row = response.outputs.add(name=tensor.name, datatype=NAMES[tensor.dtype], shape=array.shape)
                if place is not None:
                    _add_parameters(row, store(array, tensor, place, self._regions))
                response.raw_output_contents.append(b"" if place else array.tobytes())  # one for each output
            return response
        except BaseException as error:
            status = status_of(error)
            raise
        finally:
            reservation.release()
            model.metrics.answered(status, monotonic() - start)


def add_to_server(_: object, server: Any) -> None:
    """Add the methods to a server of Ray Serve, which passes their messages to the ingress as bytes."""
    handlers = {name: grpc.unary_unary_rpc_method_handler(None) for name in METHODS}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


class GrpcServer:
    """A gRPC server, to be started and stopped on the event loop of the server for HTTP.

    Args:
        service: the methods.
        address: host and port.
        settings: the limits.
    """

    def __init__(self, service: Service, address: str, settings: Settings) -> None:
        self._service, self._address, self._settings = service, address, settings
        self.port = 0

    async def start(self) -> None:
        """Listen; raise ConfigError if the address cannot be used."""
        self._server = grpc.aio.server(
            options=[
                ("grpc.so_reuseport", 0),  # else two servers share a port, and nobody notices
                ("grpc.max_receive_message_length", min(self._settings.max_body, _MAX_MESSAGE)),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_metadata_size", 1 << 16),
                ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
                ("grpc.max_connection_idle_ms", max(1, int(self._settings.timeout * 1000))),
            ],
            maximum_concurrent_rpcs=MAX_CONNECTIONS,
        )
        self._server.add_generic_rpc_handlers((self._service.handlers(),))
        try:
            self.port = self._server.add_insecure_port(self._address)
        except RuntimeError as error:
            what = f"cannot serve gRPC on {self._address}"
            raise ConfigError(what, remedy="end the other server, or choose another --grpc-port") from error
        await self._server.start()

    async def stop(self, seconds: float) -> None:
        """Answer the requests that have arrived, and no others, at most so long."""
        await self._server.stop(seconds)

    @property
    def requests(self) -> int:
        """The number of requests that have no answer."""
        return self._service.requests

    def cancel(self) -> None:
        """Answer the requests that are left at once."""
        self._service.cancel()


def _failure(error: RequestError) -> _Failure:
    metadata = () if error.retry_after is None else (("retry-after", str(error.retry_after)),)
    return _Failure(_CODES[error.status], error.message, metadata)


def _parse(data: bytes, request_class: Any) -> Any:
    """Return a message; raise RequestError or DecodeError if it is too large or invalid."""
    if len(data) > MAX_JSON:
        binary = sum(map(len, CLASSES["BinaryData"].FromString(data).raw_input_contents))
        if len(data) - binary > MAX_JSON:
            what = f"the request has more than {MAX_JSON // MIB} MiB that are no binary data"
            raise RequestError(413, f"{what}: send tensors as raw_input_contents")
    return request_class.FromString(data)


def _has_many_elements(request: Any) -> bool:
    """Return True if the contents of tensors take long."""
    return sum(len(field) for tensor in request.inputs for _, field in tensor.contents.ListFields()) > _SLOW_ELEMENTS


def _fields(request: Any) -> tuple[dict[str, Any], Any]:
    """Return the fields of a request as in JSON, and the binary data of its inputs."""
    raw = request.raw_input_contents
    count = sum("shared_memory_region" not in tensor.parameters for tensor in request.inputs)
    if raw and len(raw) != count:
        raise RequestError(400, f"the request has {count} inputs, but {len(raw)} raw_input_contents")
    rows, sizes = [], map(len, raw)
    for tensor in request.inputs:
        row: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        row["parameters"] = _parameters(tensor.parameters)
        if tensor.HasField("contents"):
            row["data"] = _contents(tensor)
        if raw and "shared_memory_region" not in row["parameters"]:
            row["parameters"]["binary_data_size"] = next(sizes)
        rows.append(row)
    outputs = [{"name": output.name, "parameters": _parameters(output.parameters)} for output in request.outputs]
    fields = {"id": request.id, "parameters": _parameters(request.parameters), "inputs": rows, "outputs": outputs}
    fields["parameters"].pop("binary_data_output", None)
    return fields, np.frombuffer(bytearray().join(raw), np.uint8)


def _contents(tensor: Any) -> list[Any]:
    """Return the elements of an input."""
    fields = [field.name for field, _ in tensor.contents.ListFields()]
    expected = _CONTENTS.get(tensor.datatype)
    if fields not in ([], [expected]):
        raise RequestError(400, f"input {tensor.name!r} of type {tensor.datatype[:100]!r} has its data in {fields[0]}")
    return list(getattr(tensor.contents, fields[0])) if fields else []


def _add_parameters(row: Any, parameters: Mapping[str, Any]) -> None:
    for name, value in parameters.items():
        setattr(row.parameters[name], "string_param" if isinstance(value, str) else "int64_param", value)


def _parameters(parameters: Any) -> dict[str, Any]:
    return {name: getattr(value, value.WhichOneof("choice") or "bool_param") for name, value in parameters.items()}
