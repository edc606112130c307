"""Which ONNX operators a provider runs on which dtypes, as its kernel definitions say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import onnx
import torch

from delegate.backends.onnx.model import OPSET
from delegate.backends.onnx.translations import TRANSLATIONS, Operators

# https://onnx.ai/onnx/repo-docs/IR.html, names of element types in kernel definitions and schemas.
_DTYPES: Mapping[str, torch.dtype] = {
    "tensor(float)": torch.float32, "tensor(float16)": torch.float16, "tensor(bfloat16)": torch.bfloat16,
    "tensor(double)": torch.float64, "tensor(bool)": torch.bool, "tensor(int64)": torch.int64,
    "tensor(int32)": torch.int32, "tensor(int16)": torch.int16, "tensor(int8)": torch.int8,
    "tensor(uint8)": torch.uint8, "tensor(uint16)": torch.uint16,
}  # fmt: skip


@cache
def operators_of(provider: str) -> Operators:
    """The operators of the translations that a provider has kernels for.

    Of a provider that has none, since it compiles whole graphs, all that ONNX defines: the session tells what it
    leaves. So it is with operators that ONNX defines by others: they run where these do.
    """
    from onnxruntime.capi import _pybind_state

    try:
        kernels = _pybind_state.get_registered_ep_kernel_defs(provider)
    except RuntimeError:  # a provider in a library of its own that registers none here
        kernels = []
    return {name: dtypes for name in sorted(_named()) if (dtypes := frozenset(_dtypes(name, kernels)))}


def _named() -> set[str]:
    """Operators, and modes of them, that translations use."""
    return {name for rows in TRANSLATIONS.values() for row in rows for name in row.lower.needs}


def _dtypes(name: str, kernels: Iterable[Any]) -> Iterator[torch.dtype]:
    schema: Any = onnx.defs.get_schema(name.partition("(")[0], OPSET)
    kind = _kind(schema)
    own = [
        k.type_constraints.get(kind, ())
        for k in kernels
        if (k.op_name, k.domain) == (schema.name, "") and k.version_range[0] <= OPSET <= k.version_range[1]
    ]
    if not own and (not kernels or schema.has_function or schema.has_context_dependent_function):
        own = [next((c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == kind), ())]
    return (_DTYPES[text] for texts in own for text in texts if text in _DTYPES)


def _kind(schema: Any) -> str:
    """The type parameter of the tensors that an operator computes with, e.g. "T".

    That of its result where operands share it; of a comparison, or of what finds places, that of its first operand.
    """
    result, given = schema.outputs[0].type_str, [x.type_str for x in schema.inputs]
    return str(result if result in given else given[0])
