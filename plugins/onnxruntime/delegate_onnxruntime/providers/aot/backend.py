"""The AOT part: a region becomes an ONNX model that one provider runs completely."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Any

import torch
from pydantic import Field, NonNegativeInt
from torch.fx import Node

from delegate.backend import aot, run_time_ranges
from delegate.backend.aot import Claim, PreprocessResult, Region
from delegate.backend.inexact import Nan, floats_of, keeps_nan, nan_notes
from delegate.backend.lowering import conditions, of_dtypes
from delegate.backend.qdq import AFFINE, DECODES, QUANTIZE, RUN_TIME, is_known
from delegate.backend.quantizable import QuantizationScheme
from delegate.backend.special_values import PASSING, POOLS, keeps_infinity
from delegate.edge.node import op_name
from delegate.verdict import Verdict
from delegate_onnxruntime.onnx.aot.backend import OnnxBackend, provider_code
from delegate_onnxruntime.onnx.aot.model import ExportedModel
from delegate_onnxruntime.onnx.aot.translations import TRANSLATIONS, table_of
from delegate_onnxruntime.onnx.runtime.blob import pack
from delegate_onnxruntime.onnx.runtime.provider import CPU, Provider
from delegate_onnxruntime.providers.aot.conversion import convertible
from delegate_onnxruntime.providers.aot.fusions import notes_on_floats, save_optimized
from delegate_onnxruntime.providers.aot.operators import LIMITS, LOSING_NAN, operators_of
from delegate_onnxruntime.providers.aot.patterns import LIBRARY
from delegate_onnxruntime.providers.aot.rewrite import IN_INTEGERS, KNOWN, PATTERNS, rewritten
from delegate_onnxruntime.providers.aot.schemes import SCHEMES
from delegate_onnxruntime.providers.deviations import DEVIATIONS
from delegate_onnxruntime.providers.runtime.delegate import provider_options, settings
from delegate_onnxruntime.providers.runtime.installed import find, plugin_wheels

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
    table = table_of({name: frozenset() for rows in TRANSLATIONS.values() for r in rows for name in r.lower.needs})

    def __init__(self, options: OnnxRuntimeOptions) -> None:
        super().__init__(options)
        self.library, self._provider = options.provider, find(options.provider)
        self.operators = operators_of(options.provider)
        self.table = table_of(self.operators, LIMITS.get(options.provider))
        self._is_cpu = options.provider == CPU

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

    def provider(self) -> Provider:
        return self._provider

    def settings(self) -> Any:
        return settings(self._provider, self._specs())

    def provider_code(self) -> tuple[str, str]:
        name, options = self.options.provider, provider_options(self._specs())
        if self._provider.built_in:
            created = "import onnxruntime\n\noptions = onnxruntime.SessionOptions()\n"
            return f"{created}options.add_provider({name!r}, {options})\n", "onnxruntime"
        wheel, library = plugin_wheels()[name]
        return provider_code(name, library.__module__.partition(".")[0], options), wheel

    def preprocess(self, region: Region) -> PreprocessResult:
        if not self._is_cpu:
            return super().preprocess(region)
        lowered, in_floats = super().preprocess(rewritten(region)), run_time_ranges.notes_on_floats(region, self.claims)
        return replace(lowered, notes=(*lowered.notes, *in_floats))

    def compile(self, exported: ExportedModel, region: Region) -> PreprocessResult:
        if self._is_cpu:
            exported = replace(exported, model=convertible(exported.model))
        in_floats: tuple[str, ...] = ()
        if self._is_cpu and any(op_name(node) == QUANTIZE for node in region.calls):
            with TemporaryDirectory(prefix="delegate-onnxruntime-") as folder:
                self.refuse_left_to_cpu(exported, save_optimized(self.settings(), folder))
                in_floats = tuple(notes_on_floats(folder))
        else:
            self.refuse_left_to_cpu(exported)
        blob, specs, data = pack(exported.model)
        count = len(exported.operators)
        note = f"{count} ONNX operator{'s' * (count != 1)}, checked on {self.library}"
        notes = (note, *in_floats, *nan_notes(region, _LOSES))
        return PreprocessResult(blob, {**specs, **self._specs()}, notes, data=data)

    def _specs(self) -> dict[str, Any]:
        return dict(self.options.model_dump())
