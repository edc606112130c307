"""The AOT part: a region becomes an ONNX model that one provider runs completely."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from delegate_vendor_kit import run_time_ranges
from delegate_vendor_kit.special_values import PASSING, POOLS, floats_of, keeps_infinity, keeps_nan, nan_notes
from pydantic import Field, NonNegativeInt
from torch.fx import Node

from delegate.backend import aot
from delegate.backend.aot import Claim, PreprocessResult, Region
from delegate.backend.inexact import Nan
from delegate.backend.lowering import conditions, of_dtypes
from delegate.backend.qdq import AFFINE, DECODES, QUANTIZE, RUN_TIME, is_known
from delegate.backend.quantizable import QuantizationScheme
from delegate.edge.node import op_name
from delegate.verdict import Verdict
from delegate_onnxruntime.onnx.aot.backend import OnnxBackend
from delegate_onnxruntime.onnx.aot.model import ExportedModel
from delegate_onnxruntime.onnx.aot.translations import TRANSLATIONS, table_of
from delegate_onnxruntime.onnx.runtime.provider import CPU
from delegate_onnxruntime.providers.aot.operators import LIMITS, LOSING_NAN, operators_of
from delegate_onnxruntime.providers.aot.patterns import LIBRARY, SCHEMES
from delegate_onnxruntime.providers.aot.rewrite import IN_INTEGERS, KNOWN, PATTERNS, rewrite_integers
from delegate_onnxruntime.providers.deviations import DEVIATIONS
from delegate_onnxruntime.providers.info import find, plugin_wheels
from delegate_onnxruntime.providers.runtime import OnnxRuntimeRuntime

_FILE, _WEIGHTS = "optimized.onnx", "optimized.weights"
_CONVERSIONS = frozenset({"QuantizeLinear", "DequantizeLinear"})
_DECODED = frozenset(DECODES) - KNOWN  # constants that the rewrite decodes
_CODED = frozenset({torch.float32, torch.int8, torch.uint8, torch.int32, torch.int64})
_LOSES = floats_of(LOSING_NAN)


class OnnxRuntimeOptions(aot.Options):
    """Options of the backend."""

    provider: str = Field(
        default=CPU,
        description="ONNX Runtime's name of the provider: CPUExecutionProvider, CUDAExecutionProvider, "
        "TensorrtExecutionProvider, DmlExecutionProvider, CoreMLExecutionProvider, OpenVINOExecutionProvider, or the "
        "provider of a plugin wheel.",
    )
    provider_options: dict[str, str | int | float | bool] = Field(
        default={},
        description="The provider's own options, e.g. device_id: 0. They may name libraries, so a program file with "
        "such options is opened only with trust_code.",
    )
    threads: NonNegativeInt = Field(
        default=0, description="Number of threads of the host; 0: its default, within this process's cores."
    )
    nan: Nan = "fast"


class OnnxRuntimeBackend(OnnxBackend):
    """A provider of ONNX Runtime: its kernel definitions list the supported operators, and its sessions decide."""

    name = "onnxruntime"
    Options = OnnxRuntimeOptions
    deviations = DEVIATIONS
    runtime = OnnxRuntimeRuntime
    table = table_of({name: frozenset() for rows in TRANSLATIONS.values() for r in rows for name in r.lower.needs})

    def __init__(self, options: OnnxRuntimeOptions) -> None:
        super().__init__(options)
        self.library, self._is_cpu = options.provider, options.provider == CPU
        self.wheel = "" if find(options.provider).built_in else plugin_wheels()[options.provider][0]
        self.operators = operators_of(options.provider)
        self.table = table_of(self.operators, LIMITS.get(options.provider))

    @classmethod
    def conditions(cls, op: str) -> tuple[str, ...] | None:
        """Return the ONNX operators of the row, then the conditions of its check; None without a row."""
        row = cls.table.get(op)
        if row is None:
            return None
        onnx = f"As ONNX's {', '.join((*row.lower.onnx, *row.lower.between))}, on dtypes that the provider supports."
        return (onnx, *conditions(row.check))

    def check(self, node: Node) -> Verdict:
        if self._is_cpu and op_name(node) in RUN_TIME and not is_known(node):
            return run_time_ranges.outside_of_pattern(LIBRARY)
        if self._is_cpu and op_name(node) in _DECODED and is_known(node):
            return of_dtypes(node, _CODED, self.library)
        verdict = keeps_nan(node, _LOSES, self.options.nan) and keeps_infinity(node, POOLS, PASSING)
        return verdict and super().check(node)

    @classmethod
    def quantization(cls) -> Sequence[QuantizationScheme]:
        return SCHEMES

    @property
    def preserve_ops(self) -> Set[str]:
        return super().preserve_ops | AFFINE if self._is_cpu else super().preserve_ops

    def claims(self, node: Node) -> Sequence[Claim]:
        if not self._is_cpu:
            return ()
        return [c for c in PATTERNS.claims(node) if c.name != IN_INTEGERS or all(map(self.check, c.nodes))]

    def preprocess(self, region: Region) -> PreprocessResult:
        if not self._is_cpu:
            return super().preprocess(region)
        lowered = super().preprocess(rewrite_integers(region))
        in_floats = run_time_ranges.notes_on_floats(region, self.claims)
        return replace(lowered, notes=(*lowered.notes, *in_floats))

    def compile(self, exported: ExportedModel, region: Region) -> PreprocessResult:
        from delegate_onnxruntime.providers.aot.conversion import convert_int8

        if self._is_cpu:
            exported = replace(exported, model=convert_int8(exported.model))
        in_floats: tuple[str, ...] = ()
        if self._is_cpu and any(op_name(node) == QUANTIZE for node in region.calls):
            with TemporaryDirectory(prefix="delegate-onnxruntime-") as folder:
                self.refuse_left_to_cpu(exported, _save_optimized(self.settings(), folder))
                in_floats = tuple(_notes_on_floats(folder))
        else:
            self.refuse_left_to_cpu(exported)
        count = len(exported.operators)
        note = f"{count} ONNX operator{'s' * (count != 1)}, checked on {self.library}"
        return self.pack(exported.model, (note, *in_floats, *nan_notes(region, _LOSES)))

    def _specs(self) -> dict[str, Any]:
        return dict(self.options.model_dump())


def _save_optimized(settings: Any, folder: str) -> Any:
    """Let a session write the model that it runs to a folder; return its options."""
    settings.optimized_model_filepath = str(Path(folder) / _FILE)
    settings.add_session_config_entry("session.optimized_model_external_initializers_file_name", _WEIGHTS)
    settings.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1024")
    return settings


def _notes_on_floats(folder: str) -> Iterator[str]:
    """Yield notes on the operators that read decoded integers in a model that a session wrote."""
    import onnx

    graph = onnx.load_model(Path(folder) / _FILE, load_external_data=False).graph
    decoded = {node.output[0] for node in graph.node if node.op_type == "DequantizeLinear"}
    floats = (n.op_type for n in graph.node if n.op_type not in _CONVERSIONS and not decoded.isdisjoint(n.input))
    for name, count in sorted(Counter(floats).items()):
        yield f"computed in floats, not in integers: {name}{f' ({count} times)' if count > 1 else ''}"
