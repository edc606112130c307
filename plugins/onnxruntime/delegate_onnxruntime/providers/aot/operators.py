"""The ONNX operators of a provider with their dtypes, read from its kernel definitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch

from delegate.backend.lowering import Check
from delegate_onnxruntime.dsp.aot.operators import LIMITS as QNN
from delegate_onnxruntime.onnx.aot.model import OPSET, import_onnx
from delegate_onnxruntime.onnx.aot.translations import TRANSLATIONS, Operators
from delegate_onnxruntime.webgpu.operators import LIMITS as WEBGPU

# https://onnx.ai/onnx/repo-docs/IR.html, names of element types in kernel definitions and schemas. Kernels of this
# project run float64, since ONNX and torch's exporter hold the numbers among arguments in float32.
_DTYPES: Mapping[str, torch.dtype] = {
    "tensor(float)": torch.float32, "tensor(float16)": torch.float16, "tensor(bfloat16)": torch.bfloat16,
    "tensor(bool)": torch.bool, "tensor(int64)": torch.int64,
    "tensor(int32)": torch.int32, "tensor(int16)": torch.int16, "tensor(int8)": torch.int8,
    "tensor(uint8)": torch.uint8, "tensor(uint16)": torch.uint16,
}  # fmt: skip

# Operators whose kernels return wrong numbers or fail for some nodes: operator -> an additional check of a node.
LIMITS: Mapping[str, Mapping[str, Check]] = {"WebGpuExecutionProvider": WEBGPU, "QNNExecutionProvider": QNN}

_FLOATS = frozenset({torch.float32})
_HALVES = frozenset({torch.float16, torch.bfloat16})

# Kernels that no check of a node makes right: provider -> operator -> dtypes. The CPU's extremes of int64 are wrong
# beyond 32 bits; its Sigmoid and Elu lose the digits of small results; its sums and products at indices fail in the
# first call for some dtypes. WebGPU's norm keeps the epsilon of the first one that the process runs.
_WRONG: Mapping[str, Mapping[str, frozenset[torch.dtype]]] = {
    "CPUExecutionProvider": {
        **dict.fromkeys(("Max", "Min", "Clip"), frozenset({torch.int64})),
        **dict.fromkeys(("Sigmoid", "Elu"), _FLOATS),
        **dict.fromkeys(("ScatterND(add)", "ScatterND(mul)"), _HALVES | {torch.bool}),
    },
    "WebGpuExecutionProvider": {"InstanceNormalization": frozenset({torch.float32, torch.float16})},
}

# What loses NaN on the CPU provider, which compares. tests/test_special_values.py finds what is missing.
LOSING_NAN = frozenset(
    f"aten.{name}"
    for name in (
        *("amax.default", "amin.default", "max.default", "min.default", "max.dim", "min.dim", "sign.default"),
        *("argmax.default", "argmin.default", "topk.default", "sort.default", "sort.stable", "argsort.default"),
        *("max_pool1d.default", "max_pool2d.default", "max_pool3d.default"),
        *("max_pool2d_with_indices.default", "max_pool3d_with_indices.default"),
        *("adaptive_max_pool1d.default", "adaptive_max_pool2d.default", "adaptive_max_pool3d.default"),
        *("linalg_vector_norm.default", "grid_sampler_2d.default"),
    )
)


@cache
def operators_of(provider: str) -> Operators:
    """Return the operators of the translations for which a provider has kernels.

    A provider without kernels compiles whole graphs, so for such a provider, return all operators of ONNX: its session
    reports the unsupported ones. ONNX defines some operators by others; return them, too.
    """
    from onnxruntime.capi import _pybind_state

    try:
        kernels = _pybind_state.get_registered_ep_kernel_defs(provider)
    except RuntimeError:  # a provider in a library of its own that registers none here
        kernels = []
    wrong = _WRONG.get(provider, {})
    names = sorted(_operator_names())
    supported = {name: frozenset(_dtypes(name, kernels)) - wrong.get(name, frozenset()) for name in names}
    return {name: dtypes for name, dtypes in supported.items() if dtypes}


def _operator_names() -> set[str]:
    """Return the operators, with their modes, that translations use."""
    return {name for rows in TRANSLATIONS.values() for row in rows for name in row.lower.needs}


def _dtypes(name: str, kernels: Iterable[Any]) -> Iterator[torch.dtype]:
    schema: Any = import_onnx().defs.get_schema(name.partition("(")[0], OPSET)
    allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    kinds = _kinds(schema, allowed)
    own: list[Mapping[str, Iterable[str]]] = [
        k.type_constraints
        for k in kernels
        if (k.op_name, k.domain) == (schema.name, "") and k.version_range[0] <= OPSET <= k.version_range[1]
    ]
    if not own and (not kernels or schema.has_function or schema.has_context_dependent_function):
        own = [allowed]
    texts = (text for constraints in own for kind in kinds for text in constraints.get(kind, ()))
    return (_DTYPES[text] for text in texts if text in _DTYPES)


def _kinds(schema: Any, allowed: Mapping[str, Sequence[str]]) -> set[str]:
    """Return the type parameters of an operator's first operand and first result, e.g. "T".

    A type parameter that is only boolean is omitted: it belongs to a mask or a comparison, which rows handle.
    """
    first, last = schema.inputs[0].type_str, schema.outputs[0].type_str
    return {kind for kind in (first, last) if kind in allowed and allowed[kind] != ["tensor(bool)"]} or {first}
