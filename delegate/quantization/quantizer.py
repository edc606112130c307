"""A torchao quantizer that annotates an exported model by a backend's table of quantized operators."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e.quantizer import QuantizationAnnotation, Quantizer, SharedQuantizationSpec

from delegate.backend.quantizable import QuantizationScheme, QuantizedOperator
from delegate.config.model import Quantization
from delegate.edge.node import base_name, edge_names, is_empty
from delegate.errors import ConfigError
from delegate.quantization.observers import activation_spec, fixed_spec, weight_spec
from delegate.quantization.settings import SchemeChoice, stack
from delegate.registry import Registry

ANNOTATION = "quantization_annotation"  # key in `meta` of a node, of torchao
JOINS = "joins_ranges"  # key in `meta` of a node that joins values, whose ranges are measured apart
_MAX_PLACES = 5  # that a note lists
_NORMS = frozenset({"aten.batch_norm", "aten._native_batch_norm_legit_no_training", "aten.cudnn_batch_norm"})


class BackendQuantizer(Quantizer):  # type: ignore[misc]
    """A quantizer for `prepare_pt2e` and `prepare_qat_pt2e`.

    Args:
        settings: the backend and the settings of the quantization.
        qat: annotate for training with fake quantization.
        registry: the registry that holds the backend; None for the default one.
        choice: the choice of schemes, if its patterns are already checked. torchao folds batch norms before it
            annotates, and a pattern of a batch norm would then match nothing.

    Raises:
        ConfigError: In `annotate`, a pattern matches nothing, a scheme is unknown, or a group size of the settings
            does not divide the inputs of a weight.
    """

    def __init__(
        self,
        settings: Quantization,
        *,
        qat: bool = False,
        registry: Registry | None = None,
        choice: SchemeChoice | None = None,
    ) -> None:
        self.settings, self.qat, self._registry, self._choice = settings, qat, registry, choice
        self._rows: dict[str, Mapping[str, QuantizedOperator]] = {}
        self._exceptions: dict[tuple[str, str], dict[str, None]] = {}  # what a scheme does, and why -> the layers

    @property
    def notes(self) -> tuple[str, ...]:
        """The layers that the defaults of a scheme do not fit, a sentence for each reason."""
        return tuple(f"{what.format(_list_places(places))}: {why}" for (what, why), places in self._exceptions.items())

    def annotate(self, model: GraphModule) -> GraphModule:
        if self._choice is None:
            self._choice = SchemeChoice(self.settings, self._registry)
            self._choice.require_matches([model.graph])
        self._coded: dict[Node, Node] = {}  # node with an integer value -> the node whose parameters it shares
        for node in model.graph.nodes:
            if node.op == "call_function" and ANNOTATION not in node.meta and _is_float(node):
                scheme = self._choice.scheme(node)
                row = None if scheme is None else self._row(scheme, node)
                if scheme is not None and row is not None:
                    self._annotate(scheme, row, node)
        return model

    def validate(self, model: GraphModule) -> None:
        """Accept any model: all annotations come from the backend's table."""

    def _row(self, scheme: QuantizationScheme, node: Node) -> QuantizedOperator | None:
        if scheme.name not in self._rows:
            self._rows[scheme.name] = {row.op.rpartition(".")[0] or row.op: row for row in reversed(scheme.operators)}
        rows = self._rows[scheme.name]
        name = "getitem" if getattr(node.target, "__name__", "") == "getitem" else base_name(node)
        return next((rows[edge] for edge in edge_names(name) if edge in rows), None)

    def _annotate(self, scheme: QuantizationScheme, row: QuantizedOperator, node: Node) -> None:
        refusal = "" if row.accepts is None else row.accepts(node)
        if row.weight is not None:
            self._annotate_layer(scheme, row, node, refusal)
        elif not refusal and scheme.activations is not None and not scheme.dynamic:
            (self._annotate_move if row.moves else self._annotate_operator)(scheme, row, node)

    # -- operators that compute ---------------------------------------------------------------------------------------

    def _annotate_layer(self, scheme: QuantizationScheme, row: QuantizedOperator, node: Node, refusal: str) -> None:
        """Annotate a layer with weights, and in static schemes its result.

        Args:
            scheme, row, node: the scheme, its row for the layer, and the layer.
            refusal: the reason why the backend does not support this layer on integers; empty if it does.
        """
        assert row.weight is not None
        weight = node.args[row.weight]
        if not (isinstance(weight, Node) and weight.op == "get_attr"):
            return
        if row.kind is None:
            self._check_given_group(scheme, node, weight)
        refusal = "its weight has no elements" if is_empty(weight) else refusal
        if refusal:
            self._except(f"{scheme.name} leaves {{}} in float", refusal, _layer(node, weight))
            return
        axis = 1 if "transpose" in base_name(node) else row.axis
        # torchao's fusion of batch norms for training needs this order: activations, also those in floats, then weight.
        coded = scheme.activations is not None
        inputs = {s: self._spec(scheme, s) if coded else None for s in _sources(node, row)}
        group = self._group(scheme, node, weight) if row.kind is None else row.kind.group
        static = not scheme.dynamic and coded and bool(row.inputs)
        inputs[weight] = weight_spec(row.kind or scheme.weights, axis, group, static=static, qat=self.qat)
        if not static:
            node.meta[ANNOTATION] = QuantizationAnnotation(input_qspec_map=inputs, _annotated=True)
        else:
            self._annotate_with_result(scheme, row, node, inputs, norms=True)

    def _annotate_operator(self, scheme: QuantizationScheme, row: QuantizedOperator, node: Node) -> None:
        inputs: dict[Node, Any] = {}
        for position in row.inputs:
            for source in _sources(node, row, (position,)):
                inputs[source] = self._spec(scheme, source, symmetric=position in row.symmetric)
        if inputs:
            self._annotate_with_result(scheme, row, node, inputs, norms=False)

    def _annotate_with_result(
        self,
        scheme: QuantizationScheme,
        row: QuantizedOperator,
        node: Node,
        inputs: dict[Node, Any],
        *,
        norms: bool,
    ) -> None:
        """Annotate an operator and the operators fused into it; the last of them has the result."""
        chain = [node, *self._fused_users(scheme, row, node, norms=norms)]
        for member in chain:
            member.meta[ANNOTATION] = QuantizationAnnotation(_annotated=True)
        node.meta[ANNOTATION].input_qspec_map = inputs
        assert scheme.activations is not None
        fixed = None if row.result is None else fixed_spec(scheme.activations, row.result)
        chain[-1].meta[ANNOTATION].output_qspec = self._spec(scheme, None) if fixed is None else fixed
        self._coded[chain[-1]] = chain[-1]

    def _fused_users(
        self, scheme: QuantizationScheme, row: QuantizedOperator, node: Node, *, norms: bool
    ) -> Iterator[Node]:
        """Yield the users fused into an operator: a batch norm, then an activation of the same scheme.

        A user is fused only if it is the only user of the result.
        """
        assert self._choice is not None
        user = _only_user(node)
        if norms and user is not None and base_name(user) in _NORMS and user.args[0] is node:
            yield user
            user = _only_user(user)
        fused = {op.rpartition(".")[0] for op in row.fuses}
        is_fused = user is not None and not fused.isdisjoint(edge_names(base_name(user)))
        if user is not None and is_fused and self._choice.scheme(user) is scheme:
            yield user

    def _spec(self, scheme: QuantizationScheme, source: Node | None, *, symmetric: bool = False) -> Any:
        """Return the specification of an activation; a moved activation shares the parameters of its origin."""
        root = None if source is None else self._coded.get(source)
        if root is not None and root is not source and not symmetric and not scheme.dynamic:
            return SharedQuantizationSpec(root)
        assert scheme.activations is not None
        return activation_spec(
            scheme.activations,
            observer=self.settings.observer,
            outliers=self.settings.outliers,
            dynamic=scheme.dynamic,
            qat=self.qat,
            symmetric=symmetric,
        )

    # -- operators that move values -----------------------------------------------------------------------------------

    def _annotate_move(self, scheme: QuantizationScheme, row: QuantizedOperator, node: Node) -> None:
        """Annotate an operator to share the parameters of its inputs, if all of them are integers.

        Several inputs are measured apart after training, and share their parameters later if their ranges are similar.
        """
        sources = list(_sources(node, row))
        if not sources or not all(source in self._coded for source in sources):
            return
        if not isinstance(node.meta.get("val"), torch.Tensor) or not all(map(_is_one, sources)):
            self._coded[node] = self._coded[sources[0]]  # a tuple, whose members have no nodes
            return
        roots = dict.fromkeys(self._coded[source] for source in sources)
        first = next(iter(roots))
        shared: Any
        if len(sources) == 1:
            shared = SharedQuantizationSpec(first)
            inputs = {sources[0]: shared}
        elif not self.qat:
            node.meta[JOINS] = True
            inputs = {source: SharedQuantizationSpec(self._coded[source]) for source in sources}
            shared = self._spec(scheme, None)
        else:
            shared = SharedQuantizationSpec((sources[0], node))
            inputs = {sources[0]: SharedQuantizationSpec(first)} | dict.fromkeys(sources[1:], shared)
        node.meta[ANNOTATION] = QuantizationAnnotation(input_qspec_map=inputs, output_qspec=shared, _annotated=True)
        self._coded[node] = node

    def _check_given_group(self, scheme: QuantizationScheme, node: Node, weight: Node) -> None:
        """Check a group size of the settings; the scheme's own makes way for a scale per channel where it does not fit.

        Raises:
            ConfigError: it does not divide the inputs, the backend lacks it, or the model is for training.
        """
        assert self._choice is not None
        least, size = scheme.weights.group, self._choice.group_size(node)
        if not least or not size:
            return
        shape = weight.meta["val"].shape
        where = f"{_layer(node, weight)}, whose weight is {list(shape)}"
        if size % least:
            what = f"quantization.group_size {size}: {self.settings.backend} supports only multiples of {least}"
            raise ConfigError(what, where=where, remedy="give such a number, or 0 for a scale per channel")
        if shape[-1] % size:
            what = f"quantization.group_size {size} does not divide {shape[-1]} inputs"
            possible = f"a divisor that is a multiple of {least}, " if shape[-1] % least == 0 else ""
            remedy = f"give {possible}0 for a scale per channel, or switch this module off"
            raise ConfigError(what, where=where, remedy=remedy)
        if self.qat:
            raise ConfigError("training does not support groups of weights", where=where, remedy="set group_size: 0")

    def _group(self, scheme: QuantizationScheme, node: Node, weight: Node) -> int:
        """Return the number of a weight's inputs that share a scale; 0 for all inputs."""
        assert self._choice is not None
        size, given, inputs = scheme.weights.group, self._choice.group_size(node), weight.meta["val"].shape[-1]
        if not size or given is not None:
            return given or 0
        why = "training does not support groups of weights" if self.qat else ""
        why = why or (f"groups of {size} do not divide these inputs" if inputs % size else "")
        if not why:
            return size
        self._except(f"{scheme.name} has a scale per channel in {{}}", why, f"{_layer(node, weight)} ({inputs} inputs)")
        return 0

    def _except(self, what: str, why: str, place: str) -> None:
        """Add a layer to the notes.

        Args:
            what: what the scheme does, with {} for the layers.
            why: the reason.
            place: the layer.
        """
        self._exceptions.setdefault((what, why), {})[place] = None


def _layer(node: Node, weight: Node) -> str:
    """Return the name of a layer for people: the path of its module, or its weight in a model that is one layer."""
    paths = stack(node)
    return paths[-1][0] if paths else str(weight.target)


def _list_places(places: Collection[str]) -> str:
    """Return the first places as text, and the number of the others."""
    first = ", ".join(islice(places, _MAX_PLACES))
    return first if len(places) <= _MAX_PLACES else f"{first} and {len(places) - _MAX_PLACES} more"


def _sources(node: Node, row: QuantizedOperator, positions: Sequence[int] | None = None) -> Iterator[Node]:
    """Yield the activations of an operator: its float tensors at these positions of the arguments, each once."""
    seen: set[Node] = set()
    for position in row.inputs if positions is None else positions:
        value = node.args[position] if position < len(node.args) else None
        for item in value if isinstance(value, list | tuple) else (value,):
            if isinstance(item, Node) and item not in seen and _is_float(item):
                seen.add(item)
                yield item


def _only_user(node: Node) -> Node | None:
    users = list(node.users)
    return users[0] if len(users) == 1 and users[0].op == "call_function" else None


def _is_float(node: Node) -> bool:
    value = node.meta.get("val")
    first = value[0] if isinstance(value, list | tuple) and value else value
    return isinstance(first, torch.Tensor) and first.dtype is torch.float32 and not is_empty(node)


def _is_one(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor) or node.op != "call_function"
