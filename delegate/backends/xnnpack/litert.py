"""LiteRT's C interface, as far as models are run through it: it lets XNNPACK keep packed weights in a file.

Its class of interpreters has no such option. What is called here is exported and documented by the library; its
structures are those of version 2.3, so no other version is called.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from ctypes import byref, c_bool, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint, c_uint32, c_void_p
from itertools import accumulate
from typing import Any

import numpy as np

from delegate.backends.xnnpack.quiet import make_first

VERSION = "2.3."  # of LiteRT, whose structures these are
PADDING = 64  # bytes: arrays begin at multiples of it, and XNNPACK may read as many beyond their ends

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


# Function, without the prefix "LiteRt" -> what it takes; those that destroy give nothing, the others a status.
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
    "RunCompiledModel": (c_void_p, c_size_t, c_size_t, c_void_p, c_size_t, c_void_p),
    "DestroyTensorBuffer": (c_void_p,),
    "DestroyCompiledModel": (c_void_p,),
    "DestroyOptions": (c_void_p,),
    "DestroyModel": (c_void_p,),
}


def version() -> str:
    """LiteRT's; raises ImportError where it is absent."""
    import ai_edge_litert

    return str(ai_edge_litert.__version__)


@functools.cache
def library() -> ctypes.CDLL | None:
    """The library; None where it is another version, or not as it should be."""
    try:
        import ai_edge_litert

        if not version().startswith(VERSION):
            return None
        found = ctypes.CDLL(os.path.join(os.path.dirname(ai_edge_litert.__file__), "libLiteRt.so"))
        for name, takes in _FUNCTIONS.items():
            function = getattr(found, f"LiteRt{name}")
            function.argtypes, function.restype = takes, None if name.startswith("Destroy") else c_int
    except (ImportError, OSError, AttributeError):
        return None
    return found


@functools.cache
def _environment(process: int) -> c_void_p:
    """LiteRT's environment of a process: the CPU alone, and no words."""
    options = (_Option * 2)(_Option(_ACCELERATORS, _Any(_INTEGER, _CPU)), _Option(_SEVERITY, _Any(_INTEGER, _SILENT)))
    made = _made("CreateEnvironment", len(options), options)
    make_first(functools.partial(_first, made))
    return made


def _first(environment: c_void_p, content: bytes) -> None:
    """Compile a model, and forget it."""
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        model = _made("CreateModelFromFd", environment, file.fileno(), 0, len(content))
        _destroy("CompiledModel", _compiled(environment, model, "num_threads = 1\n"))
        _destroy("Model", model)


def _compiled(environment: c_void_p, model: c_void_p, options: str) -> c_void_p:
    """A compiled model, with options of XNNPACK as TOML."""
    asked = _made("CreateOptions")
    try:
        _call("SetOptionsHardwareAccelerators", asked, _CPU)
        text: int = _C.strdup(options.encode())  # the options free it
        _call("AddOpaqueOptions", asked, _made("CreateOpaqueOptions", b"xnnpack", text, _C.free))
        return _made("CreateCompiledModel", environment, model, asked)
    finally:
        _destroy("Options", asked)


def _function(name: str) -> Callable[..., int]:
    found: Callable[..., int] = getattr(library(), f"LiteRt{name}")
    return found


def _call(name: str, *given: Any) -> None:
    status = _function(name)(*given)
    if status:
        raise RuntimeError(f"LiteRt{name} fails with status {status}")


def _made(name: str, *given: Any) -> c_void_p:
    handle = c_void_p()
    _call(name, *given, byref(handle))
    return handle


class CompiledModel:
    """A model that LiteRT has compiled for the CPU, with arrays that it reads and fills where they lie.

    Args:
        model: descriptor of its file, which stays the caller's.
        threads: to run with.
        packed: descriptor of a file of packed weights, which the model closes: an empty one is written, what is in
            another is used.
        inputs, outputs: dtypes of its tensors.

    Attributes:
        sources, results: the arrays; none before `bind` or `resize`. Those of `resize` lie in memory that all models
            of a thread share: they are of use from `here` until another model runs in this thread.

    Raises:
        RuntimeError: by every method; LiteRT does not do it, or leaves operators to its own kernels.
    """

    def __init__(self, model: int, threads: int, packed: int, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        self.sources: list[Array] = []
        self.results: list[Array] = []
        self._types = (tuple(inputs), tuple(outputs))
        self._buffers: tuple[list[c_void_p], list[c_void_p]] = ([], [])
        self._run: Callable[[], int] = _unbound
        self._memory = _own(0)  # in which the arrays lie
        self._model = self._compiled = c_void_p()
        try:
            self._compile(model, threads, packed)
        except BaseException:
            self.close()
            raise

    def _compile(self, model: int, threads: int, packed: int) -> None:
        environment = _environment(os.getpid())
        self._model = _made("CreateModelFromFd", environment, model, 0, os.fstat(model).st_size)
        options = f"num_threads = {threads}\nweight_cache_file_descriptor = {packed}\n"
        self._compiled = _compiled(environment, self._model, options)
        whole = c_bool()
        _call("CompiledModelIsFullyAccelerated", self._compiled, byref(whole))
        if not whole.value:
            raise RuntimeError("LiteRT leaves operators to its own kernels")

    def bind(self, inputs: Sequence[tuple[int, ...]]) -> None:
        """Have arrays: inputs of these sizes, which are the model's, and outputs of what LiteRT computes of them."""
        self._lay(inputs, self._computed(), _own)

    def _computed(self) -> list[tuple[int, ...]]:
        """The sizes of outputs."""
        layouts = (_Layout * len(self._types[1]))()
        _call("GetCompiledModelOutputTensorLayouts", self._compiled, 0, len(layouts), layouts, True)
        return [tuple(layout.sizes[: layout.rank]) for layout in layouts]

    def _lay(
        self, inputs: Sequence[tuple[int, ...]], outputs: Sequence[tuple[int, ...]], room: Callable[[int], Array]
    ) -> None:
        """Have arrays of these sizes, in memory that `room` gives."""
        self._unbind()
        shapes, types = (*inputs, *outputs), (*self._types[0], *self._types[1])
        sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in zip(shapes, types, strict=True)]
        starts = [0, *accumulate(size + PADDING - size % -PADDING for size in sizes)]
        self._memory = room(starts.pop() + PADDING)
        memory = self._memory[-self._memory.ctypes.data % PADDING :]
        found = [
            memory[at : at + size].view(t).reshape(s)
            for at, size, s, t in zip(starts, sizes, shapes, types, strict=True)
        ]
        self.sources, self.results = found[: len(inputs)], found[len(inputs) :]
        for buffers, arrays in zip(self._buffers, (self.sources, self.results), strict=True):
            for array in arrays:
                buffers.append(_buffer(array))  # one by one, so that all of them are freed where one fails
        given, taken = ((c_void_p * len(b))(*(x.value for x in b)) for b in self._buffers)
        run = _function("RunCompiledModel")
        self._run = functools.partial(run, self._compiled, 0, len(given), given, len(taken), taken)

    def _unbind(self) -> None:
        for buffers in self._buffers:
            while buffers:
                _destroy("TensorBuffer", buffers.pop())
        self.sources, self.results, self._run = [], [], _unbound

    def resize(self, shapes: Sequence[tuple[int, ...]], dynamic: Sequence[bool]) -> None:
        """Have inputs of other sizes, of those that are dynamic; all arrays are new, in this thread's memory."""
        self._unbind()
        for index, (shape, is_dynamic) in enumerate(zip(shapes, dynamic, strict=True)):
            if is_dynamic:
                sizes = (c_int * len(shape))(*shape)
                _call("CompiledModelResizeInputTensor", self._compiled, 0, index, sizes, len(shape))
        self._lay(shapes, self._computed(), _THREAD.room)

    def here(self) -> None:
        """Have the arrays of `resize` in this thread's memory, which may be another now."""
        if self._memory is not _THREAD.memory:
            self._lay([x.shape for x in self.sources], [x.shape for x in self.results], _THREAD.room)

    def run(self) -> None:
        """Fill the results."""
        status = self._run()
        if status:
            raise RuntimeError(f"LiteRtRunCompiledModel fails with status {status}")

    def close(self) -> None:
        """Free it; nothing where it is."""
        self._unbind()
        _destroy("CompiledModel", self._compiled)
        _destroy("Model", self._model)
        self._compiled = self._model = c_void_p()

    def __del__(self) -> None:
        self.close()


def _unbound() -> int:
    raise RuntimeError("the model is closed, or has no sizes yet")


def _destroy(what: str, handle: c_void_p) -> None:
    if handle:
        _function(f"Destroy{what}")(handle)


def _own(size: int) -> Array:
    return np.zeros(size, np.uint8)


class _Thread(threading.local):
    """Memory for what goes into a model and comes out of it, as large as the largest that this thread has run."""

    memory = _own(0)

    def room(self, size: int) -> Array:
        if len(self.memory) < size:
            self.memory = _own(size)
        return self.memory


_THREAD = _Thread()


def _buffer(array: Array) -> c_void_p:
    """LiteRT's buffer over the memory of an array, which has to outlive it."""
    layout = _Layout(array.ndim, 0, (c_int32 * 8)(*array.shape))
    kind = _TensorType(_TYPES[array.dtype], layout)
    return _made("CreateTensorBufferFromHostMemory", byref(kind), array.ctypes.data, array.nbytes, None)
