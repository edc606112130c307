"""Calibration data: batches of inputs, read from NumPy archives or functions, and checked against the program."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram

from delegate.edge.node import shape_text
from delegate.edge.torch_private import pytree
from delegate.errors import ExportError, InputError, did_you_mean
from delegate.plugins import one_line
from delegate.plugins.user_modules import load_function
from delegate.runtime.arguments import load_arrays

Batch = Any  # a tuple of positional arguments, a dict of keyword arguments, or the one tensor of a model with one input

_WHERE = "calibration data"
_GIVE = "give a .npz file, a folder of them, or package.module:function that yields inputs"


def read_calibration(source: str, names: Sequence[str], where: str = _WHERE) -> Iterable[Batch]:
    """Return the batches of a source.

    Args:
        source: the path of a .npz file or of a folder with several, or "package.module:function". A file has one array
            per input, by name, or without names in the order of the inputs.
        names: names of the model's inputs.
        where: where the source is set, for error messages.

    Raises:
        InputError: the file or function does not exist, or it cannot be read.
    """
    path = Path(source)
    if os.path.isdir(path):
        files = sorted(path.glob("*.npz"))
        if not files:
            raise InputError(f"folder {source!r} holds no .npz file", where=where, remedy=_GIVE)
        return [_read(file, names, where) for file in files]
    if os.path.exists(path):
        return [_read(path, names, where)]
    if ":" not in source:
        raise InputError(f"there is no file {source!r}", where=where, remedy=_GIVE)
    return _iterate(load_function(source, where, InputError), source, where)


def _read(path: Path, names: Sequence[str], where: str) -> tuple[torch.Tensor, ...]:
    try:
        loaded = load_arrays(path)
        if not isinstance(loaded, dict):
            raise ValueError("it holds one array, as a .npy file does")
        arrays = {name: torch.from_numpy(array) for name, array in loaded.items()}
    except (OSError, ValueError, TypeError) as error:  # torch lacks some of NumPy's dtypes
        what = f"{str(path)!r} cannot be read: {one_line(error)}"
        raise InputError(what, where=where, remedy="give a file that numpy.savez wrote") from error
    if list(arrays) == [f"arr_{i}" for i in range(len(names))]:
        return tuple(arrays.values())
    if set(arrays) != set(names):
        what = f"{str(path)!r} holds {', '.join(arrays) or 'nothing'}"
        raise InputError(what, where=where, remedy=f"the model takes {', '.join(names)}")
    return tuple(arrays[name] for name in names)


def _iterate(function: Callable[[], Iterable[Batch]], source: str, where: str) -> Iterator[Batch]:
    """Yield the batches of a function; turn its exceptions into InputError."""
    try:
        yield from function()
    except (Exception, SystemExit) as error:
        raise InputError(f"{source} failed: {one_line(error)}", where=where, remedy=_GIVE) from error


class CalibrationBatches:
    """Batches as arguments of an exported program, each checked when it is read.

    Args:
        batches: the batches, of any source.
        ep: the program that they calibrate.
        limit: the largest number of batches to read; None for all.
    """

    def __init__(self, batches: Iterable[Batch], ep: ExportedProgram, limit: int | None = None) -> None:
        self._batches, self._limit = batches, limit
        self._names, self._values = _inputs(ep)
        self._spec = ep.call_spec.in_spec
        self._varies = [False] * len(self._names)
        self._first: list[Any] = [None] * len(self._names)

    def __iter__(self) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
        """Yield the positional and keyword arguments of each batch.

        Raises:
            InputError: batches are missing, a batch does not fit or holds NaN or infinity, or an input never varies.
        """
        count = 0
        if not isinstance(self._batches, Iterable):
            raise InputError(f"calibration data is a {type(self._batches).__name__}", remedy=_GIVE)
        try:
            for batch in self._batches:
                if count == self._limit:
                    break
                count += 1
                yield self._arguments(batch, count)
        except (InputError, GeneratorExit):
            raise
        if not count:
            raise InputError("there is no calibration data", remedy=_GIVE)
        for name, value, varies in zip(self._names, self._values, self._varies, strict=True):
            if isinstance(value, torch.Tensor) and value.is_floating_point() and not varies and not _is_empty(value):
                what = f"input {name!r} is the same number everywhere in all calibration data"
                raise InputError(what, remedy="give realistic data: its range is measured")

    def _arguments(self, batch: Batch, number: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        where = f"calibration batch {number}"
        args, kwargs = _as_arguments(batch)
        leaves, spec = pytree.tree_flatten((args, kwargs))
        if len(leaves) != len(self._names):
            what = f"{where} has {len(leaves)} inputs, but the model takes {len(self._names)}"
            raise InputError(what, remedy=f"give {', '.join(self._names)}")
        if spec != self._spec:  # arguments by name, or another nesting
            if len(kwargs) == len(leaves) > 1:
                leaves = self._in_order(kwargs, where)
            args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        for i, leaf in enumerate(leaves):
            self._check(i, leaf, where)
        return args, kwargs

    def _in_order(self, arguments: Mapping[str, Any], where: str) -> list[Any]:
        """Return named inputs in the order of the program's inputs; raise InputError for an unknown name."""
        unknown = [name for name in arguments if name not in self._names]
        if unknown:
            what = f"{where} has an input {unknown[0]!r}, which the model does not take"
            raise InputError(what, remedy=did_you_mean(unknown[0], self._names))
        return [arguments[name] for name in self._names]

    def _check(self, i: int, leaf: Any, where: str) -> None:
        example, name = self._values[i], self._names[i]
        if not isinstance(example, torch.Tensor):
            return
        if not isinstance(leaf, torch.Tensor):
            what = f"input {name!r} is a {type(leaf).__name__}"
            raise InputError(what, where=where, remedy="give tensors or NumPy arrays")
        fits = leaf.dtype == example.dtype and leaf.dim() == example.dim()
        if not fits or any(type(w) is int and w != s for w, s in zip(example.shape, leaf.shape, strict=True)):
            what = f"input {name!r} is {shape_text(leaf)}, but the model takes {shape_text(example)}"
            raise InputError(what, where=where, remedy="give data with the shape and dtype of real inputs")
        if leaf.is_floating_point() and leaf.numel():
            if not torch.isfinite(leaf).all():
                what = f"input {name!r} holds NaN or infinity"
                raise InputError(what, where=where, remedy="remove such data: its range is measured")
            first = leaf.reshape(-1)[0].item() if self._first[i] is None else self._first[i]
            self._first[i] = first
            self._varies[i] |= bool((leaf != first).any())


def _is_empty(value: torch.Tensor) -> bool:
    """Return true if an input never has elements."""
    return any(isinstance(size, int) and size == 0 for size in value.shape)


def _as_arguments(batch: Batch) -> tuple[tuple[Any, ...], dict[str, Any]]:
    tensors = pytree.tree_map(lambda x: torch.from_numpy(x) if isinstance(x, np.ndarray) else x, batch)
    if isinstance(tensors, dict):
        return (), tensors
    return tuple(tensors) if isinstance(tensors, tuple | list) else (tensors,), {}


def input_names(ep: ExportedProgram) -> list[str]:
    """Return the names of a program's inputs, in order."""
    return _inputs(ep)[0]


def _inputs(ep: ExportedProgram) -> tuple[list[str], list[Any]]:
    nodes = {n.name: n for n in ep.graph.find_nodes(op="placeholder")}
    names = [str(n) for n in ep.graph_signature.user_inputs]
    if any(name not in nodes for name in names):
        raise ExportError(
            "a model whose inputs are fixed numbers cannot be calibrated", remedy="export it without them"
        )
    return names, [nodes[name].meta.get("val") for name in names]
