"""Conversion of a region to an OpenVINO model, by OpenVINO's own frontend for torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import openvino
import torch
from delegate_vendor_kit.sums import sums_in_stages
from openvino import opset13 as opset
from openvino.frontend import FrontEndManager
from openvino.frontend.pytorch.fx_decoder import TorchFXPythonDecoder
from openvino.frontend.pytorch.torchdynamo.export_decompositions import ops_to_not_decompose
from torch.export.graph_signature import InputKind
from torch.fx import Graph, GraphModule, Node, map_arg

from delegate.backend.aot import Region
from delegate.backend.exported import exported_program
from delegate.backend.resizing import NEAREST, has_known_sizes, keeps_operator, nearest_pixels
from delegate.edge.node import arguments, op_name, tensor
from delegate_openvino.attention import zero_where_nothing_is_seen
from delegate_openvino.digits import keep_digits
from delegate_openvino.elements import ELEMENTS
from delegate_openvino.fusion import keep_apart
from delegate_openvino.integers import CutRegion

_CAST = torch.ops.aten._to_copy.default
_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
_REDUCTIONS = {
    "ReduceSum": opset.reduce_sum,
    "ReduceMean": opset.reduce_mean,
    "ReduceL1": opset.reduce_l1,
    "ReduceL2": opset.reduce_l2,
}
_VIEWS = frozenset(f"aten.{name}.default" for name in ("view", "reshape", "_unsafe_view"))
_PARTIAL_WRITES = frozenset({"aten.slice_scatter.default", "aten.select_scatter.default"})
_LARGEST_SCALED = 1e33  # times 2**16 + 1 it is within float32
_HALVES = frozenset({torch.float16, torch.bfloat16})
# Operators that are computed in float32 if their operands have 16 bits, as torch does: OpenVINO's frontend rounds their
# numbers to that dtype, or the device adds up in it.
_IN_FLOAT32 = frozenset(
    f"aten.{name}"
    for name in (
        *("linalg_vector_norm.default", "log10.default", "log2.default"),
        *("std.correction", "var.correction", "var.dim"),
        *("elu.default", "erf.default", "mish.default", "selu.default"),  # formulas in delegate_openvino.digits
        "cumsum.default",
    )
)
# Operators that read their operands as booleans, beside casts to booleans.
_TRUTHS = frozenset(
    f"aten.{name}"
    for name in (
        *(f"{name}.{dims}" for name in ("any", "all") for dims in ("default", "dim", "dims")),
        *(f"logical_{name}.default" for name in ("not", "and", "or", "xor")),
    )
)
_DIVISIONS = frozenset({"aten.div.Tensor", "aten.div.Scalar"})  # a constant divisor's reciprocal is rounded
_WITH_NUMBERS = (
    _IN_FLOAT32
    | _DIVISIONS
    | {
        f"aten.{name}"
        for name in (
            *("mul.Tensor", "mul.Scalar"),
            *("addcmul.default", "addcdiv.default", "leaky_relu.default"),
        )
    }
)


class NotConverted(Exception):
    """Raised if the frontend does not convert a region, with its message."""


@cache
def whole_operators() -> frozenset[str]:
    """Return the compound operators for which the frontend has rules, and those that `_choose_pixels` replaces."""
    return frozenset(map(str, ops_to_not_decompose())) | NEAREST.keys()


@cache
def _frontend() -> Any:
    return FrontEndManager().load_by_framework("pytorch")


@dataclass(frozen=True)
class Converted:
    """A region as OpenVINO's model, with its inputs and outputs in order.

    Args:
        model: the model, whose constants share memory with the module's.
        module: the source of the model; it must outlive the model.
        notes: remarks for the report.
    """

    model: openvino.Model
    module: GraphModule
    notes: tuple[str, ...]


def to_openvino(region: Region) -> Converted:
    """Return the model of a region, with its shapes: -1 for dynamic sizes.

    Raises:
        NotConverted: the frontend has no rule for an operator, or its rule fails.
        RegionRefused: a part of a refused quantized pattern is left.
    """
    cut = CutRegion(sums_in_stages(region))
    floats = cut.finish()
    module = _module(floats)
    decoder = TorchFXPythonDecoder(module)  # the frontend does not keep it alive
    try:
        model = _frontend().convert(_frontend().load(decoder))
        if len(model.get_parameters()) != len(floats.inputs):
            raise NotConverted("its model has not all inputs")
        for parameter, node in zip(model.get_parameters(), floats.inputs, strict=True):
            parameter.set_element_type(ELEMENTS[node.meta["val"].dtype])
            parameter.set_partial_shape(shape_of(node))
        model.validate_nodes_and_infer_types()
        model = cut.fill(model, floats)
        keep_apart(model)
        keep_digits(model)
        _choose_first(model)
        _repeat_in_pairs(model)
        _keep_stages(model)
        _part_results(model)
        model.validate_nodes_and_infer_types()
        _number_names(model)
    except NotConverted:
        raise
    except Exception as error:  # whatever OpenVINO raises across its boundary
        raise NotConverted(plain(error)) from error
    return Converted(model, module, tuple(cut.notes))


def _choose_first(model: openvino.Model) -> None:
    """Let maxima and minima return the first of equal elements, as torch does: the frontend leaves that open."""
    for op in model.get_ordered_ops():
        if op.get_type_name() == "TopK" and (options := op.get_attributes())["sort"] == "none":
            mode, dtype = options["mode"], options["index_element_type"]
            source, count = op.input_value(0), op.input_value(1)
            stable = opset.topk(source, count, options["axis"], mode, "value", dtype, stable=True)
            stable.set_friendly_name(op.get_friendly_name())
            for old, new in zip(op.outputs(), stable.outputs(), strict=True):
                old.replace(new)


def _repeat_in_pairs(model: openvino.Model) -> None:
    """Repeat two dimensions at a time if the numbers are known at run time.

    Tile of OpenVINO 2026.4 repeats three of the last four dimensions wrongly then.
    """
    for op in model.get_ordered_ops():
        if op.get_type_name() != "Tile" or op.input_value(1).get_node().get_type_name() == "Constant":
            continue
        result, repeats = op.input_value(0), op.input_value(1)
        count = repeats.get_shape()[0]
        once = opset.constant(np.ones(count, repeats.get_element_type().to_dtype()))
        for first in range(0, count, 2):
            chosen = opset.constant(np.arange(count) // 2 == first // 2)
            result = opset.tile(result, opset.select(chosen, repeats, once)).output(0)
        result.get_node().set_friendly_name(op.get_friendly_name())
        op.output(0).replace(result)


def _keep_stages(model: openvino.Model) -> None:
    """Let two reductions in a row differ in `keep_dims`: OpenVINO would make one of them, which adds up all at once."""
    for op in model.get_ordered_ops():
        kind, before = op.get_type_name(), op.input_value(0).get_node() if op.get_input_size() else op
        if kind not in _REDUCTIONS or before.get_type_name() != kind:
            continue
        keep_dims = op.get_attributes()["keep_dims"]
        if before.get_attributes()["keep_dims"] == keep_dims:
            dims = before.input_value(1)
            other = _REDUCTIONS[kind](before.input_value(0), dims, not keep_dims)
            reshape = opset.unsqueeze if keep_dims else opset.squeeze
            op.input(0).replace_source_output(reshape(other, dims).output(0))


def _part_results(model: openvino.Model) -> None:
    """Insert an operator between an input and a result that is the same value.

    Without it, OpenVINO 2026.4 uses its own memory for both: results are wrong, and inputs are overwritten.
    """
    for result in model.get_results():
        source = result.input_value(0)
        if source.get_node().get_type_name() == "Parameter":
            same = opset.reshape(source, opset.shape_of(source), special_zero=False)
            result.input(0).replace_source_output(same.output(0))


def _number_names(model: openvino.Model) -> None:
    """Name the model and its unnamed operators, which OpenVINO numbers through the whole process.

    A region has the same artifact whatever was converted before it.
    """
    model.set_friendly_name("region")
    for number, op in enumerate(model.get_ordered_ops()):
        if op.get_friendly_name() == op.get_name():
            op.set_friendly_name(f"{op.get_type_name()}_{number}")


def _module(region: Region) -> GraphModule:
    """Return the region as a module with its constants as attributes; only inputs are placeholders."""
    program = exported_program(region, keep_views=True)
    held = {
        spec.arg.name: str(spec.target) for spec in program.graph_signature.input_specs if spec.kind is InputKind.BUFFER
    }
    root, graph, copies = torch.nn.Module(), Graph(), dict[Node, Node]()
    masks = {n: arguments(n)["attn_mask"] for n in program.graph.nodes if n.target is _ATTENTION}
    for node in program.graph.nodes:
        if node.name in held:
            root.register_buffer(held[node.name], program.state_dict[held[node.name]])
            copies[node] = graph.create_node("get_attr", held[node.name])
            copies[node].meta = dict(node.meta)
        elif node.op == "output":
            graph.output(map_arg(node.args[0], lambda result: _round(graph, copies[result])))
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            _squeeze_to_scalar(copies[node])
            _compare_with_zero(graph, copies[node])
            _choose_samples(copies[node])
            copies[node] = _with_whole_numbers(graph, _celu_by_elu(graph, _concatenate(graph, copies[node])))
            copies[node] = _choose_pixels(root, graph, copies[node])
            _round_before_truncation(graph, copies[node])
            mask = masks.get(node)
            if mask is not None:
                copies[node] = zero_where_nothing_is_seen(graph, copies[node], copies[mask])
    return GraphModule(root, graph)


def _squeeze_to_scalar(node: Node) -> None:
    """Replace a view of no dimensions by a squeeze, which OpenVINO 2026.4 compiles after every operator."""
    if op_name(node) in _VIEWS and tensor(node).dim() == 0 and (rank := tensor(node.all_input_nodes[0]).dim()):
        node.target, node.args, node.kwargs = torch.ops.aten.squeeze.dims, (node.args[0], list(range(rank))), {}


def _compare_with_zero(graph: Graph, node: Node) -> None:
    """Read floats as booleans by comparing them with 0: for OpenVINO, NaN and subnormal numbers are false."""
    is_cast = node.target in (_CAST, torch.ops.aten.copy.default) and tensor(node).dtype is torch.bool
    if op_name(node) not in _TRUTHS and not is_cast:
        return
    for source in node.all_input_nodes:
        if tensor(source).is_floating_point():
            with graph.inserting_before(node):
                compared = graph.call_function(torch.ops.aten.ne.Scalar, (source, 0.0))
            compared.meta["val"] = tensor(source).bool()
            node.replace_input_with(source, compared)


def _choose_samples(node: Node) -> None:
    """Leave roi_align's number of samples to OpenVINO by 0: it takes -1, the default, for no samples."""
    if op_name(node) == "torchvision.roi_align.default":
        named = arguments(node)
        node.args, node.kwargs = (*(named | {"sampling_ratio": max(named["sampling_ratio"], 0)}).values(),), {}


def _choose_pixels(root: torch.nn.Module, graph: Graph, node: Node) -> Node:
    """Replace nearest resizing by selections of torch's pixels where OpenVINO has no rule or reads other pixels."""
    if op_name(node) not in NEAREST or not has_known_sizes(node) or keeps_operator(node):
        return node
    (chosen,), pixels = node.all_input_nodes, nearest_pixels(node)
    graph.erase_node(node)
    for dim, places in enumerate(pixels, start=2):
        if not places.equal(torch.arange(tensor(chosen).shape[dim])):
            name = f"{node.name}_places_{dim}"
            root.register_buffer(name, places)
            index = graph.create_node("get_attr", name)
            index.meta["val"] = places
            value = tensor(chosen).narrow(dim, 0, 1).repeat_interleave(len(places), dim)
            chosen = graph.call_function(torch.ops.aten.index_select.default, (chosen, dim, index))
            chosen.meta["val"] = value
    return chosen


def _concatenate(graph: Graph, node: Node) -> Node:
    """Replace a write to a part of a tensor by a concatenation: OpenVINO 2026.4 does not load the second of two writes.

    A write with a step, along a dynamic size, or to everything stays.
    """
    if op_name(node) not in _PARTIAL_WRITES:
        return node
    args, value = arguments(node), tensor(node)
    whole, part = args["self"], args["src"]
    dim = args["dim"] % value.dim()
    size = value.shape[dim]
    bounds = [args[name] for name in ("start", "end", "index", "step") if args.get(name) is not None]
    is_plain = isinstance(size, int) and all(isinstance(bound, int) for bound in bounds) and args.get("step", 1) == 1
    if not is_plain or tensor(part).dtype is not value.dtype:
        return node
    if "index" in args:
        start = args["index"] % size
        end = start + 1
    else:
        start, end, _ = slice(args["start"], args["end"]).indices(size)
    if not 0 < end - start < size:
        return node

    aten = torch.ops.aten

    def add(target: Any, *arguments: Any, result: torch.Tensor) -> Node:
        added = graph.call_function(target, arguments)
        added.meta["val"] = result
        return added

    graph.erase_node(node)
    if "index" in args:
        part = add(aten.unsqueeze.default, part, dim, result=tensor(part).unsqueeze(dim))
    pieces = [
        add(aten.slice.Tensor, whole, dim, first, last, result=tensor(whole).narrow(dim, first, last - first))
        for first, last in ((0, start), (end, size))
        if first < last
    ]
    pieces.insert(int(start > 0), part)
    return add(aten.cat.default, pieces, dim, result=value)


def _celu_by_elu(graph: Graph, node: Node) -> Node:
    """Replace celu, which OpenVINO's frontend converts to exp(x) - 1, by alpha elu(x / alpha) below 0 in float32."""
    if op_name(node) != "aten.celu.default":
        return node
    aten, (x, alpha), dtype = torch.ops.aten, list(arguments(node).values())[:2], tensor(node).dtype
    graph.erase_node(node)
    x = _cast(graph, x, torch.float32) if dtype in _HALVES else x

    def add(target: Any, *operands: Any) -> Node:
        added = graph.call_function(target, operands)
        added.meta["val"] = tensor(x)
        return added

    below = add(aten.mul.Tensor, add(aten.elu.default, add(aten.div.Tensor, x, alpha), 1.0), alpha)
    is_above = add(aten.gt.Scalar, x, 0.0)
    is_above.meta["val"] = tensor(x).bool()
    result = add(aten.where.self, is_above, x, below)
    return _cast(graph, result, dtype) if dtype in _HALVES else result


def _with_whole_numbers(graph: Graph, node: Node) -> Node:
    """Compute in float32 with a number that the operands' 16-bit dtype would round, as torch does."""
    if op_name(node) not in _WITH_NUMBERS or (dtype := tensor(node).dtype) not in _HALVES:
        return node
    numbers = [n for n in arguments(node).values() if isinstance(n, int | float)]
    is_mixed = any(tensor(source).dtype is torch.float32 for source in node.all_input_nodes)  # beside one element
    is_rounded = any(torch.tensor(n, dtype=dtype).item() != n for n in numbers)
    is_inverted = op_name(node) in _DIVISIONS and any(
        not isinstance(operand, Node) or operand.op == "get_attr" for operand in node.args[:2]
    )
    if not (is_mixed or is_rounded or is_inverted or op_name(node) in _IN_FLOAT32):
        return node
    with graph.inserting_before(node):
        for source in node.all_input_nodes:
            node.replace_input_with(source, _cast(graph, source, torch.float32))
    node.kwargs = {name: value for name, value in node.kwargs.items() if name != "dtype"}
    rounded = _cast(graph, node, dtype)
    node.meta["val"] = tensor(node).float()
    return rounded


def _cast(graph: Graph, source: Node, dtype: torch.dtype) -> Node:
    """Insert a cast of a tensor, and return it."""
    cast = graph.call_function(_CAST, (source,), {"dtype": dtype})
    cast.meta["val"] = tensor(source).to(dtype)
    return cast


def _round(graph: Graph, result: Node) -> Node:
    """Return a result of the region rounded to bfloat16: inside, OpenVINO computes in float32 on most CPUs."""
    if result.op != "call_function" or tensor(result).dtype is not torch.bfloat16 or _is_truncation(result):
        return result
    rounded = _cast(graph, _cast(graph, result, torch.float32), torch.bfloat16)
    _round_before_truncation(graph, rounded)
    return rounded


def _round_before_truncation(graph: Graph, node: Node) -> None:
    """Round casts from float32 to bfloat16 to the nearest number, because OpenVINO cuts off the lower 16 bits.

    The upper digits of x are c - (c - x) with c = x (2**16 + 1), by Veltkamp and Dekker (1971).
    """
    if not _is_truncation(node):
        return
    (source,) = node.all_input_nodes
    aten = torch.ops.aten
    with graph.inserting_before(node):
        scaled = graph.call_function(aten.mul.Tensor, (source, 2.0**16 + 1))
        below = graph.call_function(aten.sub.Tensor, (scaled, source))
        high = graph.call_function(aten.sub.Tensor, (scaled, below))
        size = graph.call_function(aten.abs.default, (source,))
        small = graph.call_function(aten.lt.Scalar, (size, _LARGEST_SCALED))
        signed = graph.call_function(aten.ne.Scalar, (source, 0.0))  # -0.0 would become 0.0
        fits = graph.call_function(aten.logical_and.default, (small, signed))
        rounded = graph.call_function(aten.where.self, (fits, high, source))
    for added in (scaled, below, high, size, rounded):
        added.meta["val"] = tensor(source)
    for added in (small, signed, fits):
        added.meta["val"] = tensor(source).bool()
    node.replace_input_with(source, rounded)


def _is_truncation(node: Node) -> bool:
    """Return true for a cast from float32 to bfloat16."""
    return (
        node.target is _CAST
        and tensor(node).dtype is torch.bfloat16
        and tensor(node.all_input_nodes[0]).dtype is torch.float32
    )


def shape_of(node: Node) -> openvino.PartialShape:
    """Return the sizes of a node's result; -1 for dynamic sizes."""
    return openvino.PartialShape([s if isinstance(s, int) else -1 for s in node.meta["val"].shape])


# A message of OpenVINO, and what it means to a user.
_MEANINGS = (
    (re.compile(r"No conversion rule found for operations: (.+)"), "its frontend has no rule for {}"),
    (re.compile(r"normalize step failed .*?node: (?:\w+::)*(\w+)"), "its frontend leaves {} unconverted"),
    (re.compile(r"Unsupported operation of type: (\w+)"), "its device has no operator {}"),
)
_POSITION = re.compile(r"(Exception from|Check '.*?' failed at) \S+:\d+:?|FrontEnd API failed with \S+|Summary:")


def plain(error: BaseException) -> str:
    """Return a message of OpenVINO in one line, without positions in its source; the meaning of a known message."""
    message = " ".join(str(error).split())
    for pattern, meaning in _MEANINGS:
        if match := pattern.search(message):
            return meaning.format(match[1])
    return " ".join(_POSITION.sub(" ", message).split())[:300]
