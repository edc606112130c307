"""Runs torch's OpInfo database and compares every operator call in it with the portable kernel."""

from __future__ import annotations

import sys
import unittest
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from delegate.edge.node import dtype_of
from delegate.testing import assert_same
from tests.support.kernels import LIBRARIES, describe, run, schema_arguments

DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool,
    torch.complex64,
)  # fmt: skip
# Wider than the kernels' own tests: samples are longer sums, and torch rounds in other places than we do.
_TOLERANCE = {
    torch.float64: (1e-7, 1e-7), torch.float32: (1e-4, 1e-4), torch.float16: (1e-2, 1e-2),
    torch.bfloat16: (4e-2, 4e-2), torch.complex64: (1e-4, 1e-4), torch.complex128: (1e-7, 1e-7),
}  # fmt: skip
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
# The last result says where elements were found: of equal ones torch takes any.
_PLACES = {
    "aten.sort.default", "aten.argsort.default", "aten.topk.default", "aten.kthvalue.default", "aten.mode.default",
    "aten.median.dim", "aten.nanmedian.dim",
}  # fmt: skip
# How many of the results are meant for users; the others serve the backward pass, and torch fills them now and then.
_MEANT = {
    "aten._linalg_det.default": 1, "aten._linalg_slogdet.default": 2, "aten._linalg_solve_ex.default": 1,
    "aten._embedding_bag_forward_only.default": 1, "aten._embedding_bag.default": 1,
}  # fmt: skip
# Eigenvectors and singular vectors are unique up to their sign or phase.
_UP_TO_PHASE = {"aten._linalg_eigh.default": {1}, "aten.linalg_eig.default": {1}, "aten._linalg_svd.default": {0, 2}}
_EMPTY = ("aten.empty", "aten.new_empty")  # torch leaves their memory as it is: there is nothing to compare


def database() -> list[Any]:
    """Return torch's OpInfo entries."""
    try:
        import expecttest  # noqa: F401
    except ImportError:  # torch's module names it as the base of test cases, which nobody runs here
        stand_in = ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase
        sys.modules["expecttest"] = stand_in
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal import common_utils
        from torch.testing._internal.common_methods_invocations import op_db
        from torch.testing._internal.opinfo import core
    # It reads the source of the whole stack for every sample, in search of a unittest: nine tenths of a sweep's time.
    for module in (common_utils, core):  # each has the name
        module.extract_test_fn = lambda: None
    return list(op_db)


@dataclass
class Rows:
    """The outcomes of the calls of each overload and dtype.

    A row is named like "aten.add.Tensor[float32]": the overload, and the dtype of its first tensor. `refused` has the
    entries with a sample that torch itself cannot run here, and its message.
    """

    passed: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    failed: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    refused: dict[str, str] = field(default_factory=dict)

    def failures(self) -> dict[str, str]:
        """Return the rows with a call that failed, with the first message."""
        return {row: messages[0] for row, messages in sorted(self.failed.items())}


class Comparison(TorchDispatchMode):
    """A dispatch mode that decomposes calls to core ATen and compares each with its kernel, once per signature.

    A compound operator with a kernel is compared, and decomposed all the same. A call that writes into an argument is
    compared as the functional operator of the same name.
    """

    def __init__(self, rows: Rows) -> None:
        super().__init__()
        self.rows = rows
        self._table = dict(torch.export.default_decompositions())
        self._seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        compound = func in self._table or func.has_kernel_for_dispatch_key(_COMPOSITE)
        op = functional(func)
        known = any(str(op) in table for table in LIBRARIES)
        if op is not None and (not compound or known) and all(map(_representable, tensors((args, kwargs)))):
            with _lazy_values_allowed():
                self._compare(op, args, kwargs)
        if compound:
            with self:
                result = self._table[func](*args, **kwargs) if func in self._table else func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        return func(*args, **kwargs)

    def _compare(self, op: OpOverload, args: Any, kwargs: Any) -> None:
        signature = f"{op} {_layout((args, kwargs))}"
        if signature in self._seen:
            return
        self._seen.add(signature)
        try:
            expected = list(tensors(op(*args, **kwargs)))
        except Exception:
            return  # the entry's own mistake, or what only the operator that writes can do
        if not expected or not all(map(_representable, expected)):
            return  # checks and size expressions give no tensor
        first = next(tensors((args, kwargs)), expected[0])
        row = f"{op}[{str(first.dtype).removeprefix('torch.')}]"
        try:
            compare(op, args, kwargs, expected)
        except Exception as error:
            self.rows.failed[row].append(f"{describe(args)} {describe(kwargs)}: {type(error).__name__}: {error}")
        else:
            self.rows.passed[row] += 1


def compare(op: OpOverload, args: Any, kwargs: Any, expected: list[torch.Tensor]) -> None:
    """Assert that the kernel returns what torch returns; for random and uninitialized results only shape and dtype."""
    results = run(op, *args, expected=tuple(expected), **kwargs)
    arguments = dict(zip((a.name for a in op._schema.arguments), schema_arguments(op, args, kwargs), strict=True))
    any_value = torch.Tag.nondeterministic_seeded in op.tags or str(op).startswith(_EMPTY)
    for index, (ours, torchs) in enumerate(zip(results, expected, strict=True)):
        assert ours.shape == torchs.shape, f"result {index}: shape {ours.shape}, torch gives {torchs.shape}"
        assert ours.dtype == torchs.dtype, f"result {index}: dtype {ours.dtype}, torch gives {torchs.dtype}"
        if any_value or index >= _MEANT.get(str(op), len(expected)):
            continue
        if str(op) in _PLACES and index == len(expected) - 1:
            x, dim = arguments["self"], arguments["dim"]
            assert_same(_at(x, ours, dim), _at(x, torchs, dim), tolerance=0)
            continue
        rtol, atol = _TOLERANCE.get(torchs.dtype, (0.0, 0.0))
        size = torch.abs if index in _UP_TO_PHASE.get(str(op), ()) else torch.Tensor.resolve_conj
        assert_same(size(ours), size(torchs), rtol, each=True, at_least=atol / rtol if rtol else 0.0)


def _at(x: torch.Tensor, places: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the elements at places along a dimension, which may lack these places."""
    if x.ndim == 0:
        return places
    x = x.to(torch.int64) if x.dtype in (torch.uint16, torch.uint32, torch.uint64) else x  # torch gathers none
    return x.gather(dim, places if places.ndim == x.ndim else places.unsqueeze(dim))


@contextmanager
def _lazy_values_allowed() -> Iterator[None]:
    """Allow lazy conjugates and negations, which torch does not resolve inside a dispatch mode."""
    with torch._C._PreserveDispatchKeyGuard():
        for key in (torch._C.DispatchKey.Conjugate, torch._C.DispatchKey.Negative):
            torch._C._dispatch_tls_set_dispatch_key_excluded(key, False)
        yield


def functional(op: OpOverload) -> OpOverload | None:
    """Return the operator itself, or its variant without writes; None if there is none."""
    if not op._schema.is_mutable:
        return op
    packet = getattr(torch.ops.aten, op._schema.name.removeprefix("aten::").removesuffix("_"), None)
    overload = getattr(packet, op._overloadname, None)
    return overload if overload is not None and not overload._schema.is_mutable else None


def tensors(tree: Any) -> Iterator[torch.Tensor]:
    """Return all tensors in nested lists, tuples and dicts."""
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))


def _representable(t: torch.Tensor) -> bool:
    """Return if a tensor is memory with strides: neither sparse nor quantized."""
    return t.layout is torch.strided and dtype_of(t.dtype) is not None


def _layout(tree: Any) -> str:
    """Return arguments as text, with dtype, shape and strides of tensors."""
    return describe(tree) + str([t.stride() for t in tensors(tree)])


def samples(entry: Any, dtype: torch.dtype, count: int) -> Iterator[Any]:
    """Return the first samples of an entry: its plain ones, the first of them non-contiguous, and its harder ones."""
    torch.manual_seed(0)
    np.random.seed(0)
    plain = list(islice(entry.sample_inputs("cpu", dtype, requires_grad=False), count))
    yield from plain
    dense = (s for s in plain if all(t.layout is torch.strided for t in tensors((s.input, s.args, s.kwargs))))
    yield from (sample.noncontiguous() for sample in islice(dense, 1))
    yield from islice(entry.reference_inputs("cpu", dtype, requires_grad=False), count)


def spoiled(values: Sequence[float], sample: Any) -> tuple[Any, Any, Any]:
    """Return input, args and kwargs of a sample, with the values at some places of each tensor of floats."""

    def spoil(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point() or leaf.numel() <= len(values):
            return leaf
        flat = leaf.flatten().clone()
        for number, value in enumerate(values):
            flat[(7 * number + len(flat) // 3) % len(flat)] = value
        return flat.reshape(leaf.shape)

    return tree_map(spoil, (sample.input, sample.args, sample.kwargs))


def sweep(
    entries: Iterable[Any], dtypes: Iterable[torch.dtype] = DTYPES, count: int = 12, values: Sequence[float] = ()
) -> Rows:
    """Run the entries on `count` samples of each supported dtype, with `values` among their floats."""
    rows = Rows()
    comparison = Comparison(rows)
    with warnings.catch_warnings(), torch.inference_mode(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for entry in entries:
            for dtype in dtypes:
                if dtype in entry.supported_dtypes("cpu"):
                    for sample in samples(entry, dtype, count):
                        try:
                            x, args, kwargs = spoiled(values, sample)
                            with comparison:
                                entry(x, *args, **kwargs)
                        except (RuntimeError, AssertionError, NotImplementedError, ValueError, IndexError) as error:
                            rows.refused[f"{entry.name}[{dtype}]"] = str(error)
    return rows
