"""Region -> OpenVINO model, by OpenVINO's own frontend for torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import openvino
import torch
from openvino import opset13 as opset
from openvino.frontend import FrontEndManager
from openvino.frontend.pytorch.fx_decoder import TorchFXPythonDecoder
from openvino.frontend.pytorch.torchdynamo.export_decompositions import ops_to_not_decompose
from torch.export.graph_signature import InputKind
from torch.fx import Graph, GraphModule, Node

from delegate.backends.aot import Region
from delegate.backends.exported import exported_program
from delegate.edge.node import arguments, op_name, tensor

_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
_VIEWS = frozenset(f"aten.{name}.default" for name in ("view", "reshape", "_unsafe_view"))
ELEMENTS = {
    torch.float32: openvino.Type.f32,
    torch.float16: openvino.Type.f16,
    torch.bfloat16: openvino.Type.bf16,
    torch.float64: openvino.Type.f64,
    torch.bool: openvino.Type.boolean,
    torch.uint8: openvino.Type.u8,
    torch.int8: openvino.Type.i8,
    torch.int16: openvino.Type.i16,
    torch.int32: openvino.Type.i32,
    torch.int64: openvino.Type.i64,
}


class NotConverted(Exception):
    """The frontend does not convert a region, in its own words."""


@cache
def whole_operators() -> frozenset[str]:
    """The compound operators that the frontend has rules for."""
    return frozenset(map(str, ops_to_not_decompose()))


@cache
def _frontend() -> Any:
    return FrontEndManager().load_by_framework("pytorch")


@dataclass(frozen=True)
class Converted:
    """A region as OpenVINO's model, with its inputs and outputs in order.

    Args:
        model: its constants lie where those of the module lie.
        module: what it was made of; it must live as long as the model.
    """

    model: openvino.Model
    module: GraphModule


def to_openvino(region: Region) -> Converted:
    """The model of a region, with its shapes: -1 where a size is dynamic.

    Raises:
        NotConverted: the frontend has no rule for an operator of it, or its rule fails.
    """
    module = _module(region)
    decoder = TorchFXPythonDecoder(module)  # the frontend does not keep it alive
    try:
        model = _frontend().convert(_frontend().load(decoder))
        for parameter, node in zip(model.get_parameters(), region.inputs, strict=True):
            parameter.set_element_type(ELEMENTS[node.meta["val"].dtype])
            parameter.set_partial_shape(shape_of(node))
        _part_results(model)
        model.validate_nodes_and_infer_types()
    except Exception as error:  # whatever OpenVINO raises across its boundary
        raise NotConverted(one_line(error)) from error
    return Converted(model, module)


def _part_results(model: openvino.Model) -> None:
    """Put an operator between inputs and the results that they are.

    OpenVINO 2026.4 takes memory for both in place of what it is given: results are wrong, and inputs written to.
    """
    for result in model.get_results():
        source = result.input_value(0)
        if source.get_node().get_type_name() == "Parameter":
            same = opset.reshape(source, opset.shape_of(source), special_zero=False)
            result.input(0).replace_source_output(same.output(0))


def _module(region: Region) -> GraphModule:
    """The region as a module that holds its constants: placeholders are inputs alone."""
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
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            _squeeze_to_scalar(copies[node])
            mask = masks.get(node)
            if mask is not None:
                copies[node] = _zero_where_nothing_is_seen(graph, copies[node], copies[mask])
    return GraphModule(root, graph)


def _squeeze_to_scalar(node: Node) -> None:
    """Have a view of no dimensions squeeze all of them: behind a product OpenVINO 2026.4 compiles it to a SIGSEGV."""
    if op_name(node) in _VIEWS and tensor(node).dim() == 0 and (rank := tensor(node.all_input_nodes[0]).dim()):
        node.target, node.args, node.kwargs = torch.ops.aten.squeeze.dims, (node.args[0], list(range(rank))), {}


def _zero_where_nothing_is_seen(graph: Graph, attended: Node, mask: Node) -> Node:
    """Zeros in rows that are masked completely, as torch has them; OpenVINO gives NaN."""
    aten = torch.ops.aten
    value = mask.meta["val"]
    seen = mask if value.dtype is torch.bool else graph.call_function(aten.gt.Scalar, (mask, float("-inf")))
    some = graph.call_function(aten.any.dim, (seen, -1, True))
    none = graph.call_function(aten.logical_not.default, (some,))
    kept = graph.call_function(aten.masked_fill.Scalar, (attended, none, 0.0))
    rows = value[..., :1]
    for node, made in ((seen, value.bool()), (some, rows.bool()), (none, rows.bool()), (kept, attended.meta["val"])):
        node.meta.setdefault("val", made)
    return kept


def shape_of(node: Node) -> openvino.PartialShape:
    """The sizes of what a node gives, -1 where one is dynamic."""
    return openvino.PartialShape([s if isinstance(s, int) else -1 for s in node.meta["val"].shape])


def one_line(error: BaseException) -> str:
    """What OpenVINO says, without the places in its source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.startswith("Check ")]
    said = [line for line in lines if not line.startswith(("FrontEnd API failed", "Exception from", "Summary"))]
    return " ".join(" ".join(said or lines).split())[:300]
