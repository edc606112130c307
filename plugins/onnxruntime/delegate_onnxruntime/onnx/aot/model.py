"""Conversion of an ExportedProgram to an ONNX model by torch's own exporter, with weights separate from the graph.

Weights never pass through protobuf, which has a limit of 2 GiB. The graph names them as external data, and the runtime
part passes the blob's own bytes to a session.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from delegate.backend.aot import RegionFailed
from delegate.backend.lowering import LoweringTable
from delegate.backend.region import SIZE_DECIDED
from delegate.common.user_warnings import limit_logs
from delegate.edge.program import META_VALUE
from delegate.edge.torch_private import OpOverload, count_composites, decomposition_table
from delegate.errors import BackendUnavailable
from delegate_onnxruntime.onnx.aot.translations.row import Translation
from delegate_onnxruntime.onnx.runtime.blob import BlobTensor, OnnxModel, Shape, Weight

INSTALL = "pip install 'delegate-onnxruntime[aot]'"
OPSET = 21  # the first whose q/dq operators have 16 bits
_INLINE = 1024  # bytes; smaller constants stay in the graph, where libraries look into them
_FX_NODE = re.compile(r"%(\S+) :")  # the form in which torch's exporter names the source of an ONNX node


@dataclass(frozen=True)
class ExportedModel:
    """A model, and the sources of its nodes.

    Args:
        model: the model with its weights.
        operators: ONNX node -> its operator.
        sources: ONNX node -> its source nodes in the region, if the exporter reports them.
    """

    model: OnnxModel
    operators: Mapping[str, str]
    sources: Mapping[str, tuple[str, ...]]


def to_onnx(program: ExportedProgram, table: LoweringTable[Translation]) -> ExportedModel:
    """Export a program.

    Args:
        program: the result of `exported_program` for a region.
        table: the translations of operators.

    Raises:
        BackendUnavailable: the exporter's libraries are not installed.
        RegionFailed: torch's exporter does not convert the program.
    """
    own = frozenset(node.name for node in program.graph.nodes)  # the exporter adds others
    model = _export(program, table)
    _cast_results(model, program)
    shapes = fix_shapes(model)
    replace_identities(model)
    part_uses(model)
    weights = _take_weights(model)
    sources = dict(_sources(model, program, own))
    for node in model.graph:
        node.metadata_props.clear()  # the stack traces of the model's author: nine tenths of the bytes of a graph
    import onnx_ir

    return ExportedModel(
        model=OnnxModel(
            graph=onnx_ir.to_proto(model).SerializeToString(),
            weights=weights,
            inputs=tuple(_tensor(v) for v in model.graph.inputs),
            outputs=tuple(_tensor(v) for v in model.graph.outputs),
            shapes=shapes,
        ),
        operators={str(node.name): str(node.op_type) for node in model.graph},
        sources=sources,
    )


def require_graph(model: OnnxModel) -> None:
    """Raise an exception if a model names other tensors than its serialized graph has."""
    import onnx

    graph = onnx.ModelProto.FromString(model.graph).graph
    own = tuple([(v.name, v.type.tensor_type.elem_type) for v in values] for values in (graph.input, graph.output))
    if own != tuple([(t.name, t.dtype) for t in tensors] for tensors in (model.inputs, model.outputs)):
        raise ValueError("the inputs or outputs of its graph differ from the declared ones")
    outside = [i for i in graph.initializer if i.data_location == onnx.TensorProto.EXTERNAL]
    weights = {weight.name: weight for weight in model.weights}
    if weights.keys() != {i.name for i in outside} or len(weights) < len(model.weights):
        raise ValueError("the weights of its graph differ from the declared ones")
    for initializer in outside:
        weight, dims = weights[initializer.name], tuple(initializer.dims)
        size = math.prod(dims) * onnx.helper.tensor_dtype_to_np_dtype(initializer.data_type).itemsize
        if (weight.dtype, weight.shape, len(weight.data)) != (initializer.data_type, dims, size):
            raise ValueError(f"its weight {weight.name} differs from the declared one")


def import_onnx() -> Any:
    """Return the package onnx; raise BackendUnavailable if it is absent."""
    try:
        import onnx
    except ImportError as error:
        raise _cannot_export(error) from error
    return onnx


def _cannot_export(error: ImportError) -> BackendUnavailable:
    return BackendUnavailable("exporting to ONNX needs onnx and onnxscript", where=str(error), remedy=INSTALL)


def _export(program: ExportedProgram, table: LoweringTable[Translation]) -> Any:
    """Return the exporter's model in onnx_ir; suppress its warnings and log lines, which are for its own developers."""
    quiet = limit_logs("torch.onnx", "onnx_ir")
    try:
        with quiet, warnings.catch_warnings(), _tables_read_once(), _only_exact_rules(), _no_transposed_weights():
            warnings.simplefilter("ignore")
            _trace_again_only_for(program)
            exported = torch.onnx.export(
                program,
                (),
                dynamo=True,
                verbose=False,
                optimize=True,
                opset_version=OPSET,
                custom_translation_table=_translations(program, table),
            )
    except ImportError as error:
        raise _cannot_export(error) from error
    except Exception as error:  # the exporter wraps whatever its translations raise
        cause = error.__cause__ or error
        if isinstance(cause, SIZE_DECIDED):
            raise cause from None
        reason = " ".join(str(cause).partition("While executing")[0].split())[:300]  # torch adds nodes and tracebacks
        raise RegionFailed(f"torch cannot export the partition to ONNX: {reason}") from error
    assert exported is not None  # only an export to a file gives nothing
    return exported.model


def _trace_again_only_for(program: ExportedProgram) -> None:
    """Let the exporter trace a program again only if it decomposes an operator of the program.

    Otherwise it traces every program again, which takes more than half of an export's time.
    """
    decomposed = program.run_decompositions

    def run(table: Mapping[Any, Any]) -> ExportedProgram:
        return decomposed(table) if any(node.target in table for node in program.graph.nodes) else program

    program.run_decompositions = run


@contextlib.contextmanager
def _tables_read_once() -> Iterator[None]:
    """Let the exporter reuse the tables of translations and of decompositions that it read for the first region.

    Otherwise it reads the source and the signature of every function, and all operators of torch, again for each
    export. This takes most of the time for a small region.
    """
    try:
        from torch.onnx._internal.exporter import _decomp, _registration

        registry: Any = _registration.ONNXRegistry
        read: Any = vars(registry)["from_torchlib"]
        create = _decomp.create_onnx_friendly_decomposition_table
    except (ImportError, KeyError, AttributeError):  # of another version
        yield
        return
    once = _read_once(registry.from_torchlib)
    registry.from_torchlib = staticmethod(once)
    _decomp.create_onnx_friendly_decomposition_table = functools.partial(_decompositions, create)
    try:
        yield
    finally:
        registry.from_torchlib = read
        _decomp.create_onnx_friendly_decomposition_table = create


def _only_exact_rules() -> AbstractContextManager[None]:
    """Let the exporter leave out the rules of onnxscript 0.7 that change results.

    Those that drop `x + 0` and `x * 1` have tolerances of 1e-8 and 1e-5. So they also drop `x + 1e-9`, e.g. in a
    logarithm. Those that join bounds return a bound of the first if the ranges do not overlap.
    """

    def exact(rules: Sequence[Any]) -> tuple[Any, ...]:
        from onnxscript.rewriter.rules.common import _fuse_relus_clips, _min_max_to_clip, _no_op

        dropped = [rule for module in (_fuse_relus_clips, _min_max_to_clip, _no_op) for rule in module.rules]
        return tuple(rule for rule in rules if rule not in dropped)

    return _replace_private("onnxscript.rewriter", "_DEFAULT_REWRITE_RULES", exact)


def _no_transposed_weights() -> AbstractContextManager[None]:
    """Let the exporter leave the transpose of a large weight in the graph, which a session folds when it is opened.

    So the weight has the layout of the program, and methods share its bytes, as a tied embedding and head do.
    """
    module = "onnxscript.optimizer._constant_folding"
    return _replace_private(module, "_DEFAULT_ALWAYS_FOLD_OPS", lambda _: frozenset())


@contextlib.contextmanager
def _replace_private(module: str, name: str, change: Callable[[Any], Any]) -> Iterator[None]:
    """Change a private value of a module in a `with` block; another version of it that has none stays as it is."""
    try:
        owner = importlib.import_module(module)
        before = getattr(owner, name)
        changed = change(before)
    except (ImportError, AttributeError):
        yield
        return
    setattr(owner, name, changed)
    try:
        yield
    finally:
        setattr(owner, name, before)


@functools.cache
def _read_once(read: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with a cached result; each call returns a copy, so tables share no registrations."""
    known = functools.cache(read)

    def table(**options: Any) -> Any:
        copied = copy.copy(known(**options))
        copied.functions = {target: list(functions) for target, functions in copied.functions.items()}
        return copied

    return table


def _decompositions(create: Callable[..., Any], translated: Set[Any]) -> dict[Any, Any]:
    """Return the decompositions of operators that are not translated, out of a cached table of all decompositions."""
    known = _all_decompositions(create, count_composites(), len(decomposition_table))
    return {target: how for target, how in known.items() if target not in translated}


@functools.lru_cache(1)
def _all_decompositions(create: Callable[..., Any], *_: int) -> Mapping[Any, Any]:
    """Return the decompositions of all operators; the other arguments change when an operator is registered."""
    decompositions: Mapping[Any, Any] = create(frozenset())
    return decompositions


def _cast_results(model: Any, program: ExportedProgram) -> None:
    """Cast results to the dtypes that torch planned: the exporter computes, e.g., abs of float16 in float32.

    Raises:
        RegionFailed: a result is of another kind.
    """
    import onnx_ir
    from onnx_ir.tensor_adapters import from_torch_dtype

    graph = model.graph
    for place, node in enumerate(program.graph.output_node().args[0]):
        value, planned = graph.outputs[place], from_torch_dtype(node.meta[META_VALUE].dtype)
        if value.dtype == planned:
            continue
        if not (value.dtype.is_floating_point() and planned.is_floating_point()):
            raise RegionFailed(f"torch's exporter computes {value.name} as {value.dtype}, but torch computes {planned}")
        cast = onnx_ir.node("Cast", [value], {"to": planned}, name=f"{value.name}_cast")
        graph.append(cast)
        (result,) = cast.outputs
        result.name, result.shape, result.dtype = f"{value.name}_{planned.name}", value.shape, planned
        graph.outputs[place] = result


def _translations(
    program: ExportedProgram, table: LoweringTable[Translation]
) -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return the translations of operators that replace the exporter's own ones.

    They include all overloads, because the exporter's own passes replace some overloads by others.
    """
    used = {node.target.overloadpacket for node in program.graph.nodes if isinstance(node.target, OpOverload)}
    overloads = [getattr(packet, name) for packet in used for name in packet.overloads()]
    rows = {overload: table.get(str(overload)) for overload in overloads}
    translations = {target: row.lower.translate for target, row in rows.items() if row is not None}
    return {target: translate for target, translate in translations.items() if translate is not None}


def _take_weights(model: Any) -> tuple[Weight, ...]:
    """Replace the large initializers by references, and return their weights; equal tensors share bytes."""
    import onnx_ir

    weights: list[Weight] = []
    held: dict[Any, bytes] = {}
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is None or tensor.nbytes < _INLINE:
            continue
        if tensor not in held:
            held[tensor] = tensor.tobytes()
        name, size = str(value.name), int(tensor.nbytes)
        weights.append(Weight(name, int(tensor.dtype), tuple(int(d) for d in tensor.shape), held[tensor]))
        value.const_value = onnx_ir.ExternalTensor("weights", 0, size, tensor.dtype, shape=tensor.shape, name=name)
    return tuple(weights)


def _tensor(value: Any) -> BlobTensor:
    return BlobTensor(str(value.name), int(value.dtype))


def _sources(model: Any, program: ExportedProgram, own: Set[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    uses = {node.name: tuple(_uses_of(node, own)) for node in program.graph.nodes}
    for node in model.graph:
        match = _FX_NODE.match(node.metadata_props.get("pkg.torch.onnx.fx_node", ""))
        if match and match[1] in uses:
            yield str(node.name), uses[match[1]]


def _uses_of(node: Node, own: Set[str]) -> Iterator[str]:
    """Yield the node itself; for a size or a cast number that is not of the region, its users in the region."""
    if node.name in own and not isinstance(node.meta.get(META_VALUE), torch.SymInt):
        yield node.name
        return
    for user in node.users:
        yield from _uses_of(user, own)


def replace_identities(model: Any) -> None:
    """Replace every Identity of an onnx_ir model by a Reshape."""
    import onnx_ir

    for node in list(model.graph):
        if node.op_type != "Identity":
            continue
        shape = node.outputs[0].shape or node.inputs[0].shape
        same = onnx_ir.tensor([0] * len(shape or ()), dtype=onnx_ir.DataType.INT64)  # 0: as it is
        constant = onnx_ir.node("Constant", [], {"value": same})
        model.graph.insert_before(node, constant)
        node.op_type = "Reshape"
        node.resize_inputs(2)
        node.replace_input_with(1, constant.outputs[0])


_Use = frozenset[tuple[str, int, str]]
_BETWEEN = "DequantizeLinear"  # is done to a weight before it is read


def part_uses(model: Any) -> None:
    """Add an initializer to an onnx_ir model for each further use of a weight."""
    graph = model.graph
    for node in [node for node in graph if node.op_type == _BETWEEN and node.inputs[0].is_initializer()]:
        _part(node.outputs[0], _same_node)
    for value in [v for v in graph.initializers.values() if v.const_value.size > 1]:
        _part(value, _same_initializer)


def _part(value: Any, same: Callable[[Any, str], Any]) -> None:
    """Let the first kind of use read a value, and each other kind the copy that `same` makes, with a name suffix."""
    values: dict[_Use, Any] = {}
    for node, place in list(value.uses()):
        use = _use(node, place)
        if use not in values:
            values[use] = same(value, f"/{len(values)}") if values else value
        node.replace_input_with(place, values[use])


def _use(node: Any, place: int) -> _Use:
    """Return how a weight is used: the operator that reads it, the input, and the attributes."""
    if node.op_type == _BETWEEN and place == 0:
        return frozenset().union(*(_use(*user) for user in node.outputs[0].uses()))
    return frozenset({(node.op_type, place, str(sorted(map(str, node.attributes.values()))))})


def _same_initializer(value: Any, suffix: str) -> Any:
    import onnx_ir

    copied = onnx_ir.Value(name=value.name + suffix, shape=value.shape, type=value.type, const_value=value.const_value)
    value.graph.register_initializer(copied)
    return copied


def _same_node(value: Any, suffix: str) -> Any:
    import onnx_ir

    node = value.producer()
    copied = onnx_ir.Node("", node.op_type, node.inputs, node.attributes.values(), name=node.name + suffix)
    copied.metadata_props.update(node.metadata_props)
    node.graph.insert_after(node, copied)
    (result,) = copied.outputs
    result.name, result.shape, result.type = value.name + suffix, value.shape, value.type
    return result


_UNCHANGED = {"Reshape": 0, "Expand": 1}  # operator -> the constant of an unchanged size


def fix_shapes(model: Any) -> tuple[Shape, ...]:
    """Replace the computed shapes in an onnx_ir model by constants or by inputs of the model.

    Returns:
        The shapes that are new inputs of the model, after its own inputs, in order.
    """
    import onnx_ir
    from onnx_ir.passes.common import RemoveUnusedNodesPass

    symbol_sources = _symbol_sources(model)
    added: dict[Shape, Any] = {}
    for node in list(model.graph):
        if node.op_type not in _UNCHANGED or node.inputs[1].const_value is not None:
            continue
        source, target = node.inputs[0].shape, node.outputs[0].shape
        if source is None or target is None:
            continue
        sizes = _constant(node.op_type, tuple(source), tuple(target))
        shape = None if sizes is not None else _shape(node.op_type, tuple(target), symbol_sources)
        if sizes is not None:
            constant = onnx_ir.node("Constant", [], {"value": onnx_ir.tensor(sizes, dtype=onnx_ir.DataType.INT64)})
            model.graph.insert_before(node, constant)
            node.replace_input_with(1, constant.outputs[0])
        elif shape is not None:
            if shape not in added:
                kind, length = onnx_ir.TensorType(onnx_ir.DataType.INT64), onnx_ir.Shape([len(shape)])
                added[shape] = onnx_ir.Value(name=f"shape_{len(added)}", shape=length, type=kind)
                model.graph.inputs.append(added[shape])
            node.replace_input_with(1, added[shape])
        else:
            continue
        if node.op_type == "Reshape":
            node.attributes["allowzero"] = onnx_ir.AttrInt64("allowzero", 0)
    RemoveUnusedNodesPass()(model)
    return tuple(added)


def _symbol_sources(model: Any) -> Mapping[str, tuple[int, int]]:
    """Return, for each symbol, the input and its dimension that have this size."""
    symbol_sources: dict[str, tuple[int, int]] = {}
    for number, value in enumerate(model.graph.inputs):
        for dim, size in enumerate(value.shape):
            if not isinstance(size, int):
                symbol_sources.setdefault(str(size.value), (number, dim))
    return symbol_sources


def _constant(operator: str, source: Sequence[Any], target: Sequence[Any]) -> list[int] | None:
    """Return the shape `target` as numbers; None if several sizes must be computed, or one that may be 0."""
    unchanged, offset = _UNCHANGED[operator], len(source) - len(target) if operator == "Expand" else 0
    before = [source[i + offset] if 0 <= i + offset < len(source) else None for i in range(len(target))]
    sizes = [t if isinstance(t, int) else unchanged if t == b else -1 for t, b in zip(target, before, strict=True)]
    left = 1 if operator == "Reshape" else 0
    return sizes if sizes.count(-1) <= left and 0 not in target else None


def _shape(operator: str, target: Sequence[Any], symbol_sources: Mapping[str, tuple[int, int]]) -> Shape | None:
    """Return the shape `target` as sizes of inputs; None if more than one size of a Reshape must be computed."""
    sizes = [size if isinstance(size, int) else symbol_sources.get(str(size.value), -1) for size in target]
    left = 1 if operator == "Reshape" else 0
    return tuple(sizes) if sizes.count(-1) <= left and 0 not in target else None


def with_weights(model: OnnxModel) -> bytes:
    """Return the ONNX file of a model, with its weights inside."""
    import onnx  # torch's exporter needs it too

    proto = onnx.load_model_from_string(model.graph)
    weights = {weight.name: weight for weight in model.weights}
    for initializer in proto.graph.initializer:
        if initializer.name in weights:
            del initializer.external_data[:]
            initializer.data_location = onnx.TensorProto.DEFAULT
            initializer.raw_data = bytes(weights[initializer.name].data)
    return bytes(proto.SerializeToString())
