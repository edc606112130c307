"""A program's own weights: constants that are the model's own tensors are copied, since training may change them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate

import numpy as np
import torch
from torch.export import ExportedProgram

from delegate.edge.torch_private import is_traceable_wrapper_subclass
from delegate.program.model import Program
from delegate.program.segments import flat, place_of


def with_own_weights(program: Program, models: Iterable[ExportedProgram]) -> Program:
    """Return the program with copies of the segments that use the memory of the models' tensors."""
    ranges = sorted({_range(tensor) for model in models for tensor in _tensors(model)})
    starts = [start for start, _ in ranges]
    ends = list(accumulate((end for _, end in ranges), max))

    def own(segment: memoryview | bytes) -> memoryview | bytes:
        view = flat(segment)
        address, size = place_of(view)
        before = bisect_right(starts, address)  # ranges that start before the segment
        is_shared = size and before and address < ends[before - 1]
        return np.asarray(view).copy().data.toreadonly() if is_shared else segment

    return program._replace(segments=tuple(map(own, program.segments)))


def _tensors(model: ExportedProgram) -> Iterator[torch.Tensor]:
    for value in (*model.state_dict.values(), *model.constants.values()):
        if isinstance(value, torch.Tensor):
            yield from _plain(value)


def _plain(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the tensors that have the memory of one, which may be quantized."""
    if not is_traceable_wrapper_subclass(tensor):
        yield tensor
        return
    names, _ = tensor.__tensor_flatten__()
    for name in names:
        yield from _plain(getattr(tensor, name))


def _range(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first address of a tensor's storage, and the end."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()
