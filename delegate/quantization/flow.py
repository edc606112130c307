"""The quantization flow: prepare, calibrate or train, convert, export again."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import _lru_cache_wrapper
from typing import Any, cast

import torch
import torch.ao.quantization.fx.utils
import torchao.utils
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule, Node

from delegate.common.user_warnings import warn_user
from delegate.config.model import Quantization
from delegate.edge.node import op_name, tensors
from delegate.edge.passes.folding import fold_parameters, make_weights_parameters
from delegate.edge.torch_private import pytree
from delegate.errors import ConfigError, DelegateError, ExportError, did_you_mean
from delegate.plugins import one_line
from delegate.quantization.calibration import Batch, CalibrationBatches, input_names, read_calibration
from delegate.quantization.observers import NotFinite
from delegate.quantization.quantizer import BackendQuantizer
from delegate.quantization.ranges import (
    join_ranges,
    layer_of_observer,
    list_observers,
    not_finite_error,
    place_of,
    place_of_observer,
    require_ranges,
    rule_for_floats,
    warn_of_outliers,
    warn_of_vanishing,
)
from delegate.quantization.settings import OFF, RULES, SchemeChoice
from delegate.registry import Registry


def _calibration(section: Quantization, methods: Sequence[str]) -> Mapping[str, str]:
    """Return the source of each method's calibration data.

    Raises:
        ConfigError: a source names no method of the program, or one source stands for several methods.
    """
    sources = section.calibration
    if sources is None:
        return {}
    where = "quantization.calibration"
    if isinstance(sources, str):
        if len(methods) > 1:
            what = f"one source of calibration data is for one method, but the program has {len(methods)}"
            raise ConfigError(what, where=where, remedy=f"give data for each method: {{{methods[0]}: DATA, ...}}")
        return {methods[0]: sources}
    for name in sources:
        if name not in methods:
            raise ConfigError(f"the program has no method {name!r}", where=where, remedy=did_you_mean(name, methods))
    return sources


Progress = Callable[[int], None]  # called with the number of each finished batch
Note = Callable[[str], object]


@dataclass(frozen=True)
class Prepared:
    """A model with observers or fake quantization inserted.

    Args:
        module: the module to run on calibration data, or to train.
        program: the float program.
        settings: the settings of the quantization.
        qat: if the module is for quantization-aware training.
        needs_data: if ranges of activations are measured.
        states: the buffers of the program by name, with their values before calibration; empty for training.
        notes: sentences on layers that the defaults of a scheme do not fit: they have a scale per channel, or stay in
            float.
    """

    module: GraphModule
    program: ExportedProgram
    settings: Quantization
    qat: bool
    needs_data: bool
    states: Mapping[str, torch.Tensor]
    notes: tuple[str, ...] = ()


def prepare(
    program: ExportedProgram, settings: Quantization, *, qat: bool = False, registry: Registry | None = None
) -> Prepared:
    """Prepare a program for calibration, or with `qat` for training; copies its weights.

    For training, export the module in training mode, and a warning tells if no operator of the model is quantized.

    Raises:
        ConfigError: the settings do not fit the model or the backend.
        ExportError: torchao does not accept the program.
    """
    choice = SchemeChoice(settings, registry)
    choice.require_matches([program.graph])
    return _prepare(program, choice, qat=qat, registry=registry)


def _prepare(
    program: ExportedProgram, choice: SchemeChoice, *, qat: bool, registry: Registry | None, label: str = "the model"
) -> Prepared:
    """Prepare a program, which messages call `label`; the settings are checked against the graphs of all methods."""
    from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e, prepare_qat_pt2e

    settings = choice.settings
    quantizer = BackendQuantizer(settings, qat=qat, registry=registry, choice=choice)
    with _using_torchao():
        module = program.module()
        buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
        for name, buffer in buffers.items():  # calibration writes to them, and the caller must keep its own
            owner, _, leaf = name.rpartition(".")
            module.get_submodule(owner)._buffers[leaf] = buffer
        if not qat:
            fold_parameters(module, lambda node: any(user.op == "call_function" for user in node.users))
            make_weights_parameters(module, _is_weight)  # torchao replaces only parameters by folded ones
        needs_data = _needs_data(module, choice)
        try:
            prepared = (prepare_qat_pt2e if qat else prepare_pt2e)(module, quantizer)
        except DelegateError:
            raise
        except Exception as error:  # torchao asserts
            raise ExportError(f"torchao cannot prepare the model: {one_line(error)}") from error
    if not qat:
        _observe_weights(prepared)
    _warn_of_nothing(prepared, settings, quantizer.notes, label)
    own = {name: buffer for name, buffer in prepared.named_buffers() if name in program.graph_signature.buffers}
    states = {} if qat else {name: buffer.clone() for name, buffer in own.items()}
    return Prepared(prepared, program, settings, qat, needs_data, states, quantizer.notes)


def _is_weight(node: Node) -> bool:
    """Return if a node reads the weight or the bias of a convolution or a linear layer."""
    layers = ("aten.conv", "aten.linear.")
    return any(op_name(user).startswith(layers) and node in user.args[1:3] for user in node.users)


def convert(prepared: Prepared, note: Note | None = None) -> ExportedProgram:
    """Convert a calibrated or trained model to a quantized program with the sizes and names of the float program.

    Args:
        prepared: the model.
        note: called with a sentence on operators that stay in float because of their operands' ranges.

    Raises:
        ExportError: torchao cannot convert the model, or torch cannot export the result.
    """
    from torchao.quantization.pt2e import move_exported_model_to_eval
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e

    require_ranges(prepared.module)
    warn_of_outliers(prepared.module)
    apart = join_ranges(prepared.module)
    warn_of_vanishing(prepared.module, apart)
    if apart and note is not None:
        names = ", ".join(dict.fromkeys(place_of(node) for node in apart))
        note(
            f"{names} stays in float: ranges of its operands differ by more than 16 times, and integers have one scale"
        )
    with _using_torchao(), torch.no_grad():
        try:
            for name, state in prepared.states.items():
                prepared.module.get_buffer(name).copy_(state)
            if not prepared.qat:
                _retarget(prepared.module, torch.ops.aten.batch_norm.default, _batch_norm)
            module = convert_pt2e(prepared.module, fold_quantize=False)
            _retarget(module, _batch_norm, torch.ops.aten.batch_norm.default)
            fold_parameters(module, _quantizes)
            if prepared.qat:
                move_exported_model_to_eval(module)
            args, kwargs = cast("tuple[Any, dict[str, Any]]", prepared.program.example_inputs)
            shapes = _dynamic_shapes(prepared.program)
            return torch.export.export(module, args, kwargs, dynamic_shapes=shapes)
        except Exception as error:
            raise ExportError(f"torchao cannot convert the model: {one_line(error)}") from error


def _batch_norm(*args: Any) -> Any:
    """Compute a batch norm in a form that torchao does not know.

    If it finds one, it exports 96 patterns of convolutions in training, which takes ten seconds. After training, the
    norms that follow a convolution are folded into it, and the others fit none of these patterns.
    """
    return torch.ops.aten.batch_norm.default(*args)


def _retarget(module: GraphModule, old: Callable[..., Any], new: Callable[..., Any]) -> None:
    """Let the nodes of one function call another."""
    for node in module.graph.find_nodes(op="call_function", target=old):
        node.target = new
    module.recompile()


def quantize(
    program: ExportedProgram,
    settings: Quantization,
    calibration: Iterable[Batch] | None = None,
    *,
    progress: Progress | None = None,
    registry: Registry | None = None,
    note: Note | None = None,
) -> ExportedProgram:
    """Quantize a program after training.

    Args:
        program: the float program.
        settings: the backend and the settings of the quantization, as the section of a configuration.
        calibration: batches of inputs: tuples, dicts of arguments by name, or single tensors; of torch or NumPy. None
            for the settings' own, which dynamic and weight-only schemes do not need: they measure no ranges.
        progress: called with the number of each finished batch.
        registry: the registry that holds the backend; None for the default one.
        note: called with each sentence on layers that the defaults of a scheme do not fit: they have a scale per
            channel, or stay in float.

    Raises:
        ConfigError: the settings do not fit, or calibration data is missing.
        InputError: the calibration data does not fit, or its range cannot be measured.
        ExportError: torchao does not accept the program.
    """
    data = None if calibration is None else {"forward": calibration}
    options: dict[str, Any] = {"progress": progress, "registry": registry, "note": note}
    return quantize_methods({"forward": program}, settings, data, **options)["forward"]


def quantize_methods(
    programs: Mapping[str, ExportedProgram],
    settings: Quantization,
    calibration: Mapping[str, Iterable[Batch]] | None = None,
    *,
    progress: Progress | None = None,
    registry: Registry | None = None,
    methods: Collection[str] | None = None,
    note: Note | None = None,
) -> dict[str, ExportedProgram]:
    """Quantize the methods of a program after training.

    Args:
        programs: the exported methods by name. Every pattern of the settings must match a node in one of them.
        settings, progress, registry, note: see `quantize`.
        calibration: batches of inputs by method, for the methods whose ranges of activations are measured; None for
            the settings' own.
        methods: the methods to quantize; None for all.

    Raises:
        ConfigError, InputError, ExportError: see `quantize`.
    """
    choice = SchemeChoice(settings, registry)
    choice.require_matches(program.graph for program in programs.values())
    if calibration is None:
        sources = _calibration(settings, tuple(programs))
        calibration = {name: read_calibration(source, input_names(programs[name])) for name, source in sources.items()}
    quantized: dict[str, ExportedProgram] = {}
    notes: dict[str, None] = {}  # in order; methods often share their layers
    for name in (name for name in programs if methods is None or name in methods):
        label = "the model" if len(programs) == 1 else f"method {name!r}"
        prepared = _prepare(programs[name], choice, qat=False, registry=registry, label=label)
        notes |= dict.fromkeys(prepared.notes)
        quantized[name] = _quantize_method(name, prepared, calibration.get(name), progress, notes.setdefault)
    if note is not None:
        for sentence in notes:
            note(sentence)
    return quantized


def _quantize_method(
    name: str,
    prepared: Prepared,
    calibration: Iterable[Batch] | None,
    progress: Progress | None,
    note: Note,
) -> ExportedProgram:
    """Calibrate a method if its ranges are measured, then convert it."""
    if prepared.needs_data:
        if calibration is None:
            what = f"static quantization measures the range of activations, but {name!r} has no calibration data"
            raise ConfigError(
                what, where="quantization.calibration", remedy="give calibration data, or use a dynamic scheme"
            )
        with torch.no_grad(), _using_torchao():
            batches = CalibrationBatches(calibration, prepared.program, prepared.settings.batches)
            for number, (args, kwargs) in enumerate(batches, 1):
                try:
                    prepared.module(*args, **kwargs)
                except NotFinite as error:
                    raise not_finite_error(prepared.module, error, number) from error
                if progress is not None:
                    progress(number)
    return convert(prepared, note)


def _observe_weights(module: GraphModule) -> None:
    """Run the observers of weights: weight-only schemes never run the module, so torchao would not measure them.

    Raises:
        ConfigError: a weight has NaN or infinity, so it has no scale.
    """
    with torch.no_grad(), _using_torchao():
        for node, observer in list_observers(module):
            source = node.args[0]
            if isinstance(source, Node) and source.op == "get_attr":
                weight = operator.attrgetter(str(source.target))(module)
                if not weight.isfinite().all():
                    remedy = (
                        f"load other weights, or keep this layer in float: {rule_for_floats([layer_of_observer(node)])}"
                    )
                    raise ConfigError(
                        f"{place_of_observer(node)} has NaN or infinity", where="quantization", remedy=remedy
                    )
                observer(weight)


class NothingQuantized(RuntimeWarning):
    """The warning that quantization leaves a program as it was."""


def _warn_of_nothing(module: GraphModule, settings: Quantization, notes: Sequence[str], label: str) -> None:
    """Warn if quantization changes nothing.

    Args:
        module: the prepared model.
        settings: the settings of the quantization.
        notes: the sentences on layers that the schemes do not fit.
        label: the model in the message.
    """
    schemes = {settings.scheme, *(scheme for key in RULES for scheme in getattr(settings, key).values())}
    if schemes == {OFF} or any(list_observers(module)):
        return
    floats = {t.dtype for n in module.graph.nodes for t in tensors(n) if t.is_floating_point()} - {torch.float32}
    names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in floats))
    why = f"{settings.backend} quantizes none of its operators"
    why = f"it computes in {names}: quantize it in float32" if floats else why
    why = "the rules keep its layers in float" if OFF in schemes else why
    why = "; ".join(notes) or why
    warn_user(f"no operator of {label} is quantized: {why}", NothingQuantized)


def _needs_data(module: GraphModule, choice: SchemeChoice) -> bool:
    """Return if a node has a scheme that fixes the range of activations."""
    schemes = (choice.scheme(n) for n in module.graph.nodes if n.op == "call_function")
    return any(s is not None and s.activations is not None and not s.dynamic for s in schemes)


def _quantizes(node: Node) -> bool:
    return "quantize_" in str(node.target) and "dequantize_" not in str(node.target)


def _dynamic_shapes(program: ExportedProgram) -> Any:
    """Return the `dynamic_shapes` with which torch.export gives the same dynamic sizes again."""
    dims: dict[str, Any] = {}
    nodes = {n.name: n for n in program.graph.find_nodes(op="placeholder")}
    shapes = [_sizes(nodes[str(name)].meta.get("val"), program, dims) for name in program.graph_signature.user_inputs]
    if not dims:
        return None
    args, kwargs = pytree.tree_unflatten(shapes, program.call_spec.in_spec)
    signature = list(args)
    return tuple(signature) if not kwargs else _by_argument_name(program, signature, kwargs)


def _by_argument_name(program: ExportedProgram, args: list[Any], kwargs: Mapping[str, Any]) -> Any:
    names = [str(n) for n in program.graph_signature.user_inputs]
    return dict(zip(names, args, strict=False)) | dict(kwargs)


def _sizes(value: Any, program: ExportedProgram, dims: dict[str, Any]) -> Any:
    if isinstance(value, torch.SymInt):
        dims.setdefault(str(value.node.expr), Dim.DYNAMIC)
        return Dim.DYNAMIC
    if not isinstance(value, torch.Tensor):
        return None
    sizes: dict[int, Any] = {}
    for position, size in enumerate(value.shape):
        if isinstance(size, torch.SymInt):
            expression = size.node.expr
            sizes[position] = dims.setdefault(str(expression), _dim(expression, program))
    return sizes or None


def _dim(expression: Any, program: ExportedProgram) -> Any:
    limits = program.range_constraints.get(expression)
    if limits is None or not expression.is_Symbol:
        return Dim.AUTO
    bounds = {k: int(v) for k, v in (("min", limits.lower), ("max", limits.upper)) if v.is_Integer and v < 2**31}
    return Dim(f"q_{expression}", **bounds)


@contextmanager
def _using_torchao() -> Iterator[None]:
    """Ignore torchao's warnings about itself, and clear its caches at the end: they keep whole modules alive."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for function in (*vars(torchao.utils).values(), *vars(torch.ao.quantization.fx.utils).values()):
            if isinstance(function, _lru_cache_wrapper):
                function.cache_clear()
