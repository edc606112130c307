"""Core ATen operators on every dtype that torch's own kernels accept, compared with the portable kernels."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import pytest
import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_map

from tests.kernels.core import WITHOUT_KERNEL, core_operators
from tests.kernels.known_rows import INFINITE, KNOWN, SOME
from tests.support.kernels import describe, sample
from tests.support.opinfo import Comparison, Rows, compare, database, samples, tensors

aten = torch.ops.aten
DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
    torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
]  # fmt: skip
UNSIGNED = {torch.uint8, torch.uint16, torch.uint32, torch.uint64}
LARGEST = 3000  # elements of a call; of several calls on the same dtypes a few are enough
CALLS = 3
# No entry of the database calls these, or on no elements alone.
IMAGE, INDICES = sample(1, 2, 4, 5), torch.tensor([[0, 1], [2, 0]])
OWN: list[tuple[OpOverload, tuple[Any, ...]]] = [
    *((getattr(aten, f"bitwise_{n}").Scalar, (sample(3, 4, dtype=torch.int32), 6)) for n in ("and", "or", "xor")),
    (aten.scatter.value, (sample(3, 2), 0, INDICES, 1)),
    (aten.slice_scatter.default, (sample(3, 4), sample(2, 4), 0, 1, 3)),
    (aten.col2im.default, (sample(1, 8, 6), [3, 4], [2, 2], [1, 1], [0, 0], [1, 1])),
    (aten.reflection_pad2d.default, (IMAGE, [1, 2, 0, 1])),
    (aten.reflection_pad3d.default, (IMAGE, [1, 2, 0, 1, 1, 0])),
    (aten.replication_pad3d.default, (IMAGE, [1, 2, 0, 1, 1, 0])),
    (aten.upsample_nearest2d.vec, (IMAGE, [7, 3], None)),
    (aten.avg_pool2d_backward.default, (sample(1, 2, 2, 2), IMAGE, [2, 2], [2, 2], [0, 0], False, True, None)),
    (aten._adaptive_avg_pool2d_backward.default, (sample(1, 2, 2, 3), IMAGE)),
    (aten.embedding_dense_backward.default, (sample(2, 2, 3), INDICES, 4, -1, False)),
    (aten.pow.Scalar, (2, sample(3, 4))),
    (aten.pow.Scalar, (2, sample(3, 4, dtype=torch.int64).abs())),
    (aten._adaptive_avg_pool3d.default, (sample(1, 2, 3, 4, 5), [2, 2, 3])),
    (aten._native_batch_norm_legit_no_training.default, (IMAGE, *torch.ones(4, 2), 0.1, 1e-5)),
    (aten.empty.memory_format, ([3, 4],)),
    (aten._pdist_forward.default, (sample(4, 3),)),
    (aten.randperm.default, (9,)),
]
KNOWN_OF_DTYPES = dict.fromkeys(
    (f"aten.{op}[[]complex*" for op in ("pow.Tensor_Tensor", "reciprocal.default", "rsqrt.default")), INFINITE
)
UNREACHED = {"aten._embedding_bag.default", "aten._native_batch_norm_legit.default",
             "aten._native_batch_norm_legit.no_stats", "aten.convolution_backward.default", "aten.div.Scalar_mode",
             "aten.native_group_norm_backward.default", "aten.native_layer_norm_backward.default"}  # fmt: skip


class _Recorder(Comparison):
    """A dispatch mode that records calls of core operators, a few for each combination of dtypes."""

    def __init__(self) -> None:
        super().__init__(Rows())
        self.core = set(core_operators()) - set(WITHOUT_KERNEL)
        self.calls: dict[tuple[Any, ...], dict[str, tuple[Any, Any]]] = {}

    def _compare(self, op: OpOverload, args: Any, kwargs: Any) -> None:
        arguments = list(tensors((args, kwargs)))
        if (
            str(op) not in self.core
            or sum(t.numel() for t in arguments) > LARGEST
            or not all(t.numel() for t in arguments)
        ):
            return  # on no elements torch accepts dtypes that it does not compute
        recorded = self.calls.setdefault((op, tuple(str(t.dtype) for t in arguments)), {})
        if len(recorded) < CALLS:
            text = describe(args) + describe(kwargs)
            recorded[text] = tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, (args, kwargs))

    def record(self, names: set[str] | None) -> Iterator[tuple[OpOverload, Any, Any]]:
        """Return the calls in the samples of the named entries, or of all entries."""
        for entry in database():
            for dtype in (torch.float32, torch.int64, torch.bool):
                if (names is None or entry.name in names) and dtype in entry.supported_dtypes("cpu"):
                    for one in samples(entry, dtype, 2):
                        try:
                            with self:
                                entry(one.input, *one.args, **one.kwargs)
                        except (RuntimeError, ValueError, IndexError, NotImplementedError, AssertionError):
                            continue  # the entry's own mistake
        for (op, _), recorded in self.calls.items():
            yield from ((op, *call) for call in recorded.values())
        yield from ((op, args, {}) for op, args in OWN)


def with_dtype(tree: Any, old: torch.dtype | None, new: torch.dtype) -> Any:
    """Replace one dtype of the arguments by another; without tensors, the dtype argument itself."""

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.dtype is old:
            return (leaf.abs() if new in UNSIGNED and old is not torch.bool else leaf).to(new)
        return new if isinstance(leaf, torch.dtype) and old is None else leaf

    return tree_map(convert, tree)


@pytest.mark.parametrize("names", [set(SOME[::9]), pytest.param(None, marks=pytest.mark.slow)], ids=["some", "all"])
def test_every_dtype_that_torch_accepts(names):
    recorder, compared, failures = _Recorder(), set(), {}
    with warnings.catch_warnings(), torch.inference_mode(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for op, args, kwargs in recorder.record(names):
            for old in {t.dtype for t in tensors((args, kwargs))} or {None}:
                for new in DTYPES:
                    arguments, named = with_dtype((args, kwargs), old, new)
                    try:
                        expected = list(tensors(op(*arguments, **named)))
                    except (RuntimeError, ValueError, IndexError, NotImplementedError):
                        continue  # torch refuses the dtype
                    if not any(t.numel() for t in expected):
                        continue  # it computes nothing
                    first = next(tensors((arguments, named)), None)
                    row = f"{op}[{str((expected[0] if first is None else first).dtype).removeprefix('torch.')}]"
                    compared.add(row)
                    try:
                        compare(op, arguments, named, expected)
                    except Exception as error:  # of a kernel
                        if not any(fnmatchcase(row, pattern) for pattern in {**KNOWN, **KNOWN_OF_DTYPES}):
                            failures[row] = f"{describe(arguments)} {describe(named)}: {error}"
    assert not failures, "\n".join(f"{row}: {why}" for row, why in failures.items())
    reached = {row.partition("[")[0] for row in compared}
    if names is None:
        assert recorder.core - reached == UNREACHED
    assert len(compared) > 200
