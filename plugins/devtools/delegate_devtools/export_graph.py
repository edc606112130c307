"""The graph of a report in the formats of other viewers: Google's Model Explorer, Graphviz, and ONNX for Netron.

Only the structure is exported: nodes, edges, results, backends and verdicts, and the ONNX form has no weights.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from delegate.common.text_table import printable
from delegate.errors import DelegateError
from delegate.plugins import PORTABLE
from delegate.report import Report
from delegate.report.rows import NodeReport, by_method

_COLOURS = ("#a9bdf0", "#f3cf8b", "#a5dcae", "#d6b8fa", "#f4aca0", "#9fd8d8")  # of backends, in their order
_GREY, _WHITE, _RED = "#d4d6d9", "#ffffff", "#e4604e"
_ONNX_TYPES = {"float32": "FLOAT", "float64": "DOUBLE"}  # others have the same name in upper case
_SIZE = re.compile(r"[0-9]{1,18}")  # ONNX has 64 bits for it
_RESULT = re.compile(r"(\w+)\[([^\]]*)\]")


def model_explorer(report: Report, name: str) -> bytes:
    """Return the graph collection of Model Explorer as JSON, with a graph per method."""
    colours, summaries = _colours(report), report.summaries()
    graphs = [
        {
            "id": method,
            "nodes": [
                *(_explorer_node(node, colours) for node in nodes),
                *(_explorer_port(port, reader) for port, reader in _ports(nodes).items()),
            ],
            "groupNodeAttributes": {"": {"summary": summaries[method]}},
        }
        for method, nodes in _methods(report)
    ]
    return json.dumps({"label": name, "graphs": graphs}).encode()


def node_data(report: Report) -> dict[str, bytes]:
    """Return the node data of Model Explorer as JSON, by kind of value; kinds without values are left out.

    The kinds are the estimated work, the bytes of the results, and the SQNR of the node's partition in decibels.
    """
    sqnr = {p.name: p.accuracy.sqnr_db for p in report.partitions if p.accuracy and math.isfinite(p.accuracy.sqnr_db)}
    values: dict[str, tuple[Callable[[NodeReport], float | None], tuple[str, str]]] = {
        "work": (lambda node: node.work, (_WHITE, _RED)),
        "bytes": (lambda node: node.nbytes, (_WHITE, _RED)),
        "sqnr": (lambda node: sqnr.get(node.partition), (_RED, _WHITE)),
    }
    files = {}
    for kind, (value_of, colours) in values.items():
        gradient = [{"stop": stop, "bgColor": colour} for stop, colour in enumerate(colours)]
        graphs = {}
        for method, nodes in _methods(report):
            found = {node.name: value for node in nodes if (value := value_of(node))}
            results = {name: {"value": value} for name, value in found.items()}
            graphs[method] = {"name": kind, "results": results, "gradient": gradient}
        if any(graph["results"] for graph in graphs.values()):
            files[kind] = json.dumps(graphs).encode()
    return files


def dot(report: Report, name: str) -> bytes:
    """Return the graph as text of Graphviz, with a cluster per module."""
    colours = _colours(report)
    lines = [f"digraph {_quote(name)} {{", '  node [shape=box, style="rounded,filled", fontname="sans-serif"];']
    for number, (method, nodes) in enumerate(_methods(report)):
        ids = {source: f"m{number}_{i}" for i, source in enumerate((*(n.name for n in nodes), *_ports(nodes)))}
        lines += [f"  subgraph cluster_m{number} {{", f"    label={_quote(method)};"]
        lines += [f"    {ids[port]} [label={_quote(port)}, fillcolor=white];" for port in _ports(nodes)]
        clusters: dict[str, list[NodeReport]] = {}
        for node in nodes:
            clusters.setdefault(node.module, []).append(node)
        for place, (module, members) in enumerate(clusters.items()):
            lines += [f"    subgraph cluster_m{number}_{place} {{", f"      label={_quote(module)};"]
            for node in members:
                label = _quote(f"{_short(node)}\n{node.result}\n{node.backend}")
                lines.append(f"      {ids[node.name]} [label={label}, fillcolor={_quote(colours[node.backend])}];")
            lines.append("    }")
        lines += [f"    {ids[s]} -> {ids[node.name]};" for node in nodes for s in node.inputs if s in ids]
        lines.append("  }")
    return "\n".join([*lines, "}", ""]).encode()


def onnx_model(report: Report, name: str) -> bytes:
    """Return the structure of the only method as an ONNX model, which Netron opens and nothing can run.

    Raises:
        DelegateError: the package onnx is not installed, or the program has several methods.
    """
    try:
        import onnx
    except ModuleNotFoundError as error:
        remedy = "pip install onnx"
        raise DelegateError("the ONNX form needs the package onnx, which is not installed", remedy=remedy) from error
    if len(report.methods) != 1:
        remedy = "use --format model-explorer or dot"
        raise DelegateError(f"an ONNX model holds one method, but the program has {len(report.methods)}", remedy=remedy)
    nodes = [_printable(node) for node in report.nodes]
    read = {source for node in nodes for source in node.inputs}
    results = {node.name: _value_info(onnx, node) for node in nodes}
    graph = onnx.helper.make_graph(
        [_onnx_node(onnx, node) for node in nodes],
        printable(name),
        [onnx.ValueInfoProto(name=port) for port in _ports(nodes)],
        [results[node.name] for node in nodes if node.name not in read],
        value_info=[results[node.name] for node in nodes if node.name in read],
        doc_string=printable(report.summary),
    )
    model = onnx.helper.make_model(graph, producer_name="delegate", opset_imports=[onnx.helper.make_opsetid("aten", 1)])
    return bytes(model.SerializeToString())


def _methods(report: Report) -> Iterator[tuple[str, Sequence[NodeReport]]]:
    nodes = by_method(report.nodes)
    for method in report.methods:
        yield method, nodes.get(method, ())


def _ports(nodes: Iterable[NodeReport]) -> dict[str, NodeReport]:
    """Return the inputs, constants and states that nodes read, each with its first reader, in the order of these."""
    nodes = list(nodes)
    names = {node.name for node in nodes}
    ports: dict[str, NodeReport] = {}
    for node in nodes:
        for source in node.inputs:
            if source not in names:
                ports.setdefault(source, node)
    return ports


def _printable(node: NodeReport) -> NodeReport:
    """Return a node with escapes in its names; ONNX holds no lone surrogates."""
    inputs = tuple(map(printable, node.inputs))
    name, op, result = map(printable, (node.name, node.op, node.result))
    return replace(node, name=name, op=op, result=result, inputs=inputs)


def _colours(report: Report) -> dict[str, str]:
    backends = dict.fromkeys(node.backend for node in report.nodes if node.backend != PORTABLE)
    return {PORTABLE: _GREY, **{b: _COLOURS[i % len(_COLOURS)] for i, b in enumerate(backends)}}


def _short(node: NodeReport) -> str:
    return node.op.removeprefix("aten.").removesuffix(".default")


def _facts(node: NodeReport) -> dict[str, str]:
    """Return what viewers show of a node, by name; what is empty is left out."""
    verdicts = {f"verdict of {backend}": str(verdict) for backend, verdict in node.verdicts.items()}
    facts = {"operator": node.op, "backend": node.backend, "partition": node.partition, "module": node.module,
             "source": node.source, "work": f"{node.work:.4g}", **verdicts}  # fmt: skip
    return {printable(key): printable(value) for key, value in facts.items() if value}


def _explorer_node(node: NodeReport, colours: dict[str, str]) -> dict[str, Any]:
    edges = [
        {"sourceNodeId": source, "sourceNodeOutputId": "0", "targetNodeInputId": str(number)}
        for number, source in enumerate(node.inputs)
    ]
    return {
        "id": node.name,
        "label": _short(node),
        "namespace": node.module.replace(".", "/"),
        "attrs": [{"key": key, "value": value} for key, value in _facts(node).items()],
        "incomingEdges": edges,
        "outputsMetadata": [{"id": "0", "attrs": [{"key": "tensor_shape", "value": node.result}]}],
        "style": {"backgroundColor": colours[node.backend]},
    }


def _explorer_port(port: str, reader: NodeReport) -> dict[str, Any]:
    """Return the node of an input, a constant or a state; the last two are in the module of their first reader."""
    module = "" if port.startswith("input ") else reader.module
    return {"id": port, "label": port, "namespace": module.replace(".", "/"), "incomingEdges": []}


def _onnx_node(onnx: Any, node: NodeReport) -> Any:
    facts = {key.replace(" ", "_"): value for key, value in _facts(node).items()}
    kind = _short(node).replace(".", "_")  # Netron shows what is after the last point
    return onnx.helper.make_node(kind, node.inputs, [node.name], name=node.name, domain="aten", **facts)


def _value_info(onnx: Any, node: NodeReport) -> Any:
    """Return the first result of a node with its dtype and sizes, if ONNX has them."""
    match = _RESULT.match(node.result)
    dtype = match and getattr(onnx.TensorProto, _ONNX_TYPES.get(match[1], match[1].upper()), None)
    if match is None or dtype is None:
        return onnx.ValueInfoProto(name=node.name)
    sizes = [int(size) if _SIZE.fullmatch(size) else size for size in filter(None, match[2].split(", "))]
    return onnx.helper.make_tensor_value_info(node.name, dtype, sizes)


def _quote(text: str) -> str:
    """Return a text as a string of Graphviz, with escapes for characters that are not printable."""
    lines = (printable(line).replace("\\", "\\\\").replace('"', '\\"') for line in text.split("\n"))
    return '"' + "\\n".join(lines) + '"'


FORMATS: Mapping[str, Callable[[Report, str], bytes]] = {
    "model-explorer": model_explorer, "dot": dot, "onnx": onnx_model,
}  # fmt: skip
