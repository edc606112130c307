"""The AOT part: OpenVINO's frontend checks each node, and a region becomes OpenVINO's IR."""

from __future__ import annotations

from collections.abc import Sequence, Set
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Literal

import numpy as np
import openvino
import torch
from delegate_vendor_kit import run_time_ranges
from delegate_vendor_kit.special_values import (
    EXTREMES,
    MEANS,
    PASSING,
    constants_of_zero,
    extremes_of_infinity,
    floats_of,
    keeps_infinity,
    keeps_nan,
    keeps_zero,
    nan_notes,
)
from pydantic import Field, NonNegativeInt
from torch.fx import Node

from delegate.backend import aot
from delegate.backend.aot import Claim, PreprocessResult, Region, RegionFailed, RegionRefused, Reproduction
from delegate.backend.asking import AskingBackend
from delegate.backend.deviations import deviations_of
from delegate.backend.inexact import PRODUCTS, Nan, collapse_sizes, find_unrounded, returns_to_half
from delegate.backend.qdq import AFFINE, DECODES, QUANTIZE, RUN_TIME, is_known
from delegate.backend.quantizable import QuantizationScheme
from delegate.backend.region import ranges_of_sizes, shape_without, size_range
from delegate.backend.resizing import NEAREST, exact_factors, factors_of, known_or_multiplied, rounds_as_torch
from delegate.edge.node import arguments, is_static, op_name, tensor, tensors
from delegate.verdict import YES, Reason, Verdict, no
from delegate_openvino.convert import NotConverted, plain, shape_of, to_openvino, whole_operators
from delegate_openvino.deviations import (
    COUNTED_PADDING,
    DEVIATIONS,
    EVERYWHERE,
    IGNORED_CORRECTION,
    INDICES_FROM_END,
    REGIONS_WITHOUT_AREA,
    ROUNDED_CORRECTION,
)
from delegate_openvino.elements import ELEMENTS
from delegate_openvino.executed import notes_on_floats
from delegate_openvino.index_ranges import index_ranges, unknown_sizes
from delegate_openvino.integers import IN_INTEGERS, PATTERNS, group_of_region, operators_on_integers
from delegate_openvino.nan import LOSING
from delegate_openvino.patterns import check_conversion
from delegate_openvino.schemes import SCHEMES
from delegate_openvino.settings import compile_model, settings
from delegate_openvino.weights import large_constants, with_holes, without

# OpenVINO's CPU plugin computes int64 in 32 bits, and saturates where torch wraps around. So integers are only correct
# as indices: those of selections, and those that sorting and maxima return.
_TAKE_INDICES = frozenset(
    f"aten.{name}" for name in ("embedding.default", "gather.default", "index_select.default", "index.Tensor")
)
_GIVE_INDICES = frozenset(
    f"aten.{name}"
    for name in (
        "argmax.default",
        "argmin.default",
        "topk.default",
        "sort.default",
        "sort.stable",
        "max.dim",
        "min.dim",
    )
)  # fmt: skip


_AVERAGES = frozenset(f"aten.avg_pool{rank}d.default" for rank in (1, 2, 3))
_GROUP_NORMS = frozenset({"aten.group_norm.default", "aten.native_group_norm.default"})
_CORRECTED = frozenset(f"aten.{name}.correction" for name in ("var", "std", "var_mean", "std_mean"))

_LOSES = floats_of(LOSING)
_CONVERSIONS = frozenset((QUANTIZE, *DECODES))
_PRECISIONS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


_RUN = """import openvino


def run(inputs):
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(HERE / "model.xml"), "{device}", {properties})
    return [np.array(value) for value in compiled(inputs).values()]
"""


class OpenVinoOptions(aot.Options):
    """Options of the backend."""

    device: str = Field(default="CPU", description="OpenVINO's name of the device: CPU, GPU, GPU.1, NPU, AUTO.")
    precision: Literal["f32", "f16", "bf16"] = Field(
        default="f32", description="Precision of float arithmetic; bf16 uses the matrix units of a CPU that has them."
    )
    threads: NonNegativeInt = Field(
        default=0, description="Number of threads on a CPU; 0: its default, within this process's cores."
    )
    nan: Nan = "fast"
    cache: str = Field(default="", description="Folder that caches compiled kernels between runs; empty: no cache.")


class OpenVinoBackend(AskingBackend):
    """The backend for all operators that OpenVINO's frontend for torch converts."""

    name = "openvino"
    deviations = DEVIATIONS
    library = "OpenVINO"
    Options: ClassVar = OpenVinoOptions

    @property
    def preserve_ops(self) -> Set[str]:
        return whole_operators() | AFFINE if self._in_integers else whole_operators()

    @property
    def float32_precision(self) -> torch.dtype:
        return _PRECISIONS[self.options.precision]

    @property
    def _in_integers(self) -> bool:
        return bool(self.options.device == "CPU")  # patterns are queried there

    @classmethod
    def quantization(cls) -> Sequence[QuantizationScheme]:
        return SCHEMES

    def claims(self, node: Node) -> Sequence[Claim]:
        if not self._in_integers:
            return ()
        return [c for c in PATTERNS.claims(node) if c.name != IN_INTEGERS or all(map(self.check, c.nodes))]

    def check(self, node: Node) -> Verdict:
        if self._in_integers and op_name(node) in RUN_TIME and not is_known(node):
            return run_time_ranges.outside_of_pattern(self.library)
        if self._in_integers and op_name(node) in _CONVERSIONS:
            return check_conversion(node)
        if not (verdict := keeps_nan(node, _LOSES, self.options.nan) and keeps_infinity(node, EXTREMES, PASSING)):
            return verdict
        return (
            returns_to_half(node)
            and keeps_zero(node)
            and _PIXELS.get(op_name(node), _interpolates)(node)
            and super().check(node)
        )

    def ask(self, region: Region) -> Verdict:
        for node in region.graph.nodes:
            for value in tensors(node):
                if value.dtype not in ELEMENTS:
                    return no(Reason.DTYPE, f"{node.name} is {str(value.dtype).removeprefix('torch.')}")
                if value.dtype is torch.float64:
                    return no(Reason.DTYPE, f"{node.name} is float64, which OpenVINO computes in float32")
        for refused in (_integers(region), _otherwise(region), _not_compiled(region)):
            if refused is not None:
                return refused
        try:
            converted = to_openvino(region)
        except NotConverted as refusal:
            return no(Reason.OPERATOR, f"OpenVINO does not convert it: {refusal}")
        return _same_types(converted.model, region)

    def preprocess(self, region: Region) -> PreprocessResult:
        refused = constants_of_zero(region) | find_unrounded(region) | unknown_sizes(region)
        refused |= extremes_of_infinity(region, EXTREMES, PASSING)
        if refused := refused | collapse_sizes(region, MEANS | PRODUCTS):
            raise RegionRefused(refused)
        try:
            converted = to_openvino(region)
        except NotConverted as refusal:
            raise RegionFailed(f"OpenVINO does not convert it: {refusal}") from refusal
        in_floats = _try(converted.model, region, self.options, group_of_region(region))
        with TemporaryDirectory() as folder:
            graph, weights = Path(folder, "model.xml"), Path(folder, "model.bin")
            openvino.serialize(converted.model, graph, weights)
            xml, whole = graph.read_bytes(), weights.read_bytes()
        holes = large_constants(xml)
        data = tuple(memoryview(whole)[start : start + size] for start, size in holes)
        options = self.options
        specs = {**self._specs(region), "graph": len(xml), "weights": [start for start, _ in holes]}
        note = f"{len(converted.model.get_ops())} OpenVINO operators, {options.device} in {options.precision}"
        rounded = run_time_ranges.notes_on_floats(region, self.claims)
        notes = (note, *converted.notes, *rounded, *in_floats, *nan_notes(region, _LOSES))
        return PreprocessResult(xml + without(whole, holes), specs, notes, data=data)

    def reproduction(self, artifact: PreprocessResult) -> Reproduction:
        size, starts = artifact.compile_specs["graph"], artifact.compile_specs["weights"]
        blob, data = memoryview(artifact.blob), [memoryview(part) for part in artifact.data]
        weights = with_holes(blob[size:], starts, data)
        for start, part in zip(starts, data, strict=True):
            weights[start : start + part.nbytes] = np.frombuffer(part, np.uint8)
        files = {"model.xml": bytes(blob[:size]), "model.bin": weights.tobytes()}
        properties = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": self.options.precision}
        return Reproduction(files, _RUN.format(device=self.options.device, properties=properties), ("openvino",))

    def check_artifact(self, region: Region, artifact: PreprocessResult) -> None:
        """Raise an exception if the specs of a cached artifact do not fit its region, options and graph."""
        artifact.require_specs(self._specs(region))
        size = artifact.compile_specs["graph"]
        holes = large_constants(bytes(artifact.blob[:size]))
        artifact.require_specs({"graph": size, "weights": [start for start, _ in holes]})
        if [length for _, length in holes] != [len(part) for part in artifact.data] or artifact.space:
            raise ValueError("its weights are not those of its graph")

    def _specs(self, region: Region) -> dict[str, Any]:
        """Return the compile specs that do not depend on the model."""
        types = {"dtypes": _names(region.inputs), "results": _names(region.outputs)}
        group, indices = group_of_region(region), index_ranges(region)
        return {**self.options.model_dump(), **types, "group": group, "indices": indices}


def _try(model: openvino.Model, region: Region, options: OpenVinoOptions, group: int) -> tuple[str, ...]:
    """Compile a model for the CPU like the runtime part: OpenVINO cannot open some models of its own frontend.

    Returns notes on quantized operators that it computes in floats.

    Raises:
        RegionFailed: the model does not compile, or has results of other types.
    """
    if options.device != "CPU":
        return ()  # of a machine that this one need not be
    specs = {**options.model_dump(), "cache": "", "group": group}
    try:
        compiled = compile_model(model, "CPU", settings(specs, model))
    except Exception as error:  # whatever OpenVINO raises across its boundary
        raise RegionFailed(f"OpenVINO cannot load it: {plain(error)}") from error
    if not (same := _same_types(compiled, region)):
        raise RegionFailed(same.message)
    for symbol, known in region.range_constraints.items():
        if known.lower <= 0:
            _run_on_nothing(compiled, region, symbol)
    return tuple(notes_on_floats(compiled, operators_on_integers(model)))


def _run_on_nothing(compiled: openvino.CompiledModel, region: Region, symbol: Any) -> None:
    """Run a model with one dynamic size of 0, for which some operators of OpenVINO fail at a call.

    Raises:
        RegionFailed: the model does not run, or its results have other sizes than torch's.
    """
    shape = partial(shape_without, symbol=symbol, ranges=region.range_constraints)
    request = compiled.create_infer_request()
    try:
        for index, node in enumerate(region.inputs):
            request.set_input_tensor(index, openvino.Tensor(ELEMENTS[node.meta["val"].dtype], shape(node)))
        request.infer()
    except Exception as error:  # whatever OpenVINO raises across its boundary
        raise RegionFailed(f"OpenVINO cannot run it if the size {symbol} is 0: {plain(error)}") from error
    for index, node in enumerate(region.outputs):
        if list(request.get_output_tensor(index).shape) != shape(node):
            raise RegionFailed(f"OpenVINO returns other sizes than torch if the size {symbol} is 0")


def _integers(region: Region) -> Verdict | None:
    """Return a rejection if integers of a region would be wrong, else None."""
    operator = op_name(region.calls[0])
    takes_integers = any(_is_integer(n) for n in (*region.inputs, *region.constants))
    gives_integers = any(_is_integer(n) for n in region.outputs)
    if (takes_integers and operator not in _TAKE_INDICES) or (gives_integers and operator not in _GIVE_INDICES):
        return no(Reason.DTYPE, "OpenVINO computes integers in 32 bits, and saturates where torch wraps around")
    return None


def _not_compiled(region: Region) -> Verdict | None:
    """Return a rejection if the frontend converts a region that the CPU does not compile, else None."""
    node = region.calls[0]
    if op_name(node) in _GROUP_NORMS and tensors(node)[0].dim() == 2 and not is_static(node):
        return no(Reason.DYNAMIC_SHAPE, "OpenVINO has no group norm of two dimensions whose sizes are dynamic")
    return None


def _otherwise(region: Region) -> Verdict | None:
    """Return a rejection if the results would differ from torch's, else None."""
    node = region.calls[0]
    operator, args = op_name(node), arguments(node)
    found = deviations_of(EVERYWHERE, operator)
    if operator in _CORRECTED:
        correction = 1 if args["correction"] is None else args["correction"]
        if correction != 0 and not args["dim"]:
            found = (IGNORED_CORRECTION,)
        elif correction != int(correction):
            found = (ROUNDED_CORRECTION,)
    if operator == "aten.index.Tensor" and sum(i is not None for i in args["indices"]) > 1:
        found = (INDICES_FROM_END,)
    if operator in _AVERAGES and args["ceil_mode"] and args["count_include_pad"] and any(args["padding"]):
        found = (COUNTED_PADDING,)
    if operator == "torchvision.roi_align.default" and args["aligned"] and args["sampling_ratio"] <= 0:
        found = (REGIONS_WITHOUT_AREA,)
    return found[0].reject() if found else None


def _interpolates(node: Node) -> Verdict:
    """Accept resizing, except in two cases in which OpenVINO differs from torch, also at sizes of later calls.

    It ignores a factor that leaves a size as it is. It returns the first element, not a mean, if one remains.
    """
    if "aten.upsample_" not in op_name(node):
        return YES
    if not (exact := exact_factors(node)):
        return exact
    args, sizes = arguments(node), tensor(node).shape[2:]
    is_mean = not args["align_corners"]
    before = tensor(node.all_input_nodes[0]).shape[2:]
    ranges = ranges_of_sizes((node, *node.all_input_nodes), {})
    for old, new, factor in zip(before, sizes, factors_of(node), strict=True):
        is_fixed = isinstance(old, int) and isinstance(new, int)
        scale = 1 if factor is None else factor
        may_stay = old == new if is_fixed else 1 < scale < 2 and size_range(old, ranges)[0] * (scale - 1) < 1
        if scale != 1 and may_stay:
            return no(Reason.INACCURATE, f"OpenVINO ignores the factor {scale:g} if the size {old} stays as it is")
        if is_mean and (old != new == 1 if is_fixed else size_range(new, ranges)[0] <= 1 and (factor or 0) < 1):
            return no(Reason.INACCURATE, f"OpenVINO returns the first of {old} elements if one remains")
    return YES


# `_choose_pixels` in convert.py selects the nearest pixels of known sizes.
_PIXELS = {**dict.fromkeys(NEAREST, known_or_multiplied), "aten.grid_sampler_2d.default": rounds_as_torch}


def _is_integer(node: Node) -> bool:
    dtype = node.meta["val"].dtype
    return dtype is not torch.bool and not dtype.is_floating_point


def _same_types(model: openvino.Model | openvino.CompiledModel, region: Region) -> Verdict:
    """Accept a model whose results have torch's number, known ranks and sizes, and element types."""
    if len(model.outputs) != len(region.outputs):
        return no(Reason.OPERATOR, f"OpenVINO returns {len(model.outputs)} results for {len(region.outputs)}")
    for port, node in zip(model.outputs, region.outputs, strict=True):
        expected = node.meta["val"]
        if port.element_type != ELEMENTS[expected.dtype]:
            return no(Reason.DTYPE, f"OpenVINO returns {port.element_type.get_type_name()} for {expected.dtype}")
        sizes = shape_of(node)
        if not port.partial_shape.compatible(sizes):
            return no(Reason.ATTRIBUTE, f"OpenVINO returns {port.partial_shape}, but torch {sizes}")
    return YES


def _names(nodes: Sequence[Node]) -> list[str]:
    return [ELEMENTS[n.meta["val"].dtype].get_type_name() for n in nodes]
