"""Delegates in a separate process: a crash of a vendor library is an error there, and the program goes on.

One process runs all delegates of a program, one call at a time. It gets no more than their blobs and tensors, in shared
memory. Its answers are data, checked like a file.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from delegate.errors import BackendFailed, BackendUnavailable
from delegate.plugins import load_object
from delegate.processes.answering import Questions
from delegate.processes.channel import map_shared, open_shared_file, share
from delegate.processes.process import Process, ProcessEnded
from delegate.program.model import DelegateSpec, Program
from delegate.program.raw import array_over
from delegate.program.segments import align
from delegate.registry import Registry
from delegate.runtime.backend import Array, BackendRuntime, Delegate, TensorType
from delegate.runtime.delegates import open_blob
from delegate.runtime.lifecycle import CallLock

_CLOSE_LIMIT = 5.0  # seconds to close a delegate, where a library may hang too
_SUSPECT = "the blob may be damaged or malicious, or the library has a bug"


class Isolated:
    """Creates the delegates of a program in a separate process, which is started for the first one.

    Args:
        program: verified.
        registry: source of backends.
        trust_code: open blobs of machine code too.
        limit: seconds for the creation of a delegate and for each call; None: no limit.

    Attributes:
        runtimes: empty: tensors between delegates lie in the host's memory.
        limit: the argument.
        lock: held during a call, since the process answers one question at a time.
    """

    def __init__(self, program: Program, registry: Registry, trust_code: bool, limit: float | None = None) -> None:
        self.runtimes: dict[str, BackendRuntime] = {}
        self.limit, self.lock = limit, CallLock("the process of the program's delegates")
        self._program, self._registry, self._trust_code = program, registry, trust_code
        self._process: Process | None = None

    def __call__(self, spec: DelegateSpec) -> Delegate:
        parts = [memoryview(self._program.segments[i]) for i in (spec.segment, *spec.data)]
        return self.create(spec.backend, spec.compile_specs, parts)

    def create(self, backend: str, compile_specs: Mapping[str, Any], parts: Sequence[memoryview]) -> Delegate:
        """Create a delegate of a blob and its data, the first and the other parts; raises BackendError."""
        runtime = self._registry.runtime(backend)
        if runtime.__module__ == "__main__":
            what = "its runtime part is in __main__, which another process cannot import"
            raise BackendUnavailable(what, remedy="put it in a module, or load without isolate")
        request = {
            "runtime": f"{runtime.__module__}:{runtime.__qualname__}",
            "compile_specs": dict(compile_specs),
            "trust_code": self._trust_code,
        }
        return IsolatedDelegate(self, request, parts)

    def process(self) -> Process:
        """Return the process, which is started again if it has ended."""
        if self._process is None or not self._process.is_running:
            self._process = Process(f"{__name__}:questions")
        return self._process

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.end()


class IsolatedDelegate(Delegate):
    """A delegate in another process. If that has ended, the next call starts it again.

    Args:
        host: owns the process.
        request: creates the delegate there.
        parts: its blob and data.
    """

    def __init__(self, host: Isolated, request: Mapping[str, Any], parts: Sequence[memoryview]) -> None:
        self._host, self._request, self._parts = host, request, parts
        self._shapes: list[tuple[int, ...]] | None = None
        self._memory: mmap.mmap | None = None
        self._inputs: list[Array] = []
        self._outputs: list[Array] = []
        self._process: Process | None = None
        self._number = 0  # of the delegate in that process
        self._run(self._open)

    def prepare(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> None:
        """Set up such tensors in shared memory on both sides, and let the delegate check them."""
        self._run(partial(self._prepare, inputs, outputs))

    def execute(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self._run(partial(self._execute, inputs, outputs))

    def close(self) -> None:
        limit = _CLOSE_LIMIT if self._host.limit is None else min(self._host.limit, _CLOSE_LIMIT)
        with self._host.lock.hold(), _translate_end():
            try:
                if self._process is not None and self._process.is_running:
                    self._ask("close", self._number, limit=limit)
            except ProcessEnded as end:
                if end.was_taken:  # else the delegate has ended with its process
                    raise
            finally:
                self._inputs, self._outputs, self._memory, self._process = [], [], None, None

    def _run(self, work: Callable[[], None]) -> None:
        """Do work in the process; once more if that ended before it took the question: it was killed while idle."""
        with self._host.lock.hold(), _translate_end():
            try:
                work()
            except ProcessEnded as end:
                if end.was_taken:
                    raise
                work()

    def _ask(self, question: str, message: Any, files: Sequence[int] = (), limit: float | None = None) -> Any:
        """Return the answer of the process, at most after the seconds of a limit or else of the program's."""
        assert self._process is not None
        limit = self._host.limit if limit is None else limit
        self._process.send(question, message, files)
        return self._process.receive(None if limit is None else self._process.clock(limit, most=limit))

    def _open(self) -> None:
        self._process, self._shapes, self._memory = self._host.process(), None, None
        with share(self._parts) as file:
            request = {**self._request, "sizes": [part.nbytes for part in self._parts]}
            self._number = int(self._ask("open", request, (file.fileno(),)))

    def _prepare(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> None:
        if self._process is None or self._process.has_ended:
            self._open()
        tensors = Tensors([*inputs, *outputs])
        message = [self._number, len(inputs), tensors.to_json()]
        memory, self._memory, self._shapes = self._memory, None, None  # unknown until the other side has it, too
        if memory is None or len(memory) < tensors.size:
            with open_shared_file(tensors.size) as file:
                memory = mmap.mmap(file.fileno(), tensors.size)
                self._ask("prepare", message, (file.fileno(),))
        else:
            self._ask("prepare", message)
        arrays = tensors.arrays(memory)
        self._inputs, self._outputs = arrays[: len(inputs)], arrays[len(inputs) :]
        self._memory, self._shapes = memory, [shape for shape, _ in tensors.types]

    def _execute(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        is_ready = self._process is not None and not self._process.has_ended
        if not is_ready or [a.shape for a in (*inputs, *outputs)] != self._shapes:
            self._prepare(*([TensorType(a.shape, a.dtype) for a in arrays] for arrays in (inputs, outputs)))
        for own, array in zip(self._inputs, inputs, strict=True):
            own[...] = array
        self._ask("execute", self._number)
        for array, own in zip(outputs, self._outputs, strict=True):
            array[...] = own


class Tensors:
    """The inputs and outputs of a delegate, one after another in shared memory.

    Args:
        types: The inputs' types, followed by the outputs'.
    """

    def __init__(self, types: Sequence[TensorType]) -> None:
        self.types, self.offsets, end = tuple(types), list[int](), 0
        for shape, dtype in types:
            self.offsets.append(end)
            end = align(end + dtype.itemsize * math.prod(shape))
        self.size = max(end, mmap.PAGESIZE)

    def arrays(self, memory: mmap.mmap) -> list[Array]:
        """Return them as arrays over that memory."""
        places = zip(self.types, self.offsets, strict=True)
        return [array_over(memory, dtype, shape, offset) for (shape, dtype), offset in places]

    def to_json(self) -> list[Any]:
        """Return them as plain JSON."""
        return [[list(shape), dtype.str] for shape, dtype in self.types]

    @classmethod
    def from_json(cls, rows: list[Any]) -> Tensors:
        """Return the tensors of a `to_json` result."""
        return cls([TensorType(tuple(shape), np.dtype(name)) for shape, name in rows])


class _Opened:
    """A delegate in its process, with its tensors in shared memory."""

    def __init__(self, delegate: Delegate) -> None:
        self.delegate = delegate
        self.inputs: list[Array] = []
        self.outputs: list[Array] = []
        self.memory: mmap.mmap


class _Server:
    """The delegates of a program in their process; each method answers a question."""

    def __init__(self) -> None:
        self._runtimes: dict[str, BackendRuntime] = {}
        self._opened: list[_Opened] = []

    def open(self, message: Mapping[str, Any], files: Sequence[int]) -> int:
        """Create a delegate; return its number."""
        name = message["runtime"]
        blob, *data = map_shared(files[0], message["sizes"], mmap.ACCESS_READ)
        if name not in self._runtimes:
            self._runtimes[name] = cast("Callable[[], BackendRuntime]", load_object(name))()
        specs, trust_code = message["compile_specs"], message["trust_code"]
        self._opened.append(_Opened(open_blob(self._runtimes[name], blob, data, specs, trust_code=trust_code)))
        return len(self._opened) - 1

    def prepare(self, message: Any, files: Sequence[int]) -> None:
        """Place the tensors of a delegate in the memory that the program shares; a file belongs to a new memory."""
        number, count, rows = message
        opened, tensors = self._opened[number], Tensors.from_json(rows)
        for file in files:
            opened.memory = mmap.mmap(file, os.fstat(file).st_size)
            os.close(file)
        arrays = tensors.arrays(opened.memory)
        opened.inputs, opened.outputs = arrays[:count], arrays[count:]
        opened.delegate.prepare(tensors.types[:count], tensors.types[count:])

    def execute(self, number: int, _: Sequence[int]) -> None:
        """Run a delegate."""
        opened = self._opened[number]
        opened.delegate.execute(opened.inputs, opened.outputs)

    def close(self, number: int, _: Sequence[int]) -> None:
        """Close a delegate."""
        opened = self._opened[number]
        opened.inputs, opened.outputs = [], []
        opened.delegate.close()


def questions() -> Questions:
    """Return the questions about the delegates of a program."""
    server = _Server()
    return {name: getattr(server, name) for name in ("open", "prepare", "execute", "close")}


@contextlib.contextmanager
def _translate_end() -> Any:
    """Return a context in which the end of the process is an error of the backend."""
    try:
        yield
    except ProcessEnded as end:
        if not end.has_started:
            what, remedy = "cannot start a process for delegates", "load the file without isolate if you trust it"
            raise BackendUnavailable(what, where=f"Python {end.ending}", remedy=remedy) from end
        raise BackendFailed(f"the process that runs it {end.ending}", remedy=_SUSPECT) from end
