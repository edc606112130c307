"""The runtime part: a session on one provider of ONNX Runtime, its inputs and outputs bound to the caller's memory."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import numpy as np

from delegate.errors import BackendFailed, DelegateError
from delegate.program.cores import library_threads
from delegate.program.raw import array_over
from delegate.runtime.backend import Array, Delegate, ReportOperator, TensorType, default_float_environment
from delegate_onnxruntime.onnx.runtime.blob import BlobTensor, OnnxModel, Shape
from delegate_onnxruntime.onnx.runtime.device_memory import OrtTensor
from delegate_onnxruntime.onnx.runtime.provider import CPU, Provider, device, one_line

# ONNX's code of an element type -> the NumPy dtype of the same size that is bound for it (bfloat16: its bits).
# https://onnx.ai/onnx/repo-docs/IR.html, TensorProto.DataType
_DTYPES: Mapping[int, type[np.generic]] = {
    1: np.float32, 2: np.uint8, 3: np.int8, 4: np.uint16, 5: np.int16, 6: np.int32, 7: np.int64, 9: np.bool_,
    10: np.float16, 11: np.float64, 12: np.uint32, 13: np.uint64, 16: np.uint16,
}  # fmt: skip
_DAMAGED = "the file is damaged: lower the program again"
_HOST = "cpu"  # the host's memory, as ONNX Runtime names it
# The operator whose node holds the compiled code of a provider: machine code, which a provider loads unchanged.
# https://onnxruntime.ai/docs/execution-providers/EP-Context-Design.html
_COMPILED = b"EPContext"
_OPERATOR = "_kernel_time"  # the end of names of operators' runs in a profile
_GLOBAL_POOL = "use_per_session_threads must be false"  # what a refusal says of a session with its own threads
FATAL = 4  # ONNX Runtime's level of logging: warnings are for its own developers, and errors are raised


def may_hold_code(graph: bytes) -> bool:
    """Return true if a serialized graph may hold machine code: its bytes contain the name of that operator.

    The result is also true if something else in the graph has the name. The bytes are searched, not parsed, because two
    parsers may read a forged file in two ways.
    """
    return _COMPILED in graph


def open_session(
    model: OnnxModel, settings: Any, provider: Provider, *, is_code: bool = False, profile: str = ""
) -> Any:
    """Return an InferenceSession that runs the whole model on a provider.

    Args:
        model: the model, whose weights are read without a copy, and must outlive the session.
        settings: options from `session_options`, for this provider.
        provider: the provider.
        is_code: true if the graph may hold machine code, which the runtime part of the backend declares (`runs_code`).
        profile: how the path of the session's profile begins; empty for none.

    Raises:
        BackendFailed: the provider does not support all of the model, or the graph holds machine code.
    """
    if not is_code and may_hold_code(model.graph):
        raise BackendFailed("its graph holds machine code, which this backend never writes", remedy=_DAMAGED)

    # What the report says runs on a device runs there: nothing falls back to ONNX Runtime's own CPU kernels.
    if provider.name != CPU:
        settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    if profile:
        settings.enable_profiling, settings.profile_file_prefix = True, profile
    add_weights(settings, model)
    try:
        with provider.lock:
            return new_session(model.graph, settings)
    except Exception as error:  # the bindings raise classes of their own that share no base but Exception
        raise BackendFailed(f"{provider.name} rejects the model", where=one_line(error)) from error


def new_session(graph: bytes, settings: Any) -> Any:
    """Return an InferenceSession of a serialized model; the first one of a process ends the thread's flush to zero.

    If other code of this process has set ONNX Runtime's global thread pool, sessions may not have threads of their own.
    Then this one uses the global pool, with as many threads as that code requested.
    """
    import onnxruntime

    with default_float_environment():
        try:
            # enable_fallback is of the Python bindings: they would try again without the provider.
            return onnxruntime.InferenceSession(graph, settings, enable_fallback=0)
        except RuntimeError as error:
            if _GLOBAL_POOL not in str(error):
                raise
            settings.use_per_session_threads, settings.intra_op_num_threads = False, 0
            return onnxruntime.InferenceSession(graph, settings, enable_fallback=0)


def session_options(provider: Provider, options: Mapping[str, str], *, threads: int = 0) -> Any:
    """Return the options of a session on a provider.

    Args:
        provider: the provider, with at least one device if it lists devices.
        options: the provider's own options.
        threads: number of host threads, which prepare the device's work; 0: the default. ONNX Runtime chooses it
            only if this process may use the whole machine, because its threads would leave an affinity mask.
    """
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = FATAL
    settings.intra_op_num_threads = library_threads(threads)
    # Threads that spin until the next call use the cores of other partitions, which run in between.
    settings.add_session_config_entry("session.force_spinning_stop", "1")
    # Pad_Fusion (ONNX Runtime 1.31) makes zeros before a maximum the padding of the window, which is never the maximum.
    # DoubleQDQPairsRemover makes one quantization of two with different scales, which rounds to neither.
    disabled = "Pad_Fusion;DoubleQDQPairsRemover"
    settings.add_session_config_entry("optimization.disable_specified_optimizers", disabled)
    # A forged graph may name files; this folder does not exist, so none is read.
    settings.add_session_config_entry("session.model_external_initializers_file_folder_path", os.devnull)
    provider.add_to(settings, options)
    return settings


def add_weights(settings: Any, model: OnnxModel) -> None:
    """Pass the bytes of the model's external initializers to a session, without a copy."""
    from onnxruntime import OrtValue

    if not model.weights:
        return
    values = []
    for weight in model.weights:
        array = array_over(weight.data, np.dtype(_DTYPES[weight.dtype]), weight.shape)
        values.append(OrtValue.ortvalue_from_numpy_with_onnx_type(array, weight.dtype))
    settings.add_external_initializers([w.name for w in model.weights], values)


class OpenSession(Protocol):
    """A function that opens a session; see `open_session`."""

    def __call__(self, *, profile: str = "") -> Any: ...


class OnnxDelegate(Delegate):
    """A model on a provider, which reads inputs from the caller's memory and writes results there, without copies.

    A session that has failed is not used again: the next call opens another one.

    Args:
        open_: opens a session, with `profile` of `open_session`; the first one at once, and its errors propagate.
        model: the model; the delegate holds it, because the session reads its weights.
        provider: the provider of the sessions.
        lost: returns true if the device is lost; called after a session has failed. Then every user of the
            device must release it.
    """

    def __init__(
        self,
        open_: OpenSession,
        model: OnnxModel,
        provider: Provider,
        *,
        lost: Callable[[], bool] | None = None,
    ) -> None:
        self._open, self._model, self._provider, self._lost = open_, model, provider, lost
        self._session: _Session | None = self._open_session()
        device(provider.name).add(self)

    def prepare(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> None:
        """Check the element types and sizes of memory; ONNX Runtime itself only compares shapes."""
        model = self._model
        own = model.inputs[: len(model.inputs) - len(model.shapes)]
        for what, tensors, types in (("inputs", own, inputs), ("outputs", model.outputs, outputs)):
            if len(tensors) != len(types):
                raise BackendFailed(
                    f"the model has {len(tensors)} {what}, but the program has {len(types)}", remedy=_DAMAGED
                )
            for tensor, tensor_type in zip(tensors, types, strict=True):
                if tensor_type.dtype != _DTYPES.get(tensor.dtype):
                    problem = f"{tensor.name!r} among the model's {what} is not {tensor_type.dtype}, as in the program"
                    raise BackendFailed(problem, remedy=_DAMAGED)
        for index, dim in (size for shape in model.shapes for size in shape if not isinstance(size, int)):
            if not (0 <= index < len(inputs) and 0 <= dim < len(inputs[index].shape)):
                raise BackendFailed(
                    f"the model requires dimension {dim} of input {index}, which does not exist", remedy=_DAMAGED
                )

    def execute(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        with self._provider.lock:
            try:
                if self._session is None:
                    self._session = self._open_session()
                self._session.run(inputs, outputs)
            except Exception as error:  # see open_session
                error.with_traceback(None)  # which would keep the session
                self._reset()
                if isinstance(error, DelegateError):
                    raise
                raise BackendFailed(f"{self._provider.name} failed at a partition", where=one_line(error)) from error

    def _open_session(self) -> _Session:
        return _Session(self._open(), self._model)

    def _reset(self) -> None:
        self.release()
        if self._lost is not None and self._lost():
            device(self._provider.name).clear()

    def release(self) -> None:
        """Close the session; the next call opens another one."""
        self._session = None

    def profiled(self, report: ReportOperator) -> Delegate | None:
        return _ProfiledDelegate(self._open, self._model, self._provider, lost=self._lost, report=report)

    def close(self) -> None:
        with self._provider.lock:
            self.release()


class _ProfiledDelegate(OnnxDelegate):
    """A delegate that reports the operators of each session when the session ends.

    ONNX Runtime writes the profile of a session to a file at its end, with at most a million events.
    """

    def __init__(
        self,
        open_: OpenSession,
        model: OnnxModel,
        provider: Provider,
        *,
        lost: Callable[[], bool] | None,
        report: ReportOperator,
    ) -> None:
        self._report, self._folder = report, TemporaryDirectory(prefix="delegate-profile-")
        self._shift = time.perf_counter_ns() - time.time_ns()  # from the system's clock, which ONNX Runtime uses
        profile = os.path.join(self._folder.name, "session")
        super().__init__(partial(open_, profile=profile), model, provider, lost=lost)

    def release(self) -> None:
        """Close the session, and report its operators."""
        session, self._session = self._session, None
        if session is not None:
            start, path = session.end_profile()
            with open(path, encoding="utf-8") as events:
                for event in _operators(events):
                    at = start + self._shift + event["ts"] * 1000
                    name = event["name"].removesuffix(_OPERATOR)
                    self._report(name, event["args"]["op_name"], at, event["dur"] * 1000)
            os.unlink(path)

    def close(self) -> None:
        super().close()
        self._folder.cleanup()


def _operators(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the operator events of a profile, which has an event per line."""
    for line in lines:
        if f'{_OPERATOR}"' in line:
            yield json.loads(line.strip().removesuffix(","))


class _Session:
    """A session, and the shared arguments of its calls."""

    def __init__(self, session: Any, model: OnnxModel) -> None:
        from onnxruntime import RunOptions
        from onnxruntime.capi import _pybind_state

        self._session, self._model, self._bindings = session, model, _pybind_state
        self._inputs, self._outputs = ([t.name for t in tensors] for tensors in (model.inputs, model.outputs))
        device = _pybind_state.OrtDevice
        self._options, host = RunOptions(), device(device.cpu(), device.default_memory(), 0)
        self._hosts = [host] * len(self._outputs)

    def run(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Run once on arrays, and on tensors of the device, without copies."""
        all_inputs = (*inputs, *(_sizes(shape, inputs) for shape in self._model.shapes))
        if OrtTensor in map(type, (*all_inputs, *outputs)):
            self._run_bound(all_inputs, outputs)
            return
        # An IOBinding would copy inputs to the device at once and one by one, which takes a small call a third longer.
        values, results = self._values(self._model.inputs, all_inputs), self._values(self._model.outputs, outputs)
        self._session.run_with_ortvaluevector(self._options, self._inputs, values, self._outputs, results, self._hosts)

    def end_profile(self) -> tuple[int, str]:
        """End the profile; return its start, in nanoseconds of the system's clock, and the path of its file."""
        return self._session.get_profiling_start_time_ns(), self._session.end_profiling()

    def _values(self, tensors: Sequence[BlobTensor], arrays: Sequence[Any]) -> Any:
        vector = self._bindings.OrtValueVector()
        for tensor, array in zip(tensors, arrays, strict=True):
            vector.push_back(self._bindings.OrtValue.ortvalue_from_numpy_with_onnx_type(array, tensor.dtype))
        return vector

    def _run_bound(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        binding = self._session.io_binding()
        for tensor, array in zip(self._model.inputs, inputs, strict=True):
            device, address = array.source() if type(array) is OrtTensor else (_HOST, array.ctypes.data)
            binding.bind_input(tensor.name, device, 0, tensor.dtype, array.shape, address)
        for tensor, array in zip(self._model.outputs, outputs, strict=True):
            device, address = array.target() if type(array) is OrtTensor else (_HOST, array.ctypes.data)
            binding.bind_output(tensor.name, device, 0, tensor.dtype, array.shape, address)
        self._session.run_with_iobinding(binding)


def _sizes(shape: Shape, inputs: Sequence[Any]) -> Array:
    return np.array([s if isinstance(s, int) else inputs[s[0]].shape[s[1]] for s in shape], np.int64)
