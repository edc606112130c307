"""Seeded random inputs of a method, and the leaves of its arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from delegate.program.dtypes import DType
from delegate.program.expr import evaluate
from delegate.program.model import Input, MethodDefinition, Value
from delegate.runtime.backend import Array

_SIZE = 2  # of a dynamic dimension, if its range allows that


def random_inputs(method: MethodDefinition, seed: int = 0) -> dict[str, Array]:
    """Return random arrays by input name: floats are normal, integers are 0 or 1, which are valid indices.

    Dynamic dimensions, and numbers, are 2, or the nearest value in their range.
    """
    generator = np.random.default_rng(seed)
    sizes = {i: max(s.minimum, min(_SIZE, s.maximum or _SIZE)) for i, s in enumerate(method.symbols)}
    numbers = {s.input: np.asarray(sizes[i]) for i, s in enumerate(method.symbols) if s.dim < 0}
    free = [(i, method.inputs[i]) for i in free_inputs(method)]
    return {
        leaf.name: numbers[i] if i in numbers else _random(generator, method.values[leaf.value], sizes)
        for i, leaf in free
    }


def leaves(inputs: Sequence[Input], arrays: Mapping[str, Array]) -> list[Any]:
    """Return the leaves of the arguments in order: arrays, and the literals that export fixed."""
    return [arrays.get(i.name, i.literal) for i in inputs]


def free_inputs(method: MethodDefinition) -> list[int]:
    """Return the indices of the inputs that the caller chooses: tensors, and numbers that are symbols."""
    numbers = {s.input for s in method.symbols if s.dim < 0}
    return [n for n, i in enumerate(method.inputs) if i.value >= 0 or n in numbers]


def _random(generator: np.random.Generator, value: Value, sizes: Mapping[int, int]) -> Array:
    shape = [evaluate(d, sizes) for d in value.shape]
    dtype = value.dtype.numpy
    if value.dtype is DType.bfloat16:  # the upper half of a float32
        return (generator.standard_normal(shape, np.float32).view(np.uint32) >> 16).astype(np.uint16).view()
    if dtype.kind == "f":
        return np.asarray(generator.standard_normal(shape)).astype(dtype)
    if dtype.kind == "c":
        return np.asarray(generator.standard_normal(shape) + 1j * generator.standard_normal(shape)).astype(dtype)
    return generator.integers(0, 2, shape).astype(dtype)
