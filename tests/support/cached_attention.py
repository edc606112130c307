"""Calls of the kernel of cached attention, of any table, and the operator in eager that they are compared with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from delegate.compile import to_backend
from delegate.edge.conversations import cached_attention, update_cache
from delegate.errors import KernelError
from delegate.kernels.cached_attention import OPERATOR, UPDATE
from delegate.kernels.half_precision import from_bfloat16
from delegate.kernels.table import KernelTable
from delegate.program.dtypes import DType
from delegate.testing import assert_same

HEADS, GROUPS, CAPACITY, CHANNELS = 6, 2, 40, 8
CASES = {
    "one token": ([[30]], {}),
    "the first token": ([[0]], {}),
    "the last token": ([[39]], {}),
    "a chunk": ([[3, 4, 5, 6, 7]], {}),
    "a window": ([[30]], {"window": 5}),
    "a chunk with a window": ([[28, 29, 30, 31]], {"window": 3}),
    "a window larger than what is there": ([[2, 3]], {"window": 30}),
    "capped": ([[17]], {"softcap": 2.0}),
    "scaled": ([[17, 18]], {"scale": 0.7}),
    "large scores": ([[17, 18], [30, 31]], {"scale": 20.0}),
    "small scores": ([[1], [9]], {"scale": 20.0, "window": 2}),
    "a batch": ([[4], [33], [0]], {}),
    "rows in another order": ([[4, 5], [33, 34]], {"rows": torch.tensor([2, 0])}),
    "several of one row": ([[5], [7], [6], [33], [2]], {"rows": torch.tensor([2, 2, 2, 0, 2])}),
    "several of one row in a window": ([[5], [6], [38], [39]], {"rows": torch.tensor([1, 1, 0, 0]), "window": 3}),
    "chunks of one row": ([[4, 5], [6, 7], [30, 31]], {"rows": torch.tensor([1, 1, 0])}),
}
TYPES = {  # of the cache, and of the query
    "float32": (torch.float32, torch.float32),
    "float16": (torch.float16, torch.float32),
    "bfloat16": (torch.bfloat16, torch.float32),
    "int8": (torch.int8, torch.float32),
    "float64": (torch.float64, torch.float64),
    "bfloat16 for float64": (torch.bfloat16, torch.float64),
    "all float16": (torch.float16, torch.float16),
    "all bfloat16": (torch.bfloat16, torch.bfloat16),
}
WRONG_SIZES = {  # argument and its part
    "keys of fewer channels than the query": (1, np.s_[..., :5]),
    "values of a smaller capacity than the keys": (2, np.s_[..., :20, :]),
    "values of fewer groups than the keys": (2, np.s_[:, :1]),
    "values of fewer conversations than the keys": (2, np.s_[:1]),
}


def cache(dtype: torch.dtype, query: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    shape = (3, GROUPS, CAPACITY, CHANNELS)
    if dtype is not torch.int8:
        return torch.randn(shape, dtype=query).to(dtype), torch.randn(shape, dtype=query).to(dtype), {}
    keys, values = (torch.randint(-127, 128, shape, dtype=torch.int8) for _ in range(2))
    scales = {f"{name}_scales": torch.rand(shape[:-1]) / 60 for name in ("key", "value")}
    return keys, values, scales


def run(table: KernelTable, *args: object) -> np.ndarray:
    """Run the kernel of a table on the arguments of the operator, with NaN in unfilled places."""
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    arrays = [as_array(a) if isinstance(a, torch.Tensor) else a for a in args]
    out = np.empty((*arrays[0].shape[:-1], arrays[2].shape[-1]), arrays[0].dtype)
    kernel = table.find(OPERATOR, {dtype_of(x) for x in tensors})
    assert kernel is not None
    kernel.function(*arrays, out=out)
    return from_bfloat16(out) if tensors[0].dtype is torch.bfloat16 else out


def as_array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.view(torch.uint16).numpy() if tensor.dtype is torch.bfloat16 else tensor.numpy()


def kernel_arguments(
    positions: list[list[int]], dtype: torch.dtype, query: torch.dtype, heads: int = HEADS, **options: object
) -> list[object]:
    torch.manual_seed(0)
    where = torch.tensor(positions)
    keys, values, scales = cache(dtype, query)
    named = {"rows": None, "key_scales": None, "value_scales": None, "scale": None, "window": 0, "softcap": 0.0}
    queries = torch.randn(len(positions), heads, where.shape[1], CHANNELS, dtype=query)
    if "rows" not in options:
        keys, values = keys[: len(positions)], values[: len(positions)]
        scales = {name: s[: len(positions)] for name, s in scales.items()}
    return [queries, keys, values, where, *{**named, **scales, **options}.values()]


def assert_as_in_eager(table: KernelTable, case: str, types: str, heads: int = HEADS) -> None:
    """Compare a kernel with the operator, which computes 16-bit floats in float32."""
    (positions, options), (dtype, query) = CASES[case], TYPES[types]
    args = kernel_arguments(positions, dtype, query, heads, **options)
    expected = cached_attention(*(a.float() if query.itemsize == 2 and i < 3 else a for i, a in enumerate(args)))
    tolerance = {torch.float16: 2e-3, torch.bfloat16: 1e-2}.get(query, 2e-5)
    assert_same(run(table, *args), expected.half() if query is torch.float16 else expected, tolerance)


def assert_scales_are_read(table: KernelTable, dtype: torch.dtype) -> None:
    """Compare a kernel on an int8 cache whose scales have a type with the operator."""
    args = kernel_arguments([[30]], torch.int8, torch.float32)
    args[5:7] = [scales.to(dtype) for scales in args[5:7] if isinstance(scales, torch.Tensor)]
    assert_same(run(table, *args), cached_attention(*args), 2e-5)


def assert_sizes_are_refused(table: KernelTable, case: str, types: str) -> None:
    """Check that a kernel reports caches whose sizes do not fit together."""
    index, part = WRONG_SIZES[case]
    args = kernel_arguments([[30], [31]], *TYPES[types])
    args[index] = args[index][part].contiguous()
    with pytest.raises(KernelError, match=r"keys of shape .* channels of the query"):
        run(table, *args)


NEW = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def assert_is_updated(table: KernelTable, entries: torch.dtype, new: torch.dtype, channels: tuple[int, ...]) -> None:
    """Compare writes to a cache, in its memory and in other memory, with the operator."""
    cache, rows = (torch.randn(3, GROUPS, CAPACITY, *channels) * 50).to(entries), torch.tensor([2, 2, 0])
    some = (torch.randn(3, GROUPS, 2, *channels) * 20).clamp(-127, 127).round().to(new)
    if entries is not torch.int8:
        some = (some * 0.77).to(new)
    args = cache, some, torch.tensor([[3, 4], [5, 39], [0, 1]]), rows
    expected = as_array(update_cache(*args))
    kernel = table.find(UPDATE, {dtype_of(x) for x in args})
    assert kernel is not None
    before, *others = (as_array(x) for x in args)
    for cached, out in ((before, np.zeros_like(before)), (before, before)):
        kernel.function(cached, *others, out=out)
        assert_same(out, expected, 0)


def assert_places_are_checked(table: KernelTable) -> None:
    """Check that a write to a place which the cache lacks is reported, and that nothing is written."""
    entries, new = np.zeros((2, GROUPS, CAPACITY, 4), np.float16), np.ones((2, GROUPS, 1, 4), np.float32)
    kernel = table.find(UPDATE, {DType.float16, DType.float32, DType.int64})
    assert kernel is not None
    for positions, rows, match in (
        ([[0], [40]], [0, 1], "position 0 to 40 is out of range for a cache of size 40"),
        ([[0], [-1]], [0, 1], "position -1 to 0 is out of range"),
        ([[0], [1]], [0, 2], "row 0 to 2 is out of range for a cache of size 2"),
    ):
        with pytest.raises(KernelError, match=match):
            kernel.function(entries, new, np.array(positions), np.array(rows), out=entries)
        assert not entries.any()


def dtype_of(tensor: torch.Tensor) -> DType:
    return DType[str(tensor.dtype).removeprefix("torch.")]


class Layer(torch.nn.Module):
    """Attention of new tokens over a cache of a type, which the call writes first."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, GROUPS, CAPACITY, CHANNELS, dtype=dtype))

    def forward(self, query: torch.Tensor, new: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        self.keys.index_copy_(2, positions, new.to(self.keys.dtype))
        self.values.index_copy_(2, positions, new.neg().to(self.values.dtype))
        return cached_attention(query, self.keys, self.values, positions[None])


def assert_state_is_read(kernels: KernelTable | Sequence[str], dtype: torch.dtype) -> None:
    """Run a program of two methods, for several tokens and for one, that share a cache of a type."""
    module = Layer(dtype)
    query, new = torch.randn(1, HEADS, 6, CHANNELS), torch.randn(1, GROUPS, 6, CHANNELS)
    calls = {
        "prefill": (query[:, :, :5], new[:, :, :5], torch.arange(5)),
        "decode": (query[:, :, 5:], new[:, :, 5:], torch.tensor([5])),
    }
    exported = {name: torch.export.export(module, args) for name, args in calls.items()}
    program = to_backend(exported, [], kernels=kernels)
    for name, args in calls.items():
        assert_same(program.method(name)(*args), module(*args), 2e-5)
