"""Forged TFLite models: real ones with changed numbers in their tables, and their runs in a child process."""

from __future__ import annotations

import os
import random
import resource
import signal
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

from delegate.backends.xnnpack.aot.tflite import _Buffer as AlignedBuffer
from delegate.backends.xnnpack.runtime.schema import OPERATORS

Case = tuple[bytes, list[int], list[int]]  # a model, its inputs, its outputs

NUMBERS = (-(2**31), -1000, -2, -1, 0, 1, 2, 3, 4, 5, 7, 8, 127, 128, 255, 1000, 65535, 2**20, 2**30, 2**31 - 1)
CODES = [row.code for row in OPERATORS.values()]


def forge(case: Case, rng: random.Random) -> Case:
    """Return the model with one to three changes: of any bytes, or of values of its tables."""
    blob, inputs, outputs = case
    if rng.random() < 0.3:
        return _bytes(blob, rng), inputs, outputs
    model = schema.ModelT.InitFromPackedBuf(blob, 0)
    for _ in range(rng.randint(1, 3)):
        _change(model, rng)
    graph = model.subgraphs[0]
    for buffer in model.buffers:
        buffer.__class__ = AlignedBuffer
    builder = flatbuffers.Builder(len(blob))
    try:
        builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    except (struct.error, TypeError):  # a number that does not fit into its field
        return _bytes(blob, rng), inputs, outputs
    return bytes(builder.Output()), [int(i) for i in graph.inputs], [int(i) for i in graph.outputs]


def _bytes(blob: bytes, rng: random.Random) -> bytes:
    forged = bytearray(blob)
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(forged) // 4) * 4
        if rng.random() < 0.5:
            struct.pack_into("<i", forged, place, rng.choice(NUMBERS))
        else:
            forged[place + rng.randrange(4)] = rng.randrange(256)
    return bytes(forged)


def _change(model: Any, rng: random.Random) -> None:
    graph = model.subgraphs[0]
    operator, tensor = rng.choice(graph.operators), rng.choice(graph.tensors)
    kind = rng.randrange(12)
    if kind == 0:
        code = rng.choice(model.operatorCodes)
        code.builtinCode = rng.choice(CODES)
        code.deprecatedBuiltinCode = min(code.builtinCode, 127)
    elif kind in (1, 2) and len(tensor.shape):
        tensor.shape = tensor.shape.copy()
        tensor.shape[rng.randrange(len(tensor.shape))] = rng.choice((*NUMBERS[3:14], *tensor.shape))
    elif kind == 3:
        tensor.shape = np.array([rng.choice(NUMBERS[4:12]) for _ in range(rng.randrange(6))], np.int32)
    elif kind in (4, 5):
        operator.inputs = operator.inputs.copy()
        operator.inputs[rng.randrange(len(operator.inputs))] = rng.randrange(-1, len(graph.tensors))
    elif kind in (6, 7) and operator.builtinOptions is not None:
        fields = [name for name, value in vars(operator.builtinOptions).items() if isinstance(value, int | float)]
        if fields:
            name = rng.choice(fields)
            old = getattr(operator.builtinOptions, name)
            setattr(operator.builtinOptions, name, not old if isinstance(old, bool) else type(old)(rng.choice(NUMBERS)))
    elif kind == 9:
        tensor.type = rng.choice((0, 1, 2, 3, 9, 17))
    elif kind == 10:
        _change_quantization(rng.choice([t for t in graph.tensors if t.quantization is not None] or [tensor]), rng)
    elif kind == 8:
        _change_constant(model, graph, rng)
    else:
        graph.outputs = graph.outputs.copy()
        graph.outputs[rng.randrange(len(graph.outputs))] = rng.randrange(len(graph.tensors))


def _change_quantization(tensor: Any, rng: random.Random) -> None:
    """Change the quantization of a tensor: scales, zero points, axis or blocks."""
    quantization = tensor.quantization
    if quantization is None:
        return
    if quantization.details is not None:
        setattr(quantization.details, rng.choice(("scales", "blockSize", "zeroPoints")), rng.choice(NUMBERS))
        return
    count = rng.choice(
        (0, 1, 2, len(quantization.scale), len(quantization.scale) + 1, *(abs(int(s)) % 64 for s in tensor.shape))
    )
    change = rng.randrange(4)
    if change == 0:
        quantization.scale, quantization.zeroPoint = np.full(count, 0.5, np.float32), np.zeros(count, np.int64)
    elif change == 1 and len(quantization.scale):
        quantization.scale = quantization.scale.copy()
        quantization.scale[rng.randrange(len(quantization.scale))] = rng.choice(
            (0, -1, np.nan, np.inf, 1e-38, 1e38, 2.0**-40, 1e6)
        )
    elif change == 2 and len(quantization.zeroPoint):
        quantization.zeroPoint = quantization.zeroPoint.copy()
        quantization.zeroPoint[rng.randrange(len(quantization.zeroPoint))] = rng.choice(
            (-129, -128, 127, 128, 255, 2**40)
        )
    else:
        quantization.quantizedDimension = rng.choice((-1, 0, 1, 2, 3, 4, 1000))


def _change_constant(model: Any, graph: Any, rng: random.Random) -> None:
    """Change one of the numbers that an operator reads as axes, sizes or positions."""
    buffers = [t.buffer for t in graph.tensors if t.type == schema.TensorType.INT32 and t.buffer]
    if not buffers:
        return
    buffer = model.buffers[rng.choice(buffers)]
    numbers = np.frombuffer(bytes(buffer.data), np.int32).copy()
    if numbers.size:
        numbers[rng.randrange(numbers.size)] = rng.choice(NUMBERS)
        buffer.data = numbers.view(np.uint8)


def crashes(cases: Sequence[Case], run: Callable[[Case], object], seconds: int = 10) -> Iterator[tuple[int, int]]:
    """Yield the cases that end the process that runs them: number, and signal or exit code.

    Cases run one after another in a child process. A new child is forked after a case that ended the last one. A case
    that takes too long ends by SIGALRM.
    """
    start = 0
    while start < len(cases):
        reader, writer = os.pipe()
        if (child := os.fork()) == 0:
            _serve(cases, start, run, writer, seconds)
        os.close(writer)
        with os.fdopen(reader, "rb") as lines:
            done = len(lines.read())
        _, status = os.waitpid(child, 0)
        if status == 0:
            return
        yield start + done, os.waitstatus_to_exitcode(status)
        start += done + 1


def _serve(cases: Sequence[Case], start: int, run: Callable[[Case], object], writer: int, seconds: int) -> None:
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        for case in cases[start:]:
            signal.alarm(seconds)
            run(case)
            os.write(writer, b".")
        os._exit(0)
    finally:
        os._exit(77)  # `run` raised an unexpected exception
