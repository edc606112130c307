"""The AOT part of the backend: lowers a region to a TFLite model, and proves that XNNPACK runs all of it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from pydantic import Field
from torch.fx import Node

from delegate.backend import aot
from delegate.backend.aot import PreprocessResult, Region, RegionFailed, RegionRefused, Reproduction
from delegate.backend.inexact import PRODUCTS, Nan, collapse_sizes, find_unrounded, note_of
from delegate.backend.lowering import LoweringTable, TableBackend, normal_numbers
from delegate.backend.qdq import DECODES, Coded, coded
from delegate.backend.quantizable import INT4_WEIGHT, INT8, INT8_WEIGHT, TABLES, QuantizationScheme
from delegate.backend.region import shape_without
from delegate.backends.xnnpack.aot.builder import RegionBuilder
from delegate.backends.xnnpack.aot.lowerings import TABLE
from delegate.backends.xnnpack.aot.lowerings.integers import ROWS, lower_in_integers
from delegate.backends.xnnpack.aot.lowerings.quantization import BLOCK, SCALED_PRODUCT, lower_layer
from delegate.backends.xnnpack.aot.lowerings.table import HALVES, whole_precision
from delegate.backends.xnnpack.aot.operand import SCALES
from delegate.backends.xnnpack.aot.rewrite import rewrite
from delegate.backends.xnnpack.aot.tflite import Model, ModelTooLarge
from delegate.backends.xnnpack.deviations import DEVIATIONS
from delegate.backends.xnnpack.runtime.interpreted import Interpreted, find_covered_operators, open_interpreter
from delegate.backends.xnnpack.runtime.weights import assemble, extract_constants, pieces
from delegate.edge.graphs import call
from delegate.edge.node import arguments, describe, is_static, op_name, tensor, tensors
from delegate.edge.torch_private import OpOverload
from delegate.errors import LoweringError
from delegate.verdict import Reason, Verdict, no

_Shape = Callable[[Node], list[int]]
_RUN = """from ai_edge_litert.interpreter import Interpreter


def run(inputs):
    interpreter = Interpreter(model_path=str(HERE / "model.tflite"), num_threads=1)
    details = interpreter.get_input_details()
    for detail, array in zip(details, inputs):
        interpreter.resize_tensor_input(detail["index"], array.shape)
    interpreter.allocate_tensors()
    for detail, array in zip(details, inputs):
        interpreter.set_tensor(detail["index"], array.astype(detail["dtype"]))
    interpreter.invoke()
    return [interpreter.get_tensor(detail["index"]) for detail in interpreter.get_output_details()]
"""


class XnnpackOptions(aot.Options):
    """Options of the XNNPACK backend."""

    threads: int | None = Field(
        default=None,
        gt=0,
        le=1024,
        description="Number of threads. Without the key: the number of cores that the process may use.",
    )
    nan: Nan = "exact"
    half: Literal["border", "every"] = Field(
        default="border",
        description="Place where float16 and bfloat16 are rounded. border: at the results of a partition, which "
        "computes in float32. every: after every operator, as in eager; such nodes run on other backends.",
    )


class XnnpackBackend(TableBackend):
    """XNNPACK on the CPU, in float32 and in integers."""

    name = "xnnpack"
    Options = XnnpackOptions
    table: LoweringTable[Any] = TABLE
    deviations = DEVIATIONS
    most_constants = 475_000_000  # a TFLite model holds less than 2 GiB: 4 bytes each, plus constants of lowerings

    def check(self, node: Node) -> Verdict:
        if self.options.half == "every":
            verdict = whole_precision(node)
            if not verdict:
                return no(Reason.DTYPE, "option half: every excludes float16 and bfloat16")
        return normal_numbers(node) and super().check(node)

    @classmethod
    def quantization(cls) -> Sequence[QuantizationScheme]:
        return SCHEMES

    def preprocess(self, region: Region) -> PreprocessResult:
        if refused_nodes := find_unrounded(region) | collapse_sizes(region, PRODUCTS):
            raise RegionRefused(refused_nodes)
        builder = self._lower_region(region)
        try:
            blob = builder.finish()
        except ModelTooLarge as error:
            raise RegionRefused({_largest_node(region): str(error)}) from error
        rest, places, data = extract_constants(blob, builder.model.constants(blob))
        reasons = find_rejected(builder.model, blob)
        if reasons:
            raise RegionRefused(reasons)
        require_without_elements(region, blob)
        specs = {**self._specs(region), "weights": places}
        notes = (*_notes(builder), *_rounding(itertools.chain(region.inputs, region.outputs)))
        return PreprocessResult(rest, specs, notes, data=tuple(data))

    def _lower_region(self, region: Region) -> RegionBuilder:
        region = rewrite(region)
        builder = RegionBuilder(region, exact_nan=self.options.nan == "exact")
        products = {p.nodes[-1]: p for p in region.patterns if p.name == SCALED_PRODUCT}
        inside = {n for p in products.values() for n in p.nodes[:-1]}
        for node in region.graph.nodes:
            if node in products:
                builder.origin = node.name
                self.table.pattern(SCALED_PRODUCT).lower(builder, node)
            elif node.op == "call_function" and not builder.has(node) and node not in inside and tensors(node):
                self._lower(builder, node)
        return builder

    def reproduction(self, artifact: PreprocessResult) -> Reproduction:
        specs, data = artifact.compile_specs, [memoryview(part) for part in artifact.data]
        blob = memoryview(artifact.blob)
        model = assemble(blob, pieces(blob, specs["weights"], data))
        return Reproduction({"model.tflite": model}, _RUN, ("ai-edge-litert",))

    def check_artifact(self, region: Region, artifact: PreprocessResult) -> None:
        """Raise an exception if the specs or the constants of a cached artifact do not fit a region or its model."""
        artifact.require_specs(self._specs(region))
        if artifact.space:
            raise ValueError("its inputs and outputs must be in host memory")
        data = [memoryview(part) for part in artifact.data]
        pieces(memoryview(artifact.blob), artifact.compile_specs["weights"], data)

    def _specs(self, region: Region) -> dict[str, Any]:
        """Return the compile specs that do not depend on the model."""
        borders = (region.inputs, region.outputs)
        return {
            "threads": self.options.threads,
            "dynamic": not all(is_static(node) for node in region.inputs),
            "types": [[str(tensor(n).dtype).removeprefix("torch.") for n in nodes] for nodes in borders],
        }

    def _lower(self, builder: RegionBuilder, node: Node) -> None:
        row = self.table.get(op_name(node))
        if row is None:
            raise LoweringError("xnnpack has no lowering of an operator of its region", where=describe(node))
        if isinstance(node.target, OpOverload) and all(map(builder.is_constant, node.all_input_nodes)):
            if op_name(node) in DECODES:
                decoded = coded(node, builder.values(arguments(node)), SCALES)
                if isinstance(decoded, Coded):
                    builder.set_constant(node, decoded)
                    return
            with torch.no_grad():
                value = call(node.target, builder.values(node.args), builder.values(node.kwargs))
            if isinstance(value, torch.Tensor):
                builder.set_constant(node, value)
                return
        builder.origin = node.name
        if node.args and node.args[0] in builder.at_run_time:
            lower_layer(builder, node)
            return
        why = lower_in_integers(builder, node)
        if why is not None:
            if why:
                builder.floats.append(why)
            row.lower(builder, node)


def _notes(builder: RegionBuilder) -> Iterator[str]:
    count = Counter(builder.model.operators)
    yield _count_noun(sum(count.values()), "operator")
    if count["TRANSPOSE"]:
        yield _count_noun(count["TRANSPOSE"], "transpose")
    yield from (
        f"computed in floats, not in integers: {why}{f' ({n} times)' if n > 1 else ''}" for why, n in _floats(builder)
    )
    if builder.nan_guards:
        yield f"nan: exact, propagated in {_count_noun(builder.nan_guards, 'place')}"
    yield from note_of(op_name(n) for n in builder.region.calls if n.name in builder.nan_lost)
    infinite = {op_name(n).split(".")[1] for n in builder.region.calls if n.name in builder.infinity_lost}
    if infinite:
        yield f"infinities may become NaN in {', '.join(sorted(infinite))}"


def _floats(builder: RegionBuilder) -> list[tuple[str, int]]:
    return sorted(Counter(builder.floats).items())


def _largest_node(region: Region) -> str:
    """Return the name of the node with the most elements of constants."""

    def weight(node: Node) -> int:
        return sum(region.constants[n].numel() for n in node.all_input_nodes if n in region.constants)

    return max(region.calls, key=weight).name


def _rounding(border: Iterable[Node]) -> Iterator[str]:
    halves = sorted({str(t.dtype).removeprefix("torch.") for n in border for t in tensors(n) if t.dtype in HALVES})
    if halves:
        yield f"{' and '.join(halves)} computed in float32, rounded at the partition's inputs and outputs"


def _count_noun(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


# -- calls without elements ------------------------------------------------------------------------------------------

# XNNPACK rejects some operators without elements, such as softmax. A partition without any element in its results is
# not run at all, but one with both kinds of results, such as `x.softmax(1), x.sum(0)` of no rows, would fail in a call.


def require_without_elements(region: Region, model: bytes) -> None:
    """Raise RegionFailed if a region fails in a call without elements, in which some results have elements.

    Args:
        region: The region.
        model: The region as a model.
    """
    for symbol, known in region.range_constraints.items():
        shape = partial(shape_without, symbol=symbol, ranges=region.range_constraints)
        is_run = known.lower == 0 and not all(0 in shape(node) for node in region.outputs)
        if not is_run:
            continue
        engine = Interpreted(open_interpreter(model, 1), dynamic=True)
        if why := _find_failure(region, engine, shape):
            raise RegionFailed(f"XNNPACK fails in a call in which the size {symbol} is 0: {why}")


def _find_failure(region: Region, engine: Interpreted, shape: _Shape) -> str:
    """Return why XNNPACK cannot run a region on inputs of these shapes, or an empty text; close the engine."""
    try:
        engine.resize([tuple(shape(node)) for node in region.inputs])
        for source in engine.sources:
            source[...] = 0
        engine.run()
        found, expected = [list(x.shape) for x in engine.results], [shape(node) for node in region.outputs]
        return "" if found == expected else f"it returns {found}, not {expected}"
    except (ValueError, RuntimeError) as error:
        return str(error)
    finally:
        engine.close()


# -- operators that XNNPACK rejects ----------------------------------------------------------------------------------

_WHY = "LiteRT's XNNPACK does not support this {}"


def find_rejected(model: Model, blob: bytes) -> dict[str, str]:
    """Return the nodes whose operators XNNPACK rejects, name -> reason; empty if there are none.

    Args:
        model: the builder of `blob`.
        blob: the model.
    """
    count = len(model.origins)
    covered = _find_covered(blob, count)
    if len(covered) == count:
        return {}
    names = model.operators
    if not covered:  # XNNPACK rejected the model as a whole, or it is one operator: test each operator separately
        covered = {i for i in range(count) if _find_covered(model.single(i), 1)}
    reasons = {model.origins[i]: _WHY.format(names[i]) for i in range(count) if i not in covered}
    return reasons or dict.fromkeys(model.origins, "LiteRT's XNNPACK does not support this partition")


def _find_covered(blob: bytes, count: int) -> set[int]:
    """Return the positions of the operators that run inside XNNPACK."""
    interpreter = open_interpreter(blob, 1)
    try:
        interpreter._interpreter.AllocateTensors()
    except (RuntimeError, ValueError):
        return set()
    return find_covered_operators(interpreter._interpreter, count)


_LINEAR = "aten.linear.default"


def _static(node: Node) -> str:
    """Return the reason to reject a transposed convolution with groups or dilation; else an empty text."""
    named = arguments(node)
    dilation = named.get("dilation", 1)
    dilated = any(d != 1 for d in ([dilation] if isinstance(dilation, int) else dilation))
    if "transpose" in str(node.target) and (named["groups"] != 1 or dilated):
        return "a transposed convolution with groups or dilation"
    return ""


def _dynamic(node: Node) -> str:
    """Return the reason to reject a depthwise convolution, or one of `_static`; else an empty text."""
    weight = tensor(node.args[1])  # type: ignore[arg-type]
    grouped = arguments(node).get("groups", 1) > 1
    return "a depthwise convolution" if grouped and weight.shape[1] == 1 else _static(node)


def _even(node: Node) -> str:
    """Return the reason to reject an odd number of inputs, because int4 values are stored in pairs; else ""."""
    return "an odd number of inputs" if tensor(node.args[1]).shape[-1] % 2 else ""  # type: ignore[arg-type]


_ROWS = [row.quantized for row in ROWS.values()]
_LAYERS = [row for row in _ROWS if row.weight is not None]
STATIC = tuple(row if row.weight is None or row.op == _LINEAR else replace(row, accepts=_static) for row in _ROWS)
DYNAMIC = tuple(row if row.op == _LINEAR else replace(row, accepts=_dynamic) for row in _LAYERS)
LINEAR = tuple(replace(row, accepts=_even) for row in _LAYERS if row.op == _LINEAR)
_GROUPS = replace(INT4_WEIGHT, group=BLOCK)

SCHEMES = (
    QuantizationScheme("static_int8", (*STATIC, TABLES), INT8, INT8_WEIGHT),
    QuantizationScheme("dynamic_int8", (*DYNAMIC, TABLES), INT8, INT8_WEIGHT, dynamic=True),
    QuantizationScheme("dynamic_int4", (*LINEAR, TABLES), INT8, _GROUPS, dynamic=True),
    QuantizationScheme("weight_only_int8", (*_LAYERS, TABLES), None, INT8_WEIGHT),
    QuantizationScheme("weight_only_int4", (*LINEAR, TABLES), None, _GROUPS),
)
