"""The part of LiteRT's C interface that runs models. It lets XNNPACK store packed weights in a file.

LiteRT's class of interpreters has no such option. The library exports and documents the functions below. Structures
belong to version 2.3, and the package's requirement excludes others.
"""

from __future__ import annotations

import ctypes
import functools
import math
import mmap
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from ctypes import byref, c_bool, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from itertools import accumulate
from typing import Any

import numpy as np

from delegate.backends.xnnpack.runtime.interpreted import ModelTensor
from delegate.runtime.backend import ReportOperator

PADDING = 64  # bytes: alignment of arrays; XNNPACK may read this many bytes beyond their ends

Array = np.ndarray[Any, np.dtype[Any]]

_CPU, _INTEGER, _SILENT = 1, 2, 4
_ACCELERATORS, _SEVERITY = 24, 25  # options of an environment
_TYPES = {np.dtype(np.float32): 1, np.dtype(np.uint8): 3, np.dtype(np.int8): 9}


_C = ctypes.CDLL(None)
_C.strdup.restype, _C.strdup.argtypes = c_void_p, (c_char_p,)


class _Any(ctypes.Structure):
    _fields_ = (("type", c_int), ("value", c_int64))


class _Option(ctypes.Structure):
    _fields_ = (("tag", c_int), ("value", _Any))


class _Layout(ctypes.Structure):
    _fields_ = (("rank", c_uint, 7), ("has_strides", c_uint, 1), ("sizes", c_int32 * 8), ("strides", c_uint32 * 8))


class _TensorType(ctypes.Structure):
    _fields_ = (("element", c_int), ("layout", _Layout))


class _ProfilerEvent(ctypes.Structure):
    _fields_ = (
        ("tag", c_char_p), ("kind", c_int), ("start", c_uint64), ("duration", c_uint64), ("memory", c_uint64 * 6),
        ("number", c_uint64), ("subgraph", c_uint64), ("source", c_int),
    )  # fmt: skip


_INVOKE, _OPERATOR = 1, 8  # kinds of events: a stage of the run, and an operator inside XNNPACK


# Function, without the prefix "LiteRt" -> its argument types. Functions that destroy return nothing, others a status.
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "CreateEnvironment": (c_int, c_void_p, c_void_p),
    "CreateModelFromFd": (c_void_p, c_int, c_size_t, c_size_t, c_void_p),
    "CreateOptions": (c_void_p,),
    "SetOptionsHardwareAccelerators": (c_void_p, c_int),
    "CreateOpaqueOptions": (c_char_p, c_void_p, c_void_p, c_void_p),
    "AddOpaqueOptions": (c_void_p, c_void_p),
    "CreateCompiledModel": (c_void_p, c_void_p, c_void_p, c_void_p),
    "CompiledModelIsFullyAccelerated": (c_void_p, c_void_p),
    "CompiledModelResizeInputTensor": (c_void_p, c_size_t, c_size_t, c_void_p, c_size_t),
    "GetCompiledModelOutputTensorLayouts": (c_void_p, c_size_t, c_size_t, c_void_p, c_bool),
    "CreateTensorBufferFromHostMemory": (c_void_p, c_void_p, c_size_t, c_void_p, c_void_p),
    "CompiledModelGetProfiler": (c_void_p, c_void_p),
    "StartProfiler": (c_void_p,),
    "ResetProfiler": (c_void_p,),
    "GetNumProfilerEvents": (c_void_p, c_void_p),
    "GetProfilerEvents": (c_void_p, c_int, c_void_p),
    "RunCompiledModel": (c_void_p, c_size_t, c_size_t, c_void_p, c_size_t, c_void_p),
    "DestroyTensorBuffer": (c_void_p,),
    "DestroyCompiledModel": (c_void_p,),
    "DestroyOptions": (c_void_p,),
    "DestroyModel": (c_void_p,),
}


def version() -> str:
    """Return LiteRT's version; raise ImportError if it is absent."""
    import ai_edge_litert

    return str(ai_edge_litert.__version__)


@functools.cache
def library() -> ctypes.CDLL | None:
    """Load the library; return None if this platform's package has none."""
    import ai_edge_litert

    try:
        dll = ctypes.CDLL(os.path.join(os.path.dirname(ai_edge_litert.__file__), "libLiteRt.so"))
    except OSError:
        return None
    for name, argument_types in _FUNCTIONS.items():
        function = getattr(dll, f"LiteRt{name}")
        function.argtypes, function.restype = argument_types, None if name.startswith("Destroy") else c_int
    return dll


@functools.cache
def _environment(process: int) -> c_void_p:
    """Create LiteRT's environment of a process, for the CPU only and without log messages."""
    options = (_Option * 2)(_Option(_ACCELERATORS, _Any(_INTEGER, _CPU)), _Option(_SEVERITY, _Any(_INTEGER, _SILENT)))
    return _create("CreateEnvironment", len(options), options)


# Identifiers of options, which are TOML: XNNPACK's, and those of the run.
_XNNPACK, _RUN = b"xnnpack", b"runtime_options_string"


def _compile_model(environment: c_void_p, model: c_void_p, options: Mapping[bytes, str]) -> c_void_p:
    """Compile a model, with options by their identifier."""
    compile_options = _create("CreateOptions")
    try:
        _call("SetOptionsHardwareAccelerators", compile_options, _CPU)
        for identifier, text in options.items():
            copy: int = _C.strdup(text.encode())  # the options free it
            _call("AddOpaqueOptions", compile_options, _create("CreateOpaqueOptions", identifier, copy, _C.free))
        return _create("CreateCompiledModel", environment, model, compile_options)
    finally:
        _destroy("Options", compile_options)


def _function(name: str) -> Callable[..., int]:
    function: Callable[..., int] = getattr(library(), f"LiteRt{name}")
    return function


def _call(name: str, *arguments: Any) -> None:
    status = _function(name)(*arguments)
    if status:
        raise RuntimeError(f"LiteRt{name} failed with status {status}")


def _create(name: str, *arguments: Any) -> c_void_p:
    handle = c_void_p()
    _call(name, *arguments, byref(handle))
    return handle


class ModelFile:
    """The bytes of a model in an unnamed file, initially zeros; on Linux.

    Args:
        size: bytes.

    Attributes:
        descriptor: The file's descriptor.

    Raises:
        OSError: the file does not exist here, or memory for it is missing.
    """

    def __init__(self, size: int) -> None:
        if sys.platform != "linux":
            raise OSError("files in memory exist only on Linux")
        self.descriptor = os.memfd_create("model")
        try:
            os.ftruncate(self.descriptor, size)
            self._memory = mmap.mmap(self.descriptor, 0)
        except BaseException:
            self.close()
            raise

    @property
    def view(self) -> memoryview:
        """Return its bytes."""
        return memoryview(self._memory).toreadonly()

    def write(self, start: int, part: bytes | memoryview) -> None:
        """Write bytes at a position, not through the mapping: its pages would count as this process's memory."""
        left = memoryview(part).cast("B")
        while left.nbytes:
            count = os.pwrite(self.descriptor, left, start)
            left, start = left[count:], start + count

    def release(self, places: Iterable[tuple[int, int]]) -> None:
        """Release the memory of parts, each (start, size). Later reads return zeros."""
        for start, size in places:
            first, end = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, (start + size) // mmap.PAGESIZE * mmap.PAGESIZE
            if end > first:
                self._memory.madvise(mmap.MADV_REMOVE, first, end - first)

    def close(self) -> None:
        """Close the file; existing mappings stay valid. A second call does nothing."""
        descriptor, self.descriptor = self.descriptor, -1
        with suppress(OSError):
            os.close(descriptor)


class CompiledModel:
    """A model that LiteRT has compiled for the CPU, as an `Engine` whose arrays it reads and fills in place.

    Args:
        model: descriptor of its file, which the caller closes.
        inputs, outputs: its tensors.
        threads: number of threads.
        packed: descriptor of a file with packed weights, which the model closes. An empty file is written; the content
            of another is used. None: the model packs its weights in its own memory.
        report: receives XNNPACK's operators after each run; None to record none.

    Raises:
        RuntimeError: LiteRT fails in a method, or runs operators with its own kernels.
    """

    def __init__(
        self,
        model: int,
        inputs: Sequence[ModelTensor],
        outputs: Sequence[ModelTensor],
        threads: int,
        packed: int | None = None,
        report: ReportOperator | None = None,
    ) -> None:
        self.results: list[Array] = []
        self._sources: list[Array] = []
        self.inputs, self.outputs = inputs, outputs
        self._report, self._is_dynamic = report, False
        self._packed: object = None
        self._buffers: tuple[list[c_void_p], list[c_void_p]] = ([], [])
        self._run: Callable[[], int] = _unbound
        self._memory = _NO_MEMORY  # of the arrays
        self._has_taken = False  # that memory, from the thread of the present run
        self._model = self._compiled = self._profiler = c_void_p()
        try:
            self._compile(model, threads, packed)
        except BaseException:
            self.close()
            raise

    def _compile(self, model: int, threads: int, packed: int | None) -> None:
        environment = _environment(os.getpid())
        self._model = _create("CreateModelFromFd", environment, model, 0, os.fstat(model).st_size)
        cache = "" if packed is None else f"weight_cache_file_descriptor = {packed}\n"
        options = {_XNNPACK: f"num_threads = {threads}\n{cache}"}
        if self._report is not None:
            options[_RUN] = "enable_profiling = true\n"
        self._compiled = _compile_model(environment, self._model, options)
        is_complete = c_bool()
        _call("CompiledModelIsFullyAccelerated", self._compiled, byref(is_complete))
        if not is_complete.value:
            raise RuntimeError("LiteRT runs some operators on its own kernels, not on XNNPACK")
        if self._report is not None:
            self._profiler = _create("CompiledModelGetProfiler", self._compiled)
            _call("StartProfiler", self._profiler)

    def bind(self, dynamic: bool, packed: object = None) -> CompiledModel:
        """Allocate the arrays, and return the model.

        Args:
            dynamic: true if sizes change; then `resize` allocates.
            packed: the owner of shared packed weights, which must outlive the model.
        """
        self._is_dynamic, self._packed = dynamic, packed
        if not dynamic:
            sizes = self._output_sizes()
            if sizes != [tensor.shape for tensor in self.outputs]:
                raise RuntimeError("the model returns other sizes than it declares")
            self._allocate_arrays([tensor.shape for tensor in self.inputs], sizes, _zeros)
        return self

    @property
    def sources(self) -> list[Array]:
        """Return the arrays to fill, of dynamic sizes in the memory of this thread, until `end_run`.

        All models of a thread share that memory. A signal handler, which interrupts this run, may run another model in
        this thread: it gets other memory.
        """
        if self._is_dynamic:
            if self._memory is not _THREAD.memory:
                inputs, outputs = ([x.shape for x in arrays] for arrays in (self._sources, self.results))
                self._allocate_arrays(inputs, outputs, _THREAD.memory_of_size)
            _THREAD.memory, self._has_taken = _NO_MEMORY, True
        return self._sources

    def _output_sizes(self) -> list[tuple[int, ...]]:
        """Return the sizes of outputs."""
        layouts = (_Layout * len(self.outputs))()
        _call("GetCompiledModelOutputTensorLayouts", self._compiled, 0, len(layouts), layouts, True)
        return [tuple(layout.sizes[: layout.rank]) for layout in layouts]

    def _allocate_arrays(
        self, inputs: Sequence[tuple[int, ...]], outputs: Sequence[tuple[int, ...]], allocate: Callable[[int], Array]
    ) -> None:
        """Create arrays of these sizes, in memory from `allocate`."""
        self._unbind()
        shapes, types = (*inputs, *outputs), [t.dtype for t in (*self.inputs, *self.outputs)]
        sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in zip(shapes, types, strict=True)]
        starts = [0, *accumulate(size + PADDING - size % -PADDING for size in sizes)]
        self._memory = allocate(starts.pop() + PADDING)
        memory = self._memory[-self._memory.ctypes.data % PADDING :]
        views = [
            memory[at : at + size].view(t).reshape(s)
            for at, size, s, t in zip(starts, sizes, shapes, types, strict=True)
        ]
        self._sources, self.results = views[: len(inputs)], views[len(inputs) :]
        for buffers, arrays in zip(self._buffers, (self._sources, self.results), strict=True):
            for array in arrays:
                buffers.append(_buffer(array))  # one by one, so that all of them are freed if one fails
        handles = ((c_void_p * len(b))(*(x.value for x in b)) for b in self._buffers)
        arguments = (part for array in handles for part in (len(array), array))
        self._run = functools.partial(_function("RunCompiledModel"), self._compiled, 0, *arguments)

    def _unbind(self) -> None:
        for buffers in self._buffers:
            while buffers:
                _destroy("TensorBuffer", buffers.pop())
        self._sources, self.results, self._run = [], [], _unbound

    def resize(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Resize the dynamic inputs; all arrays are new, in this thread's memory."""
        self._unbind()
        for index, (shape, tensor) in enumerate(zip(shapes, self.inputs, strict=True)):
            if -1 in tensor.signature:
                sizes = (c_int * len(shape))(*shape)
                _call("CompiledModelResizeInputTensor", self._compiled, 0, index, sizes, len(shape))
        self._allocate_arrays(shapes, self._output_sizes(), _THREAD.memory_of_size)

    def run(self) -> None:
        """Fill the results, and report the operators if that is requested."""
        status = self._run()
        if status:
            raise RuntimeError(f"LiteRtRunCompiledModel failed with status {status}")
        if self._report is not None:
            self._report_operators(self._report)

    def end_run(self) -> None:
        """Give the memory back to the thread, if it was taken, for the next run of any model."""
        if self._has_taken and len(self._memory) > len(_THREAD.memory):
            _THREAD.memory = self._memory
        self._has_taken = False

    def _report_operators(self, report: ReportOperator) -> None:
        """Report XNNPACK's operators in the last run: their number, name, start and duration, in nanoseconds.

        LiteRT measures whole microseconds, and no starts: an operator starts here at the end of the one before it.
        """
        count = c_int()
        _call("GetNumProfilerEvents", self._profiler, byref(count))
        events = (_ProfilerEvent * count.value)()
        _call("GetProfilerEvents", self._profiler, count.value, events)
        start = 0
        for event in events:
            if event.kind == _INVOKE:
                start = event.start * 1000
            elif event.kind == _OPERATOR:
                duration = event.duration * 1000
                report(str(event.number), event.tag.decode(errors="replace"), start, duration)
                start += duration
        _call("ResetProfiler", self._profiler)
        _call("StartProfiler", self._profiler)

    def close(self) -> None:
        """Free the model. A second call does nothing."""
        self._unbind()
        _destroy("CompiledModel", self._compiled)
        _destroy("Model", self._model)
        self._compiled = self._model = c_void_p()

    def __del__(self) -> None:
        self.close()


def _unbound() -> int:
    raise RuntimeError("the model is closed, or its sizes are not set yet")


def _destroy(what: str, handle: c_void_p) -> None:
    if handle:
        _function(f"Destroy{what}")(handle)


def _zeros(size: int) -> Array:
    return np.zeros(size, np.uint8)


_NO_MEMORY = _zeros(0)


class _Thread(threading.local):
    """Memory for inputs and outputs of models, of the largest size that this thread has needed."""

    memory = _NO_MEMORY

    def memory_of_size(self, size: int) -> Array:
        if len(self.memory) < size:
            self.memory = _zeros(size)
        return self.memory


_THREAD = _Thread()


def _buffer(array: Array) -> c_void_p:
    """Create LiteRT's buffer over the memory of an array, which must outlive the buffer."""
    layout = _Layout(array.ndim, 0, (c_int32 * 8)(*array.shape))
    kind = _TensorType(_TYPES[array.dtype], layout)
    return _create("CreateTensorBufferFromHostMemory", byref(kind), array.ctypes.data, array.nbytes, None)
