"""The runtime part: a model of OpenVINO's IR, compiled for a device when the program is loaded."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import openvino

from delegate.errors import BackendFailed, BackendUnavailable
from delegate.program.raw import writable_view
from delegate.runtime.backend import (
    Array,
    BackendRuntime,
    Delegate,
    ReportOperator,
    TensorType,
    default_float_environment,
)
from delegate_openvino.settings import compile_model, settings
from delegate_openvino.shared_weights import part_uses
from delegate_openvino.weights import fill_holes, with_holes

_DAMAGED = "the file is damaged: lower the program again"
_IR = b"<?xml"  # the first bytes of OpenVINO's own format


class OpenVinoRuntime(BackendRuntime):
    """The runtime part, which opens models of the AOT part."""

    load_options: ClassVar = {"device": str, "precision": str, "threads": int, "cache": str}

    def __init__(self) -> None:
        self._core = openvino.Core()

    def init(self, blob: memoryview, compile_specs: Mapping[str, Any]) -> Delegate:
        return self.init_with_data(blob, (), compile_specs)

    def init_with_data(
        self, blob: memoryview, data: Sequence[memoryview], compile_specs: Mapping[str, Any]
    ) -> Delegate:
        device = compile_specs["device"]
        if device.partition(".")[0] not in {*(d.partition(".")[0] for d in self._core.available_devices), "AUTO"}:
            here = ", ".join(self._core.available_devices)
            raise BackendUnavailable(f"OpenVINO has no device {device!r} here", remedy=f"lower it for one of: {here}")
        if bytes(blob[: len(_IR)]) != _IR:  # OpenVINO would also read ONNX, and files that ONNX names
            raise BackendFailed("its blob is not a model in OpenVINO's IR", remedy=_DAMAGED)
        return self._open(blob, data, compile_specs)

    def _open(
        self,
        blob: memoryview,
        data: Sequence[memoryview],
        compile_specs: Mapping[str, Any],
        report: ReportOperator | None = None,
    ) -> Delegate:
        """Create a delegate, which reports its layers to `report` if that is not None."""
        size, starts = compile_specs["graph"], compile_specs["weights"]
        try:
            weights = with_holes(blob[size:], starts, data) if data else np.frombuffer(blob[size:], np.uint8)
            tensor = _tensor(weights, "u8") if weights.size else openvino.Tensor(openvino.Type.u8, openvino.Shape([0]))
            model = self._core.read_model(bytes(blob[:size]), tensor)
            fill_holes(model, weights.ctypes.data, starts, data)
            copies = part_uses(model)
            properties = settings(compile_specs, model) | ({} if report is None else {"PERF_COUNT": True})
            compiled = compile_model(model, compile_specs["device"], properties, self._core)
            storage = (weights, *data, *copies)
            types = compile_specs["dtypes"], compile_specs["results"]
            ranges = compile_specs["indices"]
            if report is not None:
                return _ProfiledDelegate(compiled, storage, *types, ranges, report)
            return OpenVinoDelegate(compiled, storage, *types, ranges, partial(self._open, blob, data, compile_specs))
        except Exception as error:  # whatever OpenVINO raises across its boundary
            raise BackendFailed("OpenVINO cannot load the model", where=_one_line(error)) from error

    def runs_code(self, compile_specs: Mapping[str, Any]) -> bool:
        """Return true for a `cache`: OpenVINO runs compiled kernels from its folder, and writes there."""
        return bool(compile_specs["cache"])


class OpenVinoDelegate(Delegate):
    """A compiled model.

    Args:
        compiled: the model.
        weights: memory that the model may read without a copy.
        dtypes: OpenVINO's names of the element types of the inputs.
        results: the results that are outputs.
        indices: ranges of inputs that are indices, see `delegate_openvino.index_ranges`.
        reopen: compiles the model again with a function that receives its layers; None for a profiled model.
    """

    def __init__(
        self,
        compiled: Any,
        weights: Sequence[Any],
        dtypes: Sequence[str],
        results: Sequence[str],
        indices: Sequence[Mapping[str, Any]],
        reopen: Callable[[ReportOperator], Delegate] | None = None,
    ) -> None:
        self._compiled, self._weights, self._dtypes, self._results = compiled, weights, dtypes, results
        self._indices, self._reopen = indices, reopen
        self._request = compiled.create_infer_request()
        self._dynamic = [n for n, port in enumerate(compiled.outputs) if port.partial_shape.is_dynamic]
        self._has_open_sizes = any(port.partial_shape.is_dynamic for port in compiled.inputs)
        self._shapes: Sequence[tuple[int, ...]] | None = None  # of the last call, if they may change

    def prepare(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> None:
        for what, ports, names, tensors in (
            ("input", self._compiled.inputs, self._dtypes, inputs),
            ("output", self._compiled.outputs, self._results, outputs),
        ):
            if not len(ports) == len(names) == len(tensors) or not all(map(_fits, ports, names, tensors)):
                raise BackendFailed(f"the {what}s of the model differ from those of the program", remedy=_DAMAGED)

    def execute(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        request = self._request
        for row in self._indices:
            _require_in_range(inputs, **row)
        try:
            for number, (array, dtype) in enumerate(zip(inputs, self._dtypes, strict=True)):
                request.set_input_tensor(number, _tensor(array, dtype))
            for number, (array, dtype) in enumerate(zip(outputs, self._results, strict=True)):
                request.set_output_tensor(number, _tensor(array, dtype))
            shapes = [array.shape for array in inputs] if self._has_open_sizes else ()
            if shapes == self._shapes:
                request.infer()
            else:  # OpenVINO generates code for these sizes, which always flushes subnormal numbers if this thread does
                with default_float_environment():
                    request.infer()
                self._shapes = shapes
            for number in self._dynamic:
                actual, expected = tuple(request.get_output_tensor(number).shape), outputs[number].shape
                if actual != expected:
                    raise ValueError(f"output {number} has the shape {list(actual)}, not {list(expected)}")
        except Exception as error:  # whatever OpenVINO raises across its boundary
            raise BackendFailed("OpenVINO failed to run a partition", where=_one_line(error)) from error

    def profiled(self, report: ReportOperator) -> Delegate | None:
        return None if self._reopen is None else self._reopen(report)

    def close(self) -> None:
        del self._request, self._compiled


class _ProfiledDelegate(OpenVinoDelegate):
    """A model that reports its layers after each run.

    OpenVINO measures no starts, and as duration the mean of all runs so far, in microseconds. So the first run has its
    own durations, and each later run the mean of the later runs so far.
    """

    def __init__(
        self,
        compiled: Any,
        weights: Sequence[Any],
        dtypes: Sequence[str],
        results: Sequence[str],
        indices: Sequence[Mapping[str, Any]],
        report: ReportOperator,
    ) -> None:
        super().__init__(compiled, weights, dtypes, results, indices)
        self._report, self._runs = report, 0
        self._first: dict[str, int] = {}  # nanoseconds of each layer in the first run

    def execute(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        start = time.perf_counter_ns()
        super().execute(inputs, outputs)
        self._runs += 1
        for layer in self._request.get_profiling_info():
            if layer.status == openvino.ProfilingInfo.Status.EXECUTED:
                duration = round(layer.real_time.total_seconds() * 1e9)
                first = self._first.setdefault(layer.node_name, duration)
                if self._runs > 1:
                    duration = max(duration * self._runs - first, 0) // (self._runs - 1)
                self._report(layer.node_name, f"{layer.node_type} ({layer.exec_type})", start, duration)
                start += duration


def _require_in_range(inputs: Sequence[Array], input: int, size: int | Sequence[int], from_end: bool) -> None:
    """Raise BackendFailed for an index that is out of range: OpenVINO returns some numbers for it."""
    indices = inputs[input]
    count = size if isinstance(size, int) else inputs[size[0]].shape[size[1]]
    if indices.size and (indices.min() < (-count if from_end else 0) or indices.max() >= count):
        raise BackendFailed(
            f"an index is out of range: {indices.min()} to {indices.max()} for a dimension of size {count}",
            remedy="check the indices that are passed to the model",
        )


def _fits(port: Any, name: str, tensor: TensorType) -> bool:
    """Return true if a tensor of the program fits the model's: OpenVINO does not check the sizes of memory."""
    element = port.element_type
    dtype = np.dtype(np.uint16) if element == openvino.Type.bf16 else element.to_dtype()
    same = element.get_type_name() == name and dtype == tensor.dtype
    return same and bool(port.partial_shape.compatible(openvino.PartialShape(list(tensor.shape))))


def _tensor(array: Array, dtype: str) -> Any:
    """Return an array as a tensor over its memory, because OpenVINO rejects read-only arrays, but only reads inputs."""
    if not array.flags.writeable:
        array = writable_view(array)
    if dtype == "bf16":  # NumPy has no bfloat16: the array has its bits
        return openvino.Tensor(array, openvino.Shape(array.shape), openvino.Type.bf16)
    return openvino.Tensor(array, shared_memory=True)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
